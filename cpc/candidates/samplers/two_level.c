/* Draws of `TwoLevel`, one query after the other: what two_level.py does in torch, without temporaries.

   M queries, B blocks, D dims, m draws, T targets per query; classes stand in block order ("places"). */

#include <math.h>
#include <stdint.h>

#define CHUNK 64

/* exp(score) of a block's classes over that of the highest; returns their sum. */
static double softmax_weights(const float *query, const float *rows, int64_t num, int64_t dim, float *weights) {
    float highest = -INFINITY;
    for (int64_t i = 0; i < num; i++) {
        const float *row = rows + i * dim;
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

/* Sets the weights of excluded places to zero; returns the sum of the others. */
static double without(const int64_t *excluded, int64_t num_excluded, int64_t start, int64_t num, float *weights) {
    for (int64_t e = 0; e < num_excluded; e++)
        if (excluded[e] >= start && excluded[e] < start + num) weights[excluded[e] - start] = 0;
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
                    const float *masses, const int64_t *targets, const int64_t *excluded, const double *uniform,
                    int64_t num_excluded, double uniform_share,
                    float *scratch, double *chunks, int64_t *places, float *log_q, float *log_q_targets) {
    float *weights = scratch, *scores = scratch + num_blocks;
    const double num_classes = (double)offsets[num_blocks];
    const int64_t num_chunks = (num_blocks + CHUNK - 1) / CHUNK;
    for (int64_t q = 0; q < num_queries; q++) {
        const float *query = queries + q * dim, *mass = masses + q * num_blocks;
        const int64_t *own = targets + q * num_targets, *out = excluded + q * num_excluded;

        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t b = 0; b < num_blocks; b++) total += mass[b] > 0 ? mass[b] : 0;
        const float of_mass = total > 0 ? (float)((1 - uniform_share) / total) : 0;
        const float of_count = (float)((total > 0 ? uniform_share : 1) / num_classes);
        for (int64_t b = 0; b < num_blocks; b++) {
            const float size = (float)(offsets[b + 1] - offsets[b]);
            weights[b] = size > 0 ? of_mass * (mass[b] > 0 ? mass[b] : 0) + of_count * size : 0;
        }
        for (int64_t t = 0; t < num_targets; t++) {
            if (own[t] < 0) continue;
            const int64_t b = block_of[own[t]], start = offsets[b], size = offsets[b + 1] - start;
            const double all = softmax_weights(query, embeddings + start * dim, size, dim, scores);
            log_q_targets[q * num_targets + t] = logf(weights[b]) + logf(scores[own[t] - start]) - (float)log(all);
        }
        /* After all targets have read the weights: a block keeps the share of its mass that is not excluded. */
        for (int64_t e = 0; e < num_excluded; e++) {
            if (out[e] < 0) continue;
            const int64_t b = block_of[out[e]], start = offsets[b], size = offsets[b + 1] - start;
            int is_done = 0;
            for (int64_t s = 0; s < e; s++) is_done |= out[s] >= 0 && block_of[out[s]] == b;
            if (is_done) continue;
            const double all = softmax_weights(query, embeddings + start * dim, size, dim, scores);
            weights[b] = (float)(weights[b] * (without(out, num_excluded, start, size, scores) / all));
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
        for (int64_t t = 0; t < num_targets; t++) log_q_targets[q * num_targets + t] -= (float)log(left);

        for (int64_t r = 0; r < num; r++) {
            const int64_t at = q * num + r;
            double below = uniform[at] * left;
            int64_t c = 0;
            while (c + 1 < num_chunks && below >= chunks[c]) below -= chunks[c++];
            while (c > 0 && chunks[c] <= 0) c--; /* rounding */
            const int64_t first = c * CHUNK, in_chunk = first + CHUNK < num_blocks ? CHUNK : num_blocks - first;
            const int64_t b = first + pick(weights + first, in_chunk, below);

            const int64_t start = offsets[b], size = offsets[b + 1] - start;
            softmax_weights(query, embeddings + start * dim, size, dim, scores);
            const double kept = without(out, num_excluded, start, size, scores);
            const int64_t i = pick(scores, size, uniform[num_queries * num + at] * kept);
            places[at] = start + i;
            /* weights[b] holds the block's share of what is left; of it, i takes its share of what is kept. */
            log_q[at] = logf(weights[b]) + logf(scores[i]) - (float)log(kept) - (float)log(left);
        }
    }
}
