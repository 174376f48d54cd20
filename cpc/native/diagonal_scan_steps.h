/* The recurrence of diagonal_scan.c for one type of numbers, REAL.

   B sequences, T latents, C channels, N modes. With complex numbers, for each sequence, channel and mode:
     h_t = a h_{t-1} + u_t,    y_t = skip u_t + Re(sum over modes of w h_t).
   Complex arrays have a first axis of 2: real parts, then imaginary parts. A vector holds neighbouring channels. A
   thread takes a vector of channels of one sequence through all steps. Time is cut into chunks of CHUNK steps: `states`
   keeps the state before each chunk, from which the backward pass computes the states inside the chunk again. */

#define LANES (VECTOR_BYTES / (int64_t)sizeof(REAL))
#define MODES 4 /* modes at a time: their recurrences are independent and hide each other's latency */

typedef REAL NAMED(vector) __attribute__((vector_size(VECTOR_BYTES)));
#define VECTOR NAMED(vector)

/* Some channels of an array, `present` of LANES; the lanes of absent channels are 0. */
static inline __attribute__((always_inline)) VECTOR NAMED(load)(const REAL *from, int64_t present) {
    VECTOR found = {0};
    if (present == LANES) memcpy(&found, from, sizeof(VECTOR));
    else memcpy(&found, from, present * sizeof(REAL));
    return found;
}

static inline __attribute__((always_inline)) void NAMED(store)(REAL *to, VECTOR values, int64_t present) {
    if (present == LANES) memcpy(to, &values, sizeof(VECTOR));
    else memcpy(to, &values, present * sizeof(REAL));
}

/* Advances `modes` modes by a chunk and adds their outputs to y. `imaginary` is the distance to imaginary parts. */
static inline __attribute__((always_inline)) void NAMED(advance)(const int modes, int64_t length, int64_t dim,
                                                                 int64_t imaginary, int64_t present, const REAL *decay,
                                                                 const REAL *weight, const REAL *before, REAL *after,
                                                                 const VECTOR *u, VECTOR *y) {
    VECTOR a_re[MODES], a_im[MODES], w_re[MODES], w_im[MODES], h_re[MODES], h_im[MODES];
#pragma GCC unroll 4
    for (int n = 0; n < modes; n++) {
        const int64_t real = n * dim, other = real + imaginary;
        a_re[n] = NAMED(load)(decay + real, present), a_im[n] = NAMED(load)(decay + other, present);
        w_re[n] = NAMED(load)(weight + real, present), w_im[n] = NAMED(load)(weight + other, present);
        h_re[n] = NAMED(load)(before + real, present), h_im[n] = NAMED(load)(before + other, present);
    }
    for (int64_t t = 0; t < length; t++) {
        VECTOR sum = y[t];
#pragma GCC unroll 4
        for (int n = 0; n < modes; n++) {
            const VECTOR re = a_re[n] * h_re[n] - a_im[n] * h_im[n] + u[t];
            h_im[n] = a_re[n] * h_im[n] + a_im[n] * h_re[n];
            h_re[n] = re;
            sum += w_re[n] * h_re[n] - w_im[n] * h_im[n];
        }
        y[t] = sum;
    }
#pragma GCC unroll 4
    for (int n = 0; n < modes; n++) {
        NAMED(store)(after + n * dim, h_re[n], present);
        NAMED(store)(after + n * dim + imaginary, h_im[n], present);
    }
}

/* inputs, outputs [B, T, C]; decay, weight [2, N, C]; skip [C]; states [B, chunks + 1, 2, N, C], of which the first of
   each sequence is an input and the last is the state after the sequence. */
