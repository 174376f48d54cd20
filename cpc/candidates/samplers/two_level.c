/* Draws of `TwoLevel`, one query after the other: what two_level.py does in torch, without temporaries.

   M queries, B blocks, S statistics of a block, D dims, m draws, T targets per query; classes stand in block order
   ("places"). Statistics lie in tiles of 16 blocks, in pairs, [B / 16, S / 2, 16, 2]; they and the classes are in
   bfloat16. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bfloat16 is taken out of 32 bits whose lower half comes first"
#endif

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define TILES 0
#endif

/* GCC's headers name only eight bytes of what tile instructions read: without this it may drop the other stores. */
#define IS_WRITTEN(address) __asm__ volatile("" : : "r"(address) : "memory")

#define LANES 16
#define QUERIES 10 /* that meet a tile at once, as many sums as registers hold */
#define CHUNK 64
#define HALVES_PER_LINE 32
#define AHEAD (64 * HALVES_PER_LINE) /* 4 KiB: processors fetch no further than a page by themselves */

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t lane_bits __attribute__((vector_size(4 * LANES)));
typedef uint32_t two_halves __attribute__((may_alias, aligned(2)));

static inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The number at an even place of a row, and its neighbour, from the 32 bits that they share. */
static inline float first_of(uint32_t both) { return from_bits(both << 16); }
static inline float second_of(uint32_t both) { return from_bits(both & 0xffff0000); }

static inline uint16_t to_bfloat16(float x) { /* rounded to the nearest */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* x = high + low within 2^-17 of itself: what matrix tiles need, which multiply bfloat16 alone. */
static inline void split(float x, uint16_t *high, uint16_t *low) {
    *high = to_bfloat16(x);
    *low = to_bfloat16(x - from_bits((uint32_t)*high << 16));
}

/* Factors [M, S] times statistics, a tile of which is [S / 2, 16 blocks, 2]: products [M, stride]. `packed` holds the
   factors of ten queries side by side. */
static void multiply(int64_t num_queries, int64_t num_tiles, int64_t num_statistics, const float *factors,
                     const uint16_t *statistics, float *packed, float *products) {
    const int64_t stride = num_tiles * LANES, num_pairs = (num_statistics + 1) / 2;
    for (int64_t first = 0; first < num_queries; first += QUERIES)
        for (int64_t s = 0; s < 2 * num_pairs; s++)
            for (int64_t q = first; q < first + QUERIES; q++)
                packed[2 * first * num_pairs + s * QUERIES + q - first] =
                    q < num_queries && s < num_statistics ? factors[q * num_statistics + s] : 0;
    for (int64_t t = 0; t < num_tiles; t++) {
        for (int64_t first = 0; first < num_queries; first += QUERIES) {
            const uint16_t *tile = statistics + 2 * t * num_pairs * LANES;
            const float *factor = packed + 2 * first * num_pairs;
            lanes sums[QUERIES] = {0};
            for (int64_t p = 0; p < num_pairs; p++, factor += 2 * QUERIES, tile += 2 * LANES) {
                __builtin_prefetch(tile + AHEAD);
                lane_bits both;
                memcpy(&both, tile, sizeof both);
                const lanes one = (lanes)(both << 16), other = (lanes)(both & 0xffff0000);
#pragma GCC unroll 10
                for (int q = 0; q < QUERIES; q++) sums[q] += one * factor[q];
#pragma GCC unroll 10
                for (int q = 0; q < QUERIES; q++) sums[q] += other * factor[QUERIES + q];
            }
            for (int64_t q = first; q < num_queries && q < first + QUERIES; q++)
                memcpy(products + q * stride + t * LANES, &sums[q - first], sizeof(lanes));
        }
    }
}

/* What scores are made of: the classes, and a query over the temperature. */
struct scoring {
    const uint16_t *embeddings;
    int64_t num_classes, dim;
    int is_tiled;
    float *query;     /* [D] */
    uint16_t *halves; /* [D / 2, 2, 2]: a pair's high parts, then its low ones */
};

static void set_query(const struct scoring *of, const float *query, float temperature) {
    for (int64_t k = 0; k < of->dim; k++) {
        of->query[k] = query[k] / temperature;
        uint16_t *const high = of->halves + 4 * (k / 2) + k % 2;
        split(of->query[k], high, high + 2);
    }
    IS_WRITTEN(of->halves);
}

static inline void fetch(const struct scoring *of, int64_t start, int64_t num) {
    for (int64_t i = 0; i < num * of->dim; i += HALVES_PER_LINE)
        __builtin_prefetch(of->embeddings + start * of->dim + i);
}

/* Scores of the rows from `start` on. Meanwhile those from `next` on are fetched: blocks lie anywhere in memory, and
   waiting for them would take most of the time. */
static void score_in_lanes(const struct scoring *of, int64_t start, int64_t num, float *scores, int64_t next) {
    const int64_t dim = of->dim;
    const float *query = of->query;
    for (int64_t i = 0; i < num; i++) {
        const uint16_t *row = of->embeddings + (start + i) * dim;
        const two_halves *pairs = (const two_halves *)row;
        fetch(of, next + i, 1);
        float sum = dim % 2 ? query[dim - 1] * first_of(row[dim - 1]) : 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t p = 0; p < dim / 2; p++)
            sum += query[2 * p] * first_of(pairs[p]) + query[2 * p + 1] * second_of(pairs[p]);
        scores[i] = sum;
    }
}

