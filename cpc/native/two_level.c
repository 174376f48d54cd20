/* Sampling of `TwoLevel`, one query after the other, as in two_level.py, but without temporary tensors.

   M queries, B blocks, S statistics of a block, D dims, m sampled candidates, T targets per query. Positions are
   indices of classes in block order. */

#include <math.h>
#include <stdlib.h>

#include "compiled_exponential.h"
#include "two_level_products.h"

#define CHUNK 64

static float maximum(const float *x, int64_t num) {
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

/* The first index whose cumulative weight exceeds `below`; never an index of weight zero. */
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

/* exp(score - maximum) of the classes from `start` on; returns the maximum of the scores. */
static float softmax_weights(const struct scoring *scoring, int64_t start, int64_t num, float *weights, int64_t next) {
    score(scoring, start, num, weights, next);
    const float highest = maximum(weights, num);
#pragma omp simd
    for (int64_t i = 0; i < num; i++) weights[i] = exponential(weights[i] - highest);
    return highest;
}

/* Replaces the masses of blocks by their probabilities Q; sizes are the numbers of classes of the blocks. */
static void mix(float *masses, const float *sizes, int64_t num_blocks, int64_t is_log, double uniform_share,
                double num_classes) {
    if (is_log) {
        const float highest = maximum(masses, num_blocks);
#pragma omp simd
        for (int64_t b = 0; b < num_blocks; b++) masses[b] = exponential(masses[b] - highest);
    }
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t b = 0; b < num_blocks; b++) { /* the mass of an empty block may be nan */
        masses[b] = sizes[b] > 0 && masses[b] > 0 ? masses[b] : 0;
        total += masses[b];
    }
    const float mass_factor = total > 0 ? (float)((1 - uniform_share) / total) : 0;
    const float size_factor = (float)((total > 0 ? uniform_share : 1) / num_classes);
#pragma omp simd
    for (int64_t b = 0; b < num_blocks; b++) masses[b] = mass_factor * masses[b] + size_factor * sizes[b];
}

/* Whether blocks do not divide the classes, a target is not a class of the tables, a query is not finite, or its length
   differs from 1 by more than `tolerance`. */
static int is_invalid(const float *queries, int64_t num_queries, int64_t dim, double tolerance, const int64_t *targets,
                      int64_t num_targets, int64_t num_classes, int64_t num_blocks, const int64_t *offsets,
                      const int64_t *block_of, const int64_t *position_of) {
    if (num_classes < 1 || offsets[0] != 0 || offsets[num_blocks] != num_classes) return 1;
    for (int64_t b = 0; b < num_blocks; b++)
        if (offsets[b] > offsets[b + 1]) return 1;
    for (int64_t i = 0; i < num_queries * num_targets; i++) {
        if (targets[i] < -1 || targets[i] >= num_classes) return 1;
        if (targets[i] < 0) continue;
        const int64_t position = position_of[targets[i]];
        if (position < 0 || position >= num_classes) return 1;
        const int64_t block = block_of[position];
        if (block < 0 || block >= num_blocks || position < offsets[block] || position >= offsets[block + 1]) return 1;
    }
    for (int64_t q = 0; q < num_queries; q++) {
        float square = 0;
#pragma omp simd reduction(+ : square)
        for (int64_t k = 0; k < dim; k++) square += queries[q * dim + k] * queries[q * dim + k];
        if (!isfinite(square) || fabs(sqrt(square) - 1) > tolerance) return 1;
    }
    return 0;
}

struct sample {
    int64_t block, sample_index;
};

static int compare_blocks(const void *one, const void *other) {
    const int64_t a = ((const struct sample *)one)->block, b = ((const struct sample *)other)->block;
    return (a > b) - (a < b);
}

/* Samples for the queries from `first` to `end`. Returns 0, or 1 without sampling if the input is invalid or memory is
   missing. */