int64_t NAMED(scan_forward)(int64_t num_threads, int64_t num_sequences, int64_t num_latents, int64_t dim,
                            int64_t num_modes, const REAL *inputs, const REAL *decay, const REAL *weight,
                            const REAL *skip, REAL *restrict outputs, REAL *restrict states) {
    const int64_t num_vectors = (dim + LANES - 1) / LANES, imaginary = num_modes * dim;
    const int64_t num_chunks = (num_latents + CHUNK - 1) / CHUNK;
#pragma omp parallel for num_threads(num_threads)
    for (int64_t task = 0; task < num_sequences * num_vectors; task++) {
        const int64_t b = task / num_vectors, c = task % num_vectors * LANES;
        const int64_t present = dim - c < LANES ? dim - c : LANES;
        const VECTOR through = NAMED(load)(skip + c, present);
        VECTOR u[CHUNK], y[CHUNK];
        for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
            const int64_t start = chunk * CHUNK, left = num_latents - start, length = left < CHUNK ? left : CHUNK;
            const int64_t row = (b * num_latents + start) * dim + c;
            REAL *before = states + (b * (num_chunks + 1) + chunk) * 2 * imaginary + c, *after = before + 2 * imaginary;
            for (int64_t t = 0; t < length; t++) {
                u[t] = NAMED(load)(inputs + row + t * dim, present);
                y[t] = through * u[t];
            }
            int64_t n = 0;
#define ADVANCE(modes)                                                                                            \
    for (; n + (modes) <= num_modes; n += (modes))                                                                \
        NAMED(advance)(modes, length, dim, imaginary, present, decay + n * dim + c, weight + n * dim + c,         \
                       before + n * dim, after + n * dim, u, y);
            ADVANCE(MODES)
            ADVANCE(1)
#undef ADVANCE
            for (int64_t t = 0; t < length; t++) NAMED(store)(outputs + row + t * dim, y[t], present);
        }
    }
    return 0;
}

/* Takes the gradients of `modes` modes back through a chunk: adds to du, to the sums over time decay_grad and
   weight_grad, and replaces `carried`, the gradient of the state after the chunk, by that of the state before it. */
static inline __attribute__((always_inline)) void NAMED(retreat)(const int modes, int64_t length, int64_t dim,
                                                                 int64_t imaginary, int64_t present, const REAL *decay,
                                                                 const REAL *weight, const REAL *before, REAL *carried,
                                                                 REAL *decay_grad, REAL *weight_grad, const VECTOR *u,
                                                                 const VECTOR *dy, VECTOR *du) {
    VECTOR a_re[MODES], a_im[MODES], h_re[MODES][CHUNK + 1], h_im[MODES][CHUNK + 1];
#pragma GCC unroll 4
    for (int n = 0; n < modes; n++) {
        const int64_t real = n * dim, other = real + imaginary;
        a_re[n] = NAMED(load)(decay + real, present), a_im[n] = NAMED(load)(decay + other, present);
        h_re[n][0] = NAMED(load)(before + real, present), h_im[n][0] = NAMED(load)(before + other, present);
    }
    for (int64_t t = 0; t < length; t++)
#pragma GCC unroll 4
        for (int n = 0; n < modes; n++) {
            h_re[n][t + 1] = a_re[n] * h_re[n][t] - a_im[n] * h_im[n][t] + u[t];
            h_im[n][t + 1] = a_re[n] * h_im[n][t] + a_im[n] * h_re[n][t];
        }
    VECTOR w_re[MODES], w_im[MODES], g_re[MODES], g_im[MODES];
    VECTOR da_re[MODES], da_im[MODES], dw_re[MODES], dw_im[MODES];
#pragma GCC unroll 4
    for (int n = 0; n < modes; n++) {
        const int64_t real = n * dim, other = real + imaginary;
        w_re[n] = NAMED(load)(weight + real, present), w_im[n] = NAMED(load)(weight + other, present);
        g_re[n] = NAMED(load)(carried + real, present), g_im[n] = NAMED(load)(carried + other, present);
        da_re[n] = da_im[n] = dw_re[n] = dw_im[n] = (VECTOR){0};
    }
    for (int64_t t = length - 1; t >= 0; t--) {
        const VECTOR slope = dy[t];
        VECTOR sum = du[t];
#pragma GCC unroll 4
        for (int n = 0; n < modes; n++) {
            const VECTOR re = g_re[n] + w_re[n] * slope, im = g_im[n] - w_im[n] * slope;
            dw_re[n] += slope * h_re[n][t + 1], dw_im[n] -= slope * h_im[n][t + 1];
            da_re[n] += re * h_re[n][t] + im * h_im[n][t], da_im[n] += im * h_re[n][t] - re * h_im[n][t];
            sum += re;
            g_re[n] = a_re[n] * re + a_im[n] * im, g_im[n] = a_re[n] * im - a_im[n] * re;
        }
        du[t] = sum;
    }
#pragma GCC unroll 4
    for (int n = 0; n < modes; n++) {
        const int64_t real = n * dim, other = real + imaginary;
        NAMED(store)(carried + real, g_re[n], present), NAMED(store)(carried + other, g_im[n], present);
#define ADD(sums, index, part) NAMED(store)(sums + index, NAMED(load)(sums + index, present) + part, present)
        ADD(decay_grad, real, da_re[n]), ADD(decay_grad, other, da_im[n]);
        ADD(weight_grad, real, dw_re[n]), ADD(weight_grad, other, dw_im[n]);
#undef ADD
    }
}