#if TILES
/* The same two products on the processor's matrix tiles: 16 rows of 32 numbers in bfloat16, summed in float32. */

#define MOST_ROWS 16
#define MOST_PAIRS 16

/* Registers, by number as the compiler wants them; the rest: of pairs that fill no tile. */
#define SUMS 0
#define LEFT 1
#define RIGHT 2
#define LEFT_REST 3
#define RIGHT_REST 4
#define NUM_REGISTERS 5

struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t num_rows[16];
};

/* Whether the system lets this process use them. */
static int has_tiles(void) {
    const long request_permission = 0x1023, of_tile_data = 18;
    static _Atomic int is_allowed = -1;
    if (is_allowed < 0) is_allowed = syscall(SYS_arch_prctl, request_permission, of_tile_data) == 0;
    return is_allowed;
}

/* For sums [rows, columns] of left [rows, pairs, 2] and right [pairs, columns, 2]. */
static void shape_tiles(int64_t num_rows, int64_t num_columns, int64_t num_pairs) {
    struct tile_shapes shapes = {.palette = 1};
    const int64_t rest = num_pairs % MOST_PAIRS ? num_pairs % MOST_PAIRS : MOST_PAIRS;
    const int64_t rows[] = {num_rows, num_rows, MOST_PAIRS, num_rows, rest};
    const int64_t numbers[] = {num_columns, MOST_PAIRS, num_columns, rest, num_columns};
    for (int r = 0; r < NUM_REGISTERS; r++) {
        shapes.num_rows[r] = (uint8_t)rows[r];
        shapes.bytes_per_row[r] = (uint16_t)(4 * numbers[r]);
    }
    IS_WRITTEN(&shapes);
    _tile_loadconfig(&shapes);
}

static void multiply_tiled(int64_t num_queries, int64_t num_tiles, int64_t num_statistics, const float *factors,
                           const uint16_t *statistics, uint16_t *high, float *products) {
    const int64_t stride = num_tiles * LANES, num_pairs = (num_statistics + 1) / 2;
    const int64_t whole = num_pairs / MOST_PAIRS * MOST_PAIRS;
    const int64_t num_rows = num_queries < MOST_ROWS ? num_queries : MOST_ROWS;
    const int64_t num_padded = (num_queries + num_rows - 1) / num_rows * num_rows;
    uint16_t *low = high + 2 * num_padded * num_pairs;
    memset(high, 0, (size_t)(4 * num_padded * num_pairs) * sizeof *high);
    for (int64_t q = 0; q < num_queries; q++)
        for (int64_t s = 0; s < num_statistics; s++)
            split(factors[q * num_statistics + s], high + 2 * q * num_pairs + s, low + 2 * q * num_pairs + s);
    IS_WRITTEN(high);
    shape_tiles(num_rows, LANES, num_pairs);
    for (int64_t t = 0; t < num_tiles; t++) {
        for (int64_t first = 0; first < num_queries; first += num_rows) {
            const uint16_t *tile = statistics + 2 * t * num_pairs * LANES;
            _tile_zero(SUMS);
            for (int64_t p = 0; p < whole; p += MOST_PAIRS) {
                for (int64_t line = 0; first == 0 && line < MOST_PAIRS; line++)
                    __builtin_prefetch(tile + 2 * (p + line) * LANES + AHEAD);
                _tile_loadd(RIGHT, tile + 2 * p * LANES, 4 * LANES);
                _tile_loadd(LEFT, high + 2 * (first * num_pairs + p), 4 * num_pairs);
                _tile_dpbf16ps(SUMS, LEFT, RIGHT);
                _tile_loadd(LEFT, low + 2 * (first * num_pairs + p), 4 * num_pairs);
                _tile_dpbf16ps(SUMS, LEFT, RIGHT);
            }
            if (whole < num_pairs) {
                _tile_loadd(RIGHT_REST, tile + 2 * whole * LANES, 4 * LANES);
                _tile_loadd(LEFT_REST, high + 2 * (first * num_pairs + whole), 4 * num_pairs);
                _tile_dpbf16ps(SUMS, LEFT_REST, RIGHT_REST);
                _tile_loadd(LEFT_REST, low + 2 * (first * num_pairs + whole), 4 * num_pairs);
                _tile_dpbf16ps(SUMS, LEFT_REST, RIGHT_REST);
            }
            _tile_stored(SUMS, products + first * stride + t * LANES, 4 * stride);
        }
    }
}

