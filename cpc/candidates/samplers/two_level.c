/* Draws of `TwoLevel`, one query after the other: what two_level.py does in torch, without temporaries.

   M queries, B blocks, D dims, m draws, T targets per query; classes stand in block order ("places"). */

#include <math.h>
#include <stdint.h>

#define CHUNK 64
#define FLOATS_PER_LINE 16

/* exp(score) of a block's classes over that of the highest; returns their sum.
   Meanwhile the rows at `next` are fetched: blocks lie anywhere in memory, and waiting for them took most of the time. */
static double softmax_weights(const float *query, const float *rows, int64_t num, int64_t dim, float *weights,
                              const float *next) {
    float highest = -INFINITY;
    for (int64_t i = 0; i < num; i++) {
        const float *row = rows + i * dim;
        for (int64_t k = 0; k < dim; k += FLOATS_PER_LINE) __builtin_prefetch(next + i * dim + k);
        float score = 0;
#pragma omp simd reduction(+ : score)
        for (int64_t k = 0; k < dim; k++) score += query[k] * row[k];
        weights[i] = score;
        highest = fmaxf(highest, score);
    }
    double sum = 0;
    for (int64_t i = 0; i < num; i++) sum += weights[i] = expf(weights[i] - highest);
    return sum;
}

/* Sets the weights of targets to zero; returns the sum of the others. */
static double without(const int64_t *targets, int64_t num_targets, const int64_t *place_of, int64_t start, int64_t num,
                      float *weights) {
    for (int64_t t = 0; t < num_targets; t++) {
        const int64_t i = targets[t] < 0 ? -1 : place_of[targets[t]] - start;
        if (i >= 0 && i < num) weights[i] = 0;
    }
    double sum = 0;
    for (int64_t i = 0; i < num; i++) sum += weights[i];
    return sum;
}

/* The first place whose cumulated weight exceeds `below`, never one of weight zero. */
static int64_t pick(const float *weights, int64_t num, double below) {
    double sum = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < num; i++) {
        if (weights[i] <= 0) continue;
        sum += weights[i];
        last = i;
        if (sum > below) return i;
    }
    return last; /* rounding */
}

void two_level_draw(int64_t num_queries, int64_t dim, int64_t num_blocks, int64_t num, int64_t num_targets,
                    const float *queries, const float *embeddings, const int64_t *offsets, const int64_t *block_of,
                    const int64_t *id_of, const int64_t *place_of, const float *masses, const int64_t *targets,
                    const double *uniform, int64_t is_excluding, double uniform_share, float *scratch, int64_t *ids,
                    float *log_count, float *log_count_targets) {
    float *weights = scratch, *chunks = scratch + num_blocks, *sizes = chunks + num_blocks, *scores = sizes + num_blocks;
    const double num_classes = (double)offsets[num_blocks], log_num = log((double)num);
    const int64_t num_chunks = (num_blocks + CHUNK - 1) / CHUNK;
    for (int64_t b = 0; b < num_blocks; b++) sizes[b] = (float)(offsets[b + 1] - offsets[b]);
    for (int64_t q = 0; q < num_queries; q++) {
        const float *query = queries + q * dim, *mass = masses + q * num_blocks;
        const int64_t *target = targets + q * num_targets;

        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t b = 0; b < num_blocks; b++) total += mass[b] > 0 && sizes[b] > 0 ? mass[b] : 0;
        const float of_mass = total > 0 ? (float)((1 - uniform_share) / total) : 0;
        const float of_size = (float)((total > 0 ? uniform_share : 1) / num_classes);
        for (int64_t b = 0; b < num_blocks; b++)
            weights[b] = sizes[b] > 0 ? of_mass * (mass[b] > 0 ? mass[b] : 0) + of_size * sizes[b] : 0;

        for (int64_t t = 0; t < num_targets; t++) {
            if (target[t] < 0) continue;
            const int64_t b = block_of[place_of[target[t]]], start = offsets[b], size = offsets[b + 1] - start;
            const float *rows = embeddings + start * dim;
            const double sum = softmax_weights(query, rows, size, dim, scores, rows);
            const float share = scores[place_of[target[t]] - start] / (float)sum;
            log_count_targets[q * num_targets + t] = (float)log_num + logf(weights[b]) + logf(share);
        }
        /* After all targets have read the weights: a block keeps the share of its mass that is not excluded. */
        for (int64_t t = 0; is_excluding && t < num_targets; t++) {
            if (target[t] < 0) continue;
            const int64_t b = block_of[place_of[target[t]]], start = offsets[b], size = offsets[b + 1] - start;
            int is_done = 0;
            for (int64_t s = 0; s < t; s++) is_done |= target[s] >= 0 && block_of[place_of[target[s]]] == b;
            if (is_done) continue;
            const float *rows = embeddings + start * dim;
            const double sum = softmax_weights(query, rows, size, dim, scores, rows);
            weights[b] *= (float)(without(target, num_targets, place_of, start, size, scores) / sum);
        }
        double left = 0;
        for (int64_t c = 0; c < num_chunks; c++) {
            const int64_t start = c * CHUNK, end = start + CHUNK < num_blocks ? start + CHUNK : num_blocks;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t b = start; b < end; b++) sum += weights[b];
            chunks[c] = sum;
            left += sum;
        }
        for (int64_t t = 0; t < num_targets; t++)
            if (target[t] >= 0) log_count_targets[q * num_targets + t] -= (float)log(left);

        int64_t *blocks = ids + q * num; /* until the class is known */
        for (int64_t r = 0; r < num; r++) {
            double below = uniform[q * num + r] * left;
            int64_t c = 0;
            while (c + 1 < num_chunks && below >= chunks[c]) below -= chunks[c++];
            while (c > 0 && chunks[c] <= 0) c--; /* rounding */
            const int64_t first = c * CHUNK, in_chunk = first + CHUNK < num_blocks ? CHUNK : num_blocks - first;
            blocks[r] = first + pick(weights + first, in_chunk, below);
        }
        for (int64_t r = 0; r < num; r++) {
            const int64_t b = blocks[r], start = offsets[b], size = offsets[b + 1] - start;
            const float *next = embeddings + offsets[r + 1 < num ? blocks[r + 1] : b] * dim;
            double kept = softmax_weights(query, embeddings + start * dim, size, dim, scores, next);
            if (is_excluding) kept = without(target, num_targets, place_of, start, size, scores);
            const int64_t i = pick(scores, size, uniform[(num_queries + q) * num + r] * kept);
            ids[q * num + r] = id_of[start + i];
            /* weights[b] holds the block's share of what is left; of it, i takes its share of what is kept. */
            log_count[q * num + r] = (float)(log_num + log(weights[b] / left) + log(scores[i] / kept));
        }
    }
}