/* From the gradients of outputs [B, T, C] and of the last states, `carried` [B, 2, N, C], computes the gradients of
   inputs [B, T, C] and of the first states, in `carried`; and for each sequence those of decay and weight [B, 2, N, C]
   and of skip [B, C], which start at 0. */
int64_t NAMED(scan_backward)(int64_t num_threads, int64_t num_sequences, int64_t num_latents, int64_t dim,
                             int64_t num_modes, const REAL *outputs_grad, const REAL *inputs, const REAL *decay,
                             const REAL *weight, const REAL *skip, const REAL *states, REAL *restrict carried,
                             REAL *restrict inputs_grad, REAL *restrict decay_grad, REAL *restrict weight_grad,
                             REAL *restrict skip_grad) {
    const int64_t num_vectors = (dim + LANES - 1) / LANES, imaginary = num_modes * dim;
    const int64_t num_chunks = (num_latents + CHUNK - 1) / CHUNK;
#pragma omp parallel for num_threads(num_threads)
    for (int64_t task = 0; task < num_sequences * num_vectors; task++) {
        const int64_t b = task / num_vectors, c = task % num_vectors * LANES;
        const int64_t present = dim - c < LANES ? dim - c : LANES;
        const VECTOR through = NAMED(load)(skip + c, present);
        VECTOR u[CHUNK], dy[CHUNK], du[CHUNK], through_grad = {0};
        for (int64_t chunk = num_chunks - 1; chunk >= 0; chunk--) {
            const int64_t start = chunk * CHUNK, left = num_latents - start, length = left < CHUNK ? left : CHUNK;
            const int64_t row = (b * num_latents + start) * dim + c;
            const REAL *before = states + (b * (num_chunks + 1) + chunk) * 2 * imaginary + c;
            for (int64_t t = 0; t < length; t++) {
                u[t] = NAMED(load)(inputs + row + t * dim, present);
                dy[t] = NAMED(load)(outputs_grad + row + t * dim, present);
                du[t] = through * dy[t];
                through_grad += u[t] * dy[t];
            }
            int64_t n = 0;
#define RETREAT(modes)                                                                                              \
    for (; n + (modes) <= num_modes; n += (modes)) {                                                                \
        const int64_t of_sequence = b * 2 * imaginary + n * dim + c;                                                \
        NAMED(retreat)(modes, length, dim, imaginary, present, decay + n * dim + c, weight + n * dim + c,           \
                       before + n * dim, carried + of_sequence, decay_grad + of_sequence, weight_grad + of_sequence, \
                       u, dy, du);                                                                                  \
    }
            RETREAT(MODES)
            RETREAT(1)
#undef RETREAT
            for (int64_t t = 0; t < length; t++) NAMED(store)(inputs_grad + row + t * dim, du[t], present);
        }
        NAMED(store)(skip_grad + b * dim + c, through_grad, present);
    }
    return 0;
}

#undef VECTOR
#undef LANES
#undef MODES