/* D is even. Reads 16 rows at once, of which the last ones may be another block's. */
static void score_tiled(const struct scoring *of, int64_t start, int64_t num, float *scores, int64_t next) {
    const int64_t dim = of->dim, whole = dim / 2 / MOST_PAIRS * MOST_PAIRS;
    const int64_t last = of->num_classes - MOST_ROWS;
    for (int64_t i = 0; i < num; i += MOST_ROWS) {
        const int64_t from = start + i < last ? start + i : last;
        const uint16_t *rows = of->embeddings + from * dim;
        float sums[MOST_ROWS][2];
        fetch(of, next + i, MOST_ROWS);
        _tile_zero(SUMS);
        for (int64_t p = 0; p < whole; p += MOST_PAIRS) {
            _tile_loadd(LEFT, rows + 2 * p, 2 * dim);
            _tile_loadd(RIGHT, of->halves + 4 * p, 8);
            _tile_dpbf16ps(SUMS, LEFT, RIGHT);
        }
        if (2 * whole < dim) {
            _tile_loadd(LEFT_REST, rows + 2 * whole, 2 * dim);
            _tile_loadd(RIGHT_REST, of->halves + 4 * whole, 8);
            _tile_dpbf16ps(SUMS, LEFT_REST, RIGHT_REST);
        }
        _tile_stored(SUMS, sums, 8);
        for (int64_t r = start + i - from; r < MOST_ROWS && from + r < start + num; r++)
            scores[from + r - start] = sums[r][0] + sums[r][1];
    }
}

static void release_tiles(void) { _tile_release(); }
#else
#define has_tiles() 0
#define shape_tiles(...) ((void)0)
#define release_tiles() ((void)0)
#define multiply_tiled(...) ((void)0)
#define score_tiled(...) ((void)0)
#endif

static void score(const struct scoring *of, int64_t start, int64_t num, float *scores, int64_t next) {
    if (of->is_tiled)
        score_tiled(of, start, num, scores, next);
    else
        score_in_lanes(of, start, num, scores, next);
}

