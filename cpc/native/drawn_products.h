/* The products of drawn.c for one type of numbers, REAL, in vectors of 64 bytes.

   M queries, N candidates, R sampled candidates per query, D dims. */

#define LANES (64 / (int64_t)sizeof(REAL))
#define TOGETHER 4 /* candidates that are multiplied with a query at once, in independent sums */
#define CHUNK 256
#define WIDE 8     /* vectors of a gradient that are summed at once; they and the operands fit in registers */

typedef REAL NAMED(vector) __attribute__((vector_size(64)));
typedef REAL NAMED(half) __attribute__((vector_size(32)));
typedef REAL NAMED(quarter) __attribute__((vector_size(16)));
#define VECTOR NAMED(vector)

static inline VECTOR NAMED(load)(const REAL *from) {
    VECTOR x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline REAL NAMED(sum)(VECTOR x) {
    NAMED(half) halves[2];
    memcpy(halves, &x, sizeof x);
    const NAMED(half) half = halves[0] + halves[1];
    NAMED(quarter) quarters[2];
    memcpy(quarters, &half, sizeof half);
    const NAMED(quarter) quarter = quarters[0] + quarters[1];
    REAL sum = 0;
    for (int64_t i = 0; i < LANES / 4; i++) sum += quarter[i];
    return sum;
}

/* Whether an index is not that of a candidate. */
static int NAMED(is_outside)(const int64_t *indices, int64_t num_drawn, int64_t num_candidates) {
    int is_outside = 0;
    for (int64_t j = 0; j < num_drawn; j++) is_outside |= indices[j] < 0 || indices[j] >= num_candidates;
    return is_outside;
}

/* Scores [M, R] of queries [M, D] and the candidates [N, D] with the sampled indices [M, R]. All sums have the same
   order, so that equal candidates have equal scores. All three functions return 1 if an index is outside of [0, N). */
int64_t NAMED(drawn_scores)(int64_t num_threads, int64_t num_queries, int64_t num_drawn, int64_t num_candidates,
                            int64_t dim, const REAL *queries, const REAL *candidates, const int64_t *drawn,
                            REAL *scores) {
    int is_outside = 0;
#pragma omp parallel for num_threads(num_threads) reduction(| : is_outside)
    for (int64_t m = 0; m < num_queries; m++) {
        const REAL *query = queries + m * dim;
        const int64_t *indices = drawn + m * num_drawn;
        if (NAMED(is_outside)(indices, num_drawn, num_candidates)) {
            is_outside = 1;
            continue;
        }
        for (int64_t j = 0; j < num_drawn; j += TOGETHER) {
            const REAL *row[TOGETHER];
            for (int64_t i = 0; i < TOGETHER; i++)
                row[i] = candidates + indices[j + i < num_drawn ? j + i : num_drawn - 1] * dim;
            VECTOR sums[TOGETHER] = {{0}};
            int64_t d = 0;
            for (; d + LANES <= dim; d += LANES) {
                const VECTOR x = NAMED(load)(query + d);
#pragma GCC unroll 4
                for (int64_t i = 0; i < TOGETHER; i++) sums[i] += x * NAMED(load)(row[i] + d);
            }
            for (int64_t i = 0; i < TOGETHER && j + i < num_drawn; i++) {
                REAL sum = NAMED(sum)(sums[i]);
                for (int64_t rest = d; rest < dim; rest++) sum += query[rest] * row[i][rest];
                scores[m * num_drawn + j + i] = sum;
            }
        }
    }
    return is_outside;
}

/* Gradients of the queries [M, D]: score gradients [M, R] times the sampled candidates. */
int64_t NAMED(drawn_by_queries)(int64_t num_threads, int64_t num_queries, int64_t num_drawn, int64_t num_candidates,
                                int64_t dim, const REAL *score_grads, const REAL *candidates, const int64_t *drawn,
                                REAL *queries_grad) {
    int is_outside = 0;
#pragma omp parallel for num_threads(num_threads) reduction(| : is_outside)
    for (int64_t m = 0; m < num_queries; m++) {
        const REAL *score_grad = score_grads + m * num_drawn;
        const int64_t *indices = drawn + m * num_drawn;
        if (NAMED(is_outside)(indices, num_drawn, num_candidates)) {
            is_outside = 1;
            continue;
        }
        int64_t d = 0;
        for (; d + WIDE * LANES <= dim; d += WIDE * LANES) {
            VECTOR sums[WIDE] = {{0}};
            for (int64_t j = 0; j < num_drawn; j++) {
                const REAL *row = candidates + indices[j] * dim + d;
#pragma GCC unroll 8
                for (int64_t i = 0; i < WIDE; i++) sums[i] += score_grad[j] * NAMED(load)(row + i * LANES);
            }
            memcpy(queries_grad + m * dim + d, sums, sizeof sums);
        }
        for (int64_t rest = d; rest < dim; rest++) queries_grad[m * dim + rest] = 0;
        for (int64_t j = 0; j < num_drawn; j++) {
            const REAL *row = candidates + indices[j] * dim;
#pragma omp simd
            for (int64_t rest = d; rest < dim; rest++) queries_grad[m * dim + rest] += score_grad[j] * row[rest];
        }
    }
    return is_outside;
}

/* Adds score gradients times queries to the gradients of the candidates [N, D]. Each thread has its own range of
   candidates, so threads do not wait for each other and sums do not depend on the number of threads. */
int64_t NAMED(drawn_by_candidates)(int64_t num_threads, int64_t num_queries, int64_t num_drawn, int64_t num_candidates,
                                   int64_t dim, const REAL *score_grads, const REAL *queries, const int64_t *drawn,
                                   REAL *restrict candidates_grad) {
#pragma omp parallel for num_threads(num_threads)
    for (int64_t part = 0; part < num_threads; part++) {
        const int64_t first = num_candidates * part / num_threads, end = num_candidates * (part + 1) / num_threads;
        for (int64_t m = 0; m < num_queries; m++) {
            const REAL *query = queries + m * dim;
            for (int64_t start = 0; start < num_drawn; start += CHUNK) {
                const int64_t stop = start + CHUNK < num_drawn ? start + CHUNK : num_drawn;
                int64_t own[CHUNK], num_own = 0;
                for (int64_t i = m * num_drawn + start; i < m * num_drawn + stop; i++) {
                    own[num_own] = i; /* without a branch, which would be unpredictable */
                    num_own += (drawn[i] >= first) & (drawn[i] < end) & (score_grads[i] != 0);
                }
                for (int64_t i = 0; i < num_own; i++) {
                    const REAL score_grad = score_grads[own[i]];
                    REAL *row = candidates_grad + drawn[own[i]] * dim;
#pragma omp simd
                    for (int64_t d = 0; d < dim; d++) row[d] += score_grad * query[d];
                }
            }
        }
    }
    return NAMED(is_outside)(drawn, num_queries * num_drawn, num_candidates);
}

#undef VECTOR
#undef LANES
#undef TOGETHER
#undef WIDE
#undef CHUNK
