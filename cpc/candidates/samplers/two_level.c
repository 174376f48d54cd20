/* Draws of `TwoLevel`, one query after the other: what two_level.py does in torch, without temporaries.

   M queries, B blocks, S statistics of a block, D dims, m draws, T targets per query; classes stand in block order
   ("places"). Statistics lie in tiles of 16 blocks [B / 16, S, 16]; they and the classes are in bfloat16. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define QUERIES 10 /* that meet a tile at once, as many sums as registers hold */
#define CHUNK 64
#define HALVES_PER_LINE 32
#define AHEAD (64 * HALVES_PER_LINE) /* 4 KiB: processors fetch no further than a page by themselves */

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t lane_bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t lane_halves __attribute__((vector_size(2 * LANES)));

static inline float from_bfloat16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline lanes load(const uint16_t *from) {
    lane_halves halves;
    memcpy(&halves, from, sizeof halves);
    return (lanes)(__builtin_convertvector(halves, lane_bits) << 16);
}

/* Products of all queries' factors with all blocks' statistics, [M, stride]; `packed` holds the factors of ten queries
   side by side. */
static void multiply(int64_t num_queries, int64_t num_tiles, int64_t num_statistics, const float *factors,
                     const uint16_t *statistics, float *packed, float *products) {
    const int64_t stride = num_tiles * LANES;
    for (int64_t first = 0; first < num_queries; first += QUERIES)
        for (int64_t s = 0; s < num_statistics; s++)
            for (int64_t q = first; q < first + QUERIES; q++)
                packed[first * num_statistics + s * QUERIES + q - first] =
                    q < num_queries ? factors[q * num_statistics + s] : 0;
    for (int64_t t = 0; t < num_tiles; t++) {
        for (int64_t first = 0; first < num_queries; first += QUERIES) {
            const uint16_t *tile = statistics + t * num_statistics * LANES;
            const float *factor = packed + first * num_statistics;
            lanes sums[QUERIES] = {0};
            for (int64_t s = 0; s < num_statistics; s++, factor += QUERIES, tile += LANES) {
                __builtin_prefetch(tile + AHEAD);
                const lanes statistic = load(tile);
#pragma GCC unroll 10
                for (int q = 0; q < QUERIES; q++) sums[q] += statistic * factor[q];
            }
            for (int64_t q = first; q < num_queries && q < first + QUERIES; q++)
                memcpy(products + q * stride + t * LANES, &sums[q - first], sizeof(lanes));
        }
    }
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

/* exp(score) of a block's classes over that of the highest, whose score is returned. Meanwhile the rows at `next` are
   fetched: blocks lie anywhere in memory, and waiting for them would take most of the time. */
static float softmax_weights(const float *query, const uint16_t *rows, int64_t num, int64_t dim, float *weights,
                             const uint16_t *next) {
    for (int64_t i = 0; i < num; i++) {
        const uint16_t *row = rows + i * dim;
        for (int64_t k = 0; k < dim; k += HALVES_PER_LINE) __builtin_prefetch(next + i * dim + k);
        float score = 0;
#pragma omp simd reduction(+ : score)
        for (int64_t k = 0; k < dim; k++) score += query[k] * from_bfloat16(row[k]);
        weights[i] = score;
    }
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
    for (int64_t b = 0; b < num_blocks; b++) {
        masses[b] = sizes[b] > 0 && masses[b] > 0 ? masses[b] : 0;
        total += masses[b];
    }
    const float of_mass = total > 0 ? (float)((1 - uniform_share) / total) : 0;
    const float of_size = (float)((total > 0 ? uniform_share : 1) / num_classes);
#pragma omp simd
    for (int64_t b = 0; b < num_blocks; b++) masses[b] = of_mass * masses[b] + of_size * sizes[b];
}

/* Whether a target is no class, or a query's length is further from 1 than `tolerance`. */
static int is_refused(const float *queries, int64_t num_queries, int64_t dim, double tolerance, const int64_t *targets,
                      int64_t num_targets, int64_t num_classes) {
    for (int64_t i = 0; i < num_queries * num_targets; i++)
        if (targets[i] < -1 || targets[i] >= num_classes) return 1;
    for (int64_t q = 0; q < num_queries; q++) {
        float square = 0;
#pragma omp simd reduction(+ : square)
        for (int64_t k = 0; k < dim; k++) square += queries[q * dim + k] * queries[q * dim + k];
        if (!(fabs(sqrt(square) - 1) <= tolerance)) return 1; /* also what is no number */
    }
    return 0;
}

/* Returns 0, or 1 without any draw: it was refused, or there is no memory. */
int64_t two_level_draw(int64_t num_queries, int64_t dim, int64_t num_blocks, int64_t num_statistics, int64_t num,
                       int64_t num_targets, int64_t is_log, int64_t is_excluding, double uniform_share,
                       double temperature, double tolerance, const float *queries, const float *factors,
                       const uint16_t *statistics, const uint16_t *embeddings, const int64_t *offsets,
                       const int64_t *block_of, const int64_t *id_of, const int64_t *place_of, const int64_t *targets,
                       const double *uniform, int64_t *ids, float *log_count, float *log_count_targets) {
    const int64_t num_tiles = (num_blocks + LANES - 1) / LANES, num_classes = offsets[num_blocks];
    if (is_refused(queries, num_queries, dim, tolerance, targets, num_targets, num_classes)) return 1;
    const double log_num = log((double)num);
    const int64_t num_chunks = num_classes / CHUNK + 1;
    const int64_t parts[] = {num_queries * num_tiles * LANES, num_blocks, num_chunks, num_targets, dim, num_classes,
                             (num_queries + QUERIES) * num_statistics};
    int64_t num_floats = 0;
    for (int p = 0; p < 7; p++) num_floats += parts[p];
    float *const masses = malloc((size_t)num_floats * sizeof(float));
    if (!masses) return 1;
    float *sizes = masses + parts[0], *chunks = sizes + parts[1], *kept = chunks + parts[2], *query = kept + parts[3];
    float *weights = query + parts[4], *packed = weights + parts[5];

    for (int64_t b = 0; b < num_blocks; b++) sizes[b] = (float)(offsets[b + 1] - offsets[b]);
    multiply(num_queries, num_tiles, num_statistics, factors, statistics, packed, masses);
    for (int64_t q = 0; q < num_queries; q++) {
        const int64_t *target = targets + q * num_targets;
        float *mass = masses + q * num_tiles * LANES;
        for (int64_t k = 0; k < dim; k++) query[k] = queries[q * dim + k] / (float)temperature;
        mix(mass, sizes, num_blocks, is_log, uniform_share, (double)num_classes);

        for (int64_t t = 0; t < num_targets; t++) {
            kept[t] = 1;
            log_count_targets[q * num_targets + t] = INFINITY;
            if (target[t] < 0) continue;
            const int64_t place = place_of[target[t]], b = block_of[place], start = offsets[b];
            const int64_t size = offsets[b + 1] - start;
            const uint16_t *rows = embeddings + start * dim, *row = embeddings + place * dim;
            const float highest = softmax_weights(query, rows, size, dim, weights, rows);
            const double sum = cumulate(weights, size, chunks);
            float score = 0; /* again: its weight may have been too small for a float */
            for (int64_t k = 0; k < dim; k++) score += query[k] * from_bfloat16(row[k]);
            log_count_targets[q * num_targets + t] = (float)(log_num + log(mass[b]) + score - highest - log(sum));
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

        int64_t *blocks = ids + q * num; /* until the class is known */
        for (int64_t r = 0; r < num; r++) blocks[r] = pick(mass, num_blocks, chunks, uniform[q * num + r] * left);
        for (int64_t r = 0; r < num; r++) {
            const int64_t b = blocks[r], start = offsets[b], size = offsets[b + 1] - start;
            const uint16_t *next = embeddings + offsets[r + 1 < num ? blocks[r + 1] : b] * dim;
            softmax_weights(query, embeddings + start * dim, size, dim, weights, next);
            for (int64_t t = 0; is_excluding && t < num_targets; t++) {
                const int64_t i = target[t] < 0 ? -1 : place_of[target[t]] - start;
                if (i >= 0 && i < size) weights[i] = 0;
            }
            const double sum = cumulate(weights, size, chunks);
            const int64_t i = pick(weights, size, chunks, uniform[(num_queries + q) * num + r] * sum);
            ids[q * num + r] = id_of[start + i];
            /* mass[b] holds the block's share of what is left; of it, i takes its share of what is not excluded. */
            log_count[q * num + r] = (float)(log_num + log(mass[b] / left) + log(weights[i] / sum));
        }
    }
    free(masses);
    return 0;
}