/* exp(x) for x <= 0 within 2e-7 of itself, e^-87 below that: compilers make no vectors of calls to expf. */
static inline float exp_of_negative(float x) {
    x = x > -87 ? x : -87;
    float power = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the rounded number is in the last bits */
    int32_t exponent;
    memcpy(&exponent, &power, sizeof power);
    power -= 12582912.0f;
    const float r = x - power * 0.693359375f + power * 2.12194440e-4f; /* log 2 in two parts: |r| <= log(2) / 2 */
    float y = 1 + r * (1 + r * (1.0f / 2 + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    uint32_t bits;
    memcpy(&bits, &y, sizeof y);
    bits += (uint32_t)exponent << 23;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static float highest_of(const float *x, int64_t num) {
    float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
    for (int64_t i = 0; i < num; i++) highest = x[i] > highest ? x[i] : highest;
    return highest;
}

/* Sums of chunks of weights; returns the sum of all. */
static double cumulate(const float *weights, int64_t num, float *chunks) {
    double total = 0;
    for (int64_t start = 0; start < num; start += CHUNK) {
        const int64_t end = start + CHUNK < num ? start + CHUNK : num;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = start; i < end; i++) sum += weights[i];
        chunks[start / CHUNK] = sum;
        total += sum;
    }
    return total;
}

/* The first place whose cumulated weight exceeds `below`, never one of weight zero. */
static int64_t pick(const float *weights, int64_t num, const float *chunks, double below) {
    const int64_t num_chunks = (num + CHUNK - 1) / CHUNK;
    int64_t c = 0;
    while (c + 1 < num_chunks && below >= chunks[c]) below -= chunks[c++];
    while (c > 0 && chunks[c] <= 0) c--; /* rounding */
    double sum = 0;
    int64_t last = 0;
    for (int64_t i = c * CHUNK; i < num && i < (c + 1) * CHUNK; i++) {
        if (weights[i] <= 0) continue;
        sum += weights[i];
        last = i;
        if (sum > below) return i;
    }
    return last; /* rounding */
}

/* exp(score) of the classes from `start` on over that of the highest, whose score is returned. */
static float softmax_weights(const struct scoring *of, int64_t start, int64_t num, float *weights, int64_t next) {
    score(of, start, num, weights, next);
    const float highest = highest_of(weights, num);
#pragma omp simd
    for (int64_t i = 0; i < num; i++) weights[i] = exp_of_negative(weights[i] - highest);
    return highest;
}

/* Masses of blocks become weights Q, in place; sizes are the blocks' numbers of classes. */
static void mix(float *masses, const float *sizes, int64_t num_blocks, int64_t is_log, double uniform_share,
                double num_classes) {
    if (is_log) {
        const float highest = highest_of(masses, num_blocks);
#pragma omp simd
        for (int64_t b = 0; b < num_blocks; b++) masses[b] = exp_of_negative(masses[b] - highest);
    }
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t b = 0; b < num_blocks; b++) { /* what the statistics of an empty block make is no number */
        masses[b] = sizes[b] > 0 && masses[b] > 0 ? masses[b] : 0;
        total += masses[b];
    }
    const float of_mass = total > 0 ? (float)((1 - uniform_share) / total) : 0;
    const float of_size = (float)((total > 0 ? uniform_share : 1) / num_classes);
#pragma omp simd
    for (int64_t b = 0; b < num_blocks; b++) masses[b] = of_mass * masses[b] + of_size * sizes[b];
}

/* Whether a target is no class, a query not finite, or its length further from 1 than `tolerance`. */
static int is_refused(const float *queries, int64_t num_queries, int64_t dim, double tolerance, const int64_t *targets,
                      int64_t num_targets, int64_t num_classes) {
    for (int64_t i = 0; i < num_queries * num_targets; i++)
        if (targets[i] < -1 || targets[i] >= num_classes) return 1;
    for (int64_t q = 0; q < num_queries; q++) {
        float square = 0;
#pragma omp simd reduction(+ : square)
        for (int64_t k = 0; k < dim; k++) square += queries[q * dim + k] * queries[q * dim + k];
        if (!isfinite(square) || fabs(sqrt(square) - 1) > tolerance) return 1;
    }
    return 0;
}

struct drawn {
    int64_t block, place_among_draws;
};

static int by_block(const void *one, const void *other) {
    const int64_t a = ((const struct drawn *)one)->block, b = ((const struct drawn *)other)->block;
    return (a > b) - (a < b);
}

/* Draws for the queries from `first` on, up to `end`. Returns 0, or 1 without any draw: it was refused, or there is no
   memory. */
int64_t two_level_draw(int64_t first, int64_t end, int64_t num_queries, int64_t dim, int64_t num_blocks,
                       int64_t num_statistics, int64_t num, int64_t num_targets, int64_t is_log, int64_t is_excluding,
                       double uniform_share, double temperature, double tolerance, const float *queries,
                       const float *factors, const uint16_t *statistics, const uint16_t *embeddings,
                       const int64_t *offsets, const int64_t *block_of, const int64_t *id_of, const int64_t *place_of,
                       const int64_t *targets, const double *uniform, int64_t *ids, float *log_count,
                       float *log_count_targets) {
    const int64_t num_tiles = (num_blocks + LANES - 1) / LANES, num_classes = offsets[num_blocks];
    const int64_t num_rows = end - first;
    if (is_refused(queries + first * dim, num_rows, dim, tolerance, targets + first * num_targets, num_targets,
                   num_classes))
        return 1;
    const double log_num = log((double)num);
    const int64_t num_chunks = num_classes / CHUNK + 1, num_padded = num_rows + LANES;
    const int64_t parts[] = {num_padded * num_tiles * LANES, num_blocks, num_chunks, num_targets, dim, dim + 1,
                             num_classes, num_padded * (num_statistics + 1)};
    int64_t num_floats = 0;
    for (int p = 0; p < 8; p++) num_floats += parts[p];
    struct drawn *const drawn = malloc((size_t)num * sizeof *drawn + (size_t)num_floats * sizeof(float));
    if (!drawn) return 1;
    float *masses = (float *)(drawn + num), *sizes = masses + parts[0], *chunks = sizes + parts[1];
    float *kept = chunks + parts[2], *query = kept + parts[3], *halves = query + parts[4];
    float *weights = halves + parts[5], *packed = weights + parts[6];
    const int is_tiled = num_rows > 0 && has_tiles();
    const int has_tiled_scores = is_tiled && dim % 2 == 0 && num_classes >= LANES;
    const struct scoring scoring = {embeddings, num_classes, dim, has_tiled_scores, query, (uint16_t *)halves};

    for (int64_t b = 0; b < num_blocks; b++) sizes[b] = (float)(offsets[b + 1] - offsets[b]);
    factors += first * num_statistics;
    if (is_tiled)
        multiply_tiled(num_rows, num_tiles, num_statistics, factors, statistics, (uint16_t *)packed, masses);
    else
        multiply(num_rows, num_tiles, num_statistics, factors, statistics, packed, masses);
    if (has_tiled_scores) shape_tiles(LANES, 2, dim / 2);
    for (int64_t q = first; q < end; q++) {
        const int64_t *target = targets + q * num_targets;
        float *mass = masses + (q - first) * num_tiles * LANES;
        set_query(&scoring, queries + q * dim, (float)temperature);
        mix(mass, sizes, num_blocks, is_log, uniform_share, (double)num_classes);

        for (int64_t t = 0; t < num_targets; t++) {
            kept[t] = 1;
            log_count_targets[q * num_targets + t] = INFINITY;
            if (target[t] < 0) continue;
            const int64_t place = place_of[target[t]], b = block_of[place], start = offsets[b];
            const int64_t size = offsets[b + 1] - start;
            const float highest = softmax_weights(&scoring, start, size, weights, start);
            const double sum = cumulate(weights, size, chunks);
            float own; /* again: its weight may have been too small for a float */
            score(&scoring, place, 1, &own, place);
            log_count_targets[q * num_targets + t] = (float)(log_num + log(mass[b]) + own - highest - log(sum));
            int is_first = 1; /* of its block */
            for (int64_t s = 0; s < t; s++) is_first &= target[s] < 0 || block_of[place_of[target[s]]] != b;
            for (int64_t s = 0; s < num_targets; s++)
                if (target[s] >= 0 && block_of[place_of[target[s]]] == b) weights[place_of[target[s]] - start] = 0;
            if (is_first) kept[t] = (float)(cumulate(weights, size, chunks) / sum);
        }
        /* After all targets have read the masses: a block keeps the share of its mass that is not excluded. */
        for (int64_t t = 0; is_excluding && t < num_targets; t++)
            if (target[t] >= 0) mass[block_of[place_of[target[t]]]] *= kept[t];
        const double left = cumulate(mass, num_blocks, chunks);
        for (int64_t t = 0; t < num_targets; t++)
            if (target[t] >= 0) log_count_targets[q * num_targets + t] -= (float)log(left);

        for (int64_t r = 0; r < num; r++) {
            const int64_t b = pick(mass, num_blocks, chunks, uniform[q * num + r] * left);
            drawn[r] = (struct drawn){b, r};
        }
        qsort(drawn, (size_t)num, sizeof *drawn, by_block); /* a block's weights serve all of its draws */
        for (int64_t d = 0, of_next; d < num; d = of_next) {
            const int64_t b = drawn[d].block, start = offsets[b], size = offsets[b + 1] - start;
            for (of_next = d; of_next < num && drawn[of_next].block == b; of_next++) continue;
            const int64_t next = of_next < num ? drawn[of_next].block : b;
            softmax_weights(&scoring, start, size, weights, offsets[next]);
            for (int64_t t = 0; is_excluding && t < num_targets; t++) {
                const int64_t i = target[t] < 0 ? -1 : place_of[target[t]] - start;
                if (i >= 0 && i < size) weights[i] = 0;
            }
            const double sum = cumulate(weights, size, chunks);
            for (int64_t of_block = d; of_block < of_next; of_block++) {
                const int64_t r = q * num + drawn[of_block].place_among_draws;
                const int64_t i = pick(weights, size, chunks, uniform[num_queries * num + r] * sum);
                ids[r] = id_of[start + i];
                /* mass[b] holds the block's share of what is left; of it, i takes its share of what is not excluded. */
                log_count[r] = (float)(log_num + log(mass[b] / left) + log(weights[i] / sum));
            }
        }
    }
    if (is_tiled) release_tiles();
    free(drawn);
    return 0;
}