int64_t two_level_draw(int64_t first, int64_t end, int64_t num_queries, int64_t dim, int64_t num_blocks,
                       int64_t num_statistics, int64_t num, int64_t num_targets, int64_t num_classes, int64_t is_log,
                       int64_t is_excluding, double uniform_share, double temperature, double tolerance,
                       const float *queries, const float *factors, const uint16_t *statistics,
                       const uint16_t *embeddings, const int64_t *offsets, const int64_t *block_of,
                       const int64_t *id_of, const int64_t *position_of, const int64_t *targets, const double *uniform,
                       int64_t *ids, float *log_count, float *log_count_targets) {
    const int64_t num_tiles = (num_blocks + LANES - 1) / LANES, num_rows = end - first;
    if (is_invalid(queries + first * dim, num_rows, dim, tolerance, targets + first * num_targets, num_targets,
                   num_classes, num_blocks, offsets, block_of, position_of))
        return 1;
    const double log_num = log((double)num);
    const int64_t num_chunks = num_classes / CHUNK + 1, num_padded = num_rows + LANES;
    const int64_t parts[] = {num_padded * num_tiles * LANES, num_blocks, num_chunks, num_targets, dim, dim + 1,
                             num_classes, num_padded * (num_statistics + 1)};
    int64_t num_floats = 0;
    for (int p = 0; p < 8; p++) num_floats += parts[p];
    struct sample *const samples = malloc((size_t)num * sizeof *samples + (size_t)num_floats * sizeof(float));
    if (!samples) return 1;
    float *masses = (float *)(samples + num), *sizes = masses + parts[0], *chunks = sizes + parts[1];
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
            const int64_t position = position_of[target[t]], b = block_of[position], start = offsets[b];
            const int64_t size = offsets[b + 1] - start;
            const float highest = softmax_weights(&scoring, start, size, weights, start);
            const double sum = cumulate(weights, size, chunks);
            float own; /* computed again, because the weight may have underflowed */
            score(&scoring, position, 1, &own, position);
            log_count_targets[q * num_targets + t] = (float)(log_num + log(mass[b]) + own - highest - log(sum));
            int is_first = 1; /* target in its block */
            for (int64_t s = 0; s < t; s++) is_first &= target[s] < 0 || block_of[position_of[target[s]]] != b;
            for (int64_t s = 0; s < num_targets; s++)
                if (target[s] >= 0 && block_of[position_of[target[s]]] == b)
                    weights[position_of[target[s]] - start] = 0;
            if (is_first) kept[t] = (float)(cumulate(weights, size, chunks) / sum);
        }
        /* All targets have been read: now each block keeps the share of its mass that is not excluded. */
        for (int64_t t = 0; is_excluding && t < num_targets; t++)
            if (target[t] >= 0) mass[block_of[position_of[target[t]]]] *= kept[t];
        const double left = cumulate(mass, num_blocks, chunks);
        for (int64_t t = 0; t < num_targets; t++)
            if (target[t] >= 0) log_count_targets[q * num_targets + t] -= (float)log(left);

        for (int64_t r = 0; r < num; r++) {
            const int64_t b = pick(mass, num_blocks, chunks, uniform[q * num + r] * left);
            samples[r] = (struct sample){b, r};
        }
        qsort(samples, (size_t)num, sizeof *samples, compare_blocks); /* samples of one block share its weights */
        for (int64_t d = 0, end_of_block; d < num; d = end_of_block) {
            const int64_t b = samples[d].block, start = offsets[b], size = offsets[b + 1] - start;
            for (end_of_block = d; end_of_block < num && samples[end_of_block].block == b; end_of_block++) continue;
            const int64_t next = end_of_block < num ? samples[end_of_block].block : b;
            softmax_weights(&scoring, start, size, weights, offsets[next]);
            for (int64_t t = 0; is_excluding && t < num_targets; t++) {
                const int64_t i = target[t] < 0 ? -1 : position_of[target[t]] - start;
                if (i >= 0 && i < size) weights[i] = 0;
            }
            const double sum = cumulate(weights, size, chunks);
            for (int64_t sample = d; sample < end_of_block; sample++) {
                const int64_t r = q * num + samples[sample].sample_index;
                const int64_t i = pick(weights, size, chunks, uniform[num_queries * num + r] * sum);
                ids[r] = id_of[start + i];
                /* q: share of the block in the remaining mass, times share of i in the remaining weights */
                log_count[r] = (float)(log_num + log(mass[b] / left) + log(weights[i] / sum));
            }
        }
    }
    if (is_tiled) release_tiles();
    free(samples);
    return 0;
}
