/* The recurrence of gru_layer.c for one type of numbers, REAL.

   B sequences, T latents, C context dim; gates in the order reset r, update z, new n. Each thread computes all steps of
   some sequences, so threads do not wait for each other. */

#define LANES (VECTOR_BYTES / (int64_t)sizeof(REAL))
#define ROWS 4 /* ROWS times COLUMNS vectors of sums fit in registers */
#define COLUMNS 4

typedef REAL NAMED(vector) __attribute__((vector_size(VECTOR_BYTES)));
#define VECTOR NAMED(vector)

/* out [rows, vectors] = start + a [rows, depth] b [depth, vectors]; `start` has one row, or one for each row. */
static inline __attribute__((always_inline)) void NAMED(tile)(const int rows, const int vectors, int64_t depth,
                                                              const REAL *a, int64_t a_stride, const REAL *b,
                                                              int64_t b_stride, const REAL *start, int64_t start_stride,
                                                              REAL *out, int64_t out_stride) {
    VECTOR sums[ROWS][COLUMNS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) memcpy(&sums[r][v], start + r * start_stride + v * LANES, sizeof(VECTOR));
    for (int64_t k = 0; k < depth; k++) {
        VECTOR row[COLUMNS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) memcpy(&row[v], b + k * b_stride + v * LANES, sizeof(VECTOR));
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[r][v] += a[r * a_stride + k] * row[v];
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) memcpy(out + r * out_stride + v * LANES, &sums[r][v], sizeof(VECTOR));
}

/* out [num, width] = start + a [num, depth] b [depth, width]; the outer loop over columns reads b only once. */
static void NAMED(product)(int64_t num, int64_t depth, int64_t width, const REAL *a, int64_t a_stride, const REAL *b,
                           const REAL *start, int64_t start_stride, REAL *out) {
    int64_t c = 0;
#define TILES(vectors)                                                                                             \
    for (; c + (vectors) * LANES <= width; c += (vectors) * LANES) {                                               \
        int64_t r = 0;                                                                                             \
        for (; r + ROWS <= num; r += ROWS)                                                                         \
            NAMED(tile)(ROWS, vectors, depth, a + r * a_stride, a_stride, b + c, width, start + r * start_stride + c, \
                        start_stride, out + r * width + c, width);                                                 \
        for (; r < num; r++)                                                                                       \
            NAMED(tile)(1, vectors, depth, a + r * a_stride, a_stride, b + c, width, start + r * start_stride + c, 0, \
                        out + r * width + c, width);                                                               \
    }
    TILES(COLUMNS)
    TILES(1)
#undef TILES
    for (int64_t r = 0; r < num; r++)
        for (int64_t rest = c; rest < width; rest++) {
            REAL sum = start[r * start_stride + rest];
            for (int64_t k = 0; k < depth; k++) sum += a[r * a_stride + k] * b[k * width + rest];
            out[r * width + rest] = sum;
        }
}

/* gates [T, B, 3C] hold the input terms, and are replaced by the values of the gates; hiddens [T + 1, B, C], of which
   the first state is an input; hidden_to_new [T, B, C] receives the hidden term of the new gate; recurrent [C, 3C];
   products [B, 3C] is scratch. */
