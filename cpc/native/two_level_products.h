/* The two products of sampling in `TwoLevel`: factors times statistics of blocks, and a query times classes of a block.
   Both use vector registers, or the matrix tiles of the processor if it has them.

   M queries, B blocks, S statistics of a block, D dims; classes are in block order. Statistics are in tiles of 16
   blocks, in pairs, [B / 16, S / 2, 16, 2]; statistics and classes are in bfloat16. */

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pairs of bfloat16 are read from 32 bits in little-endian order"
#endif

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define TILES 0
#endif

/* The headers of GCC declare that tile instructions read eight bytes: without this, GCC may drop the other stores. */
#define IS_WRITTEN(address) __asm__ volatile("" : : "r"(address) : "memory")

#define LANES 16
#define QUERIES 10 /* queries multiplied with a tile at once; their sums fit in registers */
#define HALVES_PER_LINE 32
#define AHEAD (64 * HALVES_PER_LINE) /* 4 KiB: hardware prefetching stops at the end of a page */

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t lane_bits __attribute__((vector_size(4 * LANES)));
typedef uint32_t two_halves __attribute__((may_alias, aligned(2)));

static inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The number at an even index of a row, and the next number, from 32 bits that contain both. */
static inline float first_of(uint32_t both) { return from_bits(both << 16); }
static inline float second_of(uint32_t both) { return from_bits(both & 0xffff0000); }

static inline uint16_t to_bfloat16(float x) { /* rounded to the nearest */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* x = high + low with relative error 2^-17, for matrix tiles, which multiply only bfloat16. */
static inline void split(float x, uint16_t *high, uint16_t *low) {
    *high = to_bfloat16(x);
    *low = to_bfloat16(x - from_bits((uint32_t)*high << 16));
}

/* Factors [M, S] times statistics, a tile of which is [S / 2, 16 blocks, 2]: products [M, stride]. `packed` holds
   the factors of ten queries next to each other. */
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

/* The operands of scores: the classes, and a query divided by the temperature. */
struct scoring {
    const uint16_t *embeddings;
    int64_t num_classes, dim;
    int is_tiled;
    float *query;     /* [D] */
    uint16_t *halves; /* [D / 2, 2, 2]: the high parts of a pair, then its low parts */
};

static void set_query(const struct scoring *scoring, const float *query, float temperature) {
    for (int64_t k = 0; k < scoring->dim; k++) {
        scoring->query[k] = query[k] / temperature;
        uint16_t *const high = scoring->halves + 4 * (k / 2) + k % 2;
        split(scoring->query[k], high, high + 2);
    }
    IS_WRITTEN(scoring->halves);
}

static inline void fetch(const struct scoring *scoring, int64_t start, int64_t num) {
    for (int64_t i = 0; i < num * scoring->dim; i += HALVES_PER_LINE)
        __builtin_prefetch(scoring->embeddings + start * scoring->dim + i);
}

/* Scores of the rows from `start` on. Rows from `next` on are prefetched, because blocks are scattered in memory and
   waiting for them would take most of the time. */
static void score_in_lanes(const struct scoring *scoring, int64_t start, int64_t num, float *scores, int64_t next) {
    const int64_t dim = scoring->dim;
    const float *query = scoring->query;
    for (int64_t i = 0; i < num; i++) {
        const uint16_t *row = scoring->embeddings + (start + i) * dim;
        const two_halves *pairs = (const two_halves *)row;
        fetch(scoring, next + i, 1);
        float sum = dim % 2 ? query[dim - 1] * first_of(row[dim - 1]) : 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t p = 0; p < dim / 2; p++)
            sum += query[2 * p] * first_of(pairs[p]) + query[2 * p + 1] * second_of(pairs[p]);
        scores[i] = sum;
    }
}

#if TILES
/* The same two products with matrix tiles: 16 rows of 32 numbers in bfloat16, summed in float32. */

#define MOST_ROWS 16
#define MOST_PAIRS 16

/* Numbers of registers, which the compiler needs as constants; *_REST hold the pairs that do not fill a tile. */
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

/* Whether the system allows this process to use matrix tiles. */
static int has_tiles(void) {
    const long request_permission = 0x1023, tile_data = 18;
    static _Atomic int is_allowed = -1;
    if (is_allowed < 0) is_allowed = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return is_allowed;
}

/* Configures tiles for sums [rows, columns] of products of left [rows, pairs, 2] and right [pairs, columns, 2]. */
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

/* D must be even. Reads 16 rows at once, of which the last may belong to another block. */
static void score_tiled(const struct scoring *scoring, int64_t start, int64_t num, float *scores, int64_t next) {
    const int64_t dim = scoring->dim, whole = dim / 2 / MOST_PAIRS * MOST_PAIRS;
    const int64_t last = scoring->num_classes - MOST_ROWS;
    for (int64_t i = 0; i < num; i += MOST_ROWS) {
        const int64_t from = start + i < last ? start + i : last;
        const uint16_t *rows = scoring->embeddings + from * dim;
        float sums[MOST_ROWS][2];
        fetch(scoring, next + i, MOST_ROWS);
        _tile_zero(SUMS);
        for (int64_t p = 0; p < whole; p += MOST_PAIRS) {
            _tile_loadd(LEFT, rows + 2 * p, 2 * dim);
            _tile_loadd(RIGHT, scoring->halves + 4 * p, 8);
            _tile_dpbf16ps(SUMS, LEFT, RIGHT);
        }
        if (2 * whole < dim) {
            _tile_loadd(LEFT_REST, rows + 2 * whole, 2 * dim);
            _tile_loadd(RIGHT_REST, scoring->halves + 4 * whole, 8);
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

static void score(const struct scoring *scoring, int64_t start, int64_t num, float *scores, int64_t next) {
    if (scoring->is_tiled)
        score_tiled(scoring, start, num, scores, next);
    else
        score_in_lanes(scoring, start, num, scores, next);
}