int64_t NAMED(gru_forward)(int64_t num_threads, int64_t num_latents, int64_t num_sequences, int64_t dim,
                           const REAL *recurrent, const REAL *bias, REAL *restrict products, REAL *restrict gates,
                           REAL *restrict hidden_to_new, REAL *restrict hiddens) {
    if (num_threads > num_sequences) num_threads = num_sequences > 0 ? num_sequences : 1;
#pragma omp parallel for num_threads(num_threads)
    for (int64_t part = 0; part < num_threads; part++) {
        const int64_t first = num_sequences * part / num_threads, end = num_sequences * (part + 1) / num_threads;
        for (int64_t t = 0; t < num_latents; t++) {
            const REAL *before = hiddens + t * num_sequences * dim;
            NAMED(product)(end - first, dim, 3 * dim, before + first * dim, dim, recurrent, bias, 0,
                           products + first * 3 * dim);
            for (int64_t b = first; b < end; b++) {
                const REAL *hidden = before + b * dim, *hidden_product = products + b * 3 * dim;
                REAL *reset = gates + (t * num_sequences + b) * 3 * dim, *update = reset + dim, *new = update + dim;
                REAL *hidden_term = hidden_to_new + (t * num_sequences + b) * dim;
                REAL *after = hiddens + ((t + 1) * num_sequences + b) * dim;
#pragma omp simd
                for (int64_t c = 0; c < 2 * dim; c++) reset[c] = NAMED(sigmoid)(reset[c] + hidden_product[c]);
#pragma omp simd
                for (int64_t c = 0; c < dim; c++) {
                    hidden_term[c] = hidden_product[2 * dim + c];
                    new[c] = NAMED(hyperbolic_tangent)(new[c] + reset[c] * hidden_term[c]);
                    after[c] = new[c] + update[c] * (hidden[c] - new[c]);
                }
            }
        }
    }
    return 0;
}

/* From the gradients of all hidden states, `hiddens_grad` [T + 1, B, C], computes the gradients of the input term and
   of the hidden term of the gates, `input_grad` and `product_grad` [T, B, 3C], and of the first hidden state, `carried`
   [B, C]. weight [3C, C]. */
int64_t NAMED(gru_backward)(int64_t num_threads, int64_t num_latents, int64_t num_sequences, int64_t dim,
                            const REAL *hiddens_grad, const REAL *weight, const REAL *hiddens, const REAL *gates,
                            const REAL *hidden_to_new, REAL *restrict input_grad, REAL *restrict product_grad,
                            REAL *restrict carried) {
    if (num_threads > num_sequences) num_threads = num_sequences > 0 ? num_sequences : 1;
#pragma omp parallel for num_threads(num_threads)
    for (int64_t part = 0; part < num_threads; part++) {
        const int64_t first = num_sequences * part / num_threads, end = num_sequences * (part + 1) / num_threads;
        for (int64_t t = num_latents - 1; t >= 0; t--) {
            for (int64_t b = first; b < end; b++) {
                const int64_t offset = (t * num_sequences + b) * dim, after = offset + num_sequences * dim;
                const REAL *reset = gates + 3 * offset, *update = reset + dim, *new = update + dim;
                REAL *input = input_grad + 3 * offset, *product = product_grad + 3 * offset;
#pragma omp simd
                for (int64_t c = 0; c < dim; c++) {
                    const REAL r = reset[c], z = update[c], n = new[c];
                    const REAL hidden_grad = carried[b * dim + c] + hiddens_grad[after + c];
                    const REAL new_grad = hidden_grad * (1 - z) * (1 - n * n);
                    const REAL update_grad = hidden_grad * (hiddens[offset + c] - n) * z * (1 - z);
                    const REAL reset_grad = new_grad * hidden_to_new[offset + c] * r * (1 - r);
                    input[c] = product[c] = reset_grad;
                    input[dim + c] = product[dim + c] = update_grad;
                    input[2 * dim + c] = new_grad;
                    product[2 * dim + c] = new_grad * r; /* the reset gate scales only the hidden term */
                    carried[b * dim + c] = hidden_grad * z;
                }
            }
            NAMED(product)(end - first, 3 * dim, dim, product_grad + (t * num_sequences + first) * 3 * dim, 3 * dim,
                           weight, carried + first * dim, dim, carried + first * dim);
        }
    }
    for (int64_t i = 0; i < num_sequences * dim; i++) carried[i] += hiddens_grad[i];
    return 0;
}

#undef VECTOR
#undef LANES
#undef ROWS
#undef COLUMNS
