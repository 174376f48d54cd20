/* Walks of `KernelTree`, one query after the other: what kernel_tree.py does in torch, without temporaries.

   M queries, F features, L levels below the root, m draws, T targets and E excluded classes per query. The tree is a
   heap: the root is node 1, the children of node v are 2 v and 2 v + 1, class i is node 2^L + i. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define FLOATS_PER_LINE 16

struct tree {
    const float *nodes; /* [2^(L + 1), F] */
    int64_t num_features, num_levels, num_classes;
    double uniform_share;
};

static int64_t num_classes_below(const struct tree *tree, int64_t node, int64_t level) {
    const int64_t width = (int64_t)1 << (tree->num_levels - level);
    const int64_t num = tree->num_classes - (node - ((int64_t)1 << level)) * width;
    return num < 0 ? 0 : num > width ? width : num;
}

/* The left child's share of two weights; where there are none, of the counts. */
static double share_of_left(double left, double right, int64_t num_left, int64_t num_right) {
    if (left + right > 0) return left / (left + right);
    const int64_t num = num_left + num_right;
    return num > 0 ? (double)num_left / (double)num : 0;
}

/* The same of a node's children, on this level, by their masses. */
static double branch(const struct tree *tree, const float *features, int64_t parent, int64_t level) {
    const int64_t num_features = tree->num_features;
    const float *left = tree->nodes + 2 * parent * num_features, *right = left + num_features;
    float left_mass = 0, right_mass = 0;
#pragma omp simd reduction(+ : left_mass, right_mass)
    for (int64_t f = 0; f < num_features; f++) {
        left_mass += features[f] * left[f];
        right_mass += features[f] * right[f];
    }
    return share_of_left(left_mass > 0 ? left_mass : 0, right_mass > 0 ? right_mass : 0,
                         num_classes_below(tree, 2 * parent, level), num_classes_below(tree, 2 * parent + 1, level));
}

static void fetch_children(const struct tree *tree, int64_t parent) {
    const float *children = tree->nodes + 2 * parent * tree->num_features;
    for (int64_t f = 0; f < 2 * tree->num_features; f += FLOATS_PER_LINE) __builtin_prefetch(children + f);
}

/* What share of the mass of each node on the way up from a class is the class's: 1 first, q of the tree last. */
static void walk_up(const struct tree *tree, const float *features, int64_t id, double *shares) {
    int64_t node = ((int64_t)1 << tree->num_levels) + id;
    shares[0] = 1;
    for (int64_t above = 1; above <= tree->num_levels; above++, node /= 2) {
        if (node > 3) fetch_children(tree, node / 4);
        const double left = branch(tree, features, node / 2, tree->num_levels - above + 1);
        shares[above] = shares[above - 1] * (node % 2 ? 1 - left : left);
    }
}

static double mixed(const struct tree *tree, double probability) {
    return (1 - tree->uniform_share) * probability + tree->uniform_share / (double)tree->num_classes;
}

/* A uniform draw from the classes that are not excluded: the r-th of them, none rejected. */
static int64_t uniform_except(double uniform, int64_t num_classes, const int64_t *excluded, int64_t num_excluded) {
    const int64_t rank = (int64_t)(uniform * (double)(num_classes - num_excluded));
    int64_t num_passed = 0;
    for (int64_t e = 0; e < num_excluded; e++) num_passed += rank >= excluded[e] - e;
    return rank + num_passed;
}

/* Whether an id is neither a class nor -1. */
static int is_outside(const int64_t *ids, int64_t num, int64_t num_classes) {
    for (int64_t i = 0; i < num; i++)
        if (ids[i] < -1 || ids[i] >= num_classes) return 1;
    return 0;
}

/* Walks for the queries from `first` on, up to `end`. Excluded classes come in ascending order, each once, after any
   number of -1; `uniform` is [L + 2, M, m]. Returns 0, or 1 without any draw where an id is not one of a class or there
   is no memory. */
int64_t kernel_tree_draw(int64_t first, int64_t end, int64_t num_queries, int64_t num_features, int64_t num_levels,
                         int64_t num_classes, int64_t num, int64_t num_targets, int64_t num_columns,
                         double uniform_share, const float *nodes, const float *features, const int64_t *targets,
                         const int64_t *excluded, const double *uniform, int64_t *ids, double *log_q,
                         double *log_q_targets) {
    const struct tree tree = {nodes, num_features, num_levels, num_classes, uniform_share};
    const int64_t num_above = num_levels + 1, stride = num_queries * num, num_rows = end - first;
    if (num_classes > (int64_t)1 << num_levels ||
        is_outside(targets + first * num_targets, num_rows * num_targets, num_classes) ||
        is_outside(excluded + first * num_columns, num_rows * num_columns, num_classes))
        return 1;
    double *const shares = malloc((size_t)(num_columns + 1) * (size_t)num_above * sizeof(double));
    if (!shares) return 1;
    double *const of_target = shares + num_columns * num_above;

    for (int64_t q = first; q < end; q++) {
        const float *of_query = features + q * num_features;
        const int64_t *out = excluded + q * num_columns;
        int64_t num_excluded = num_columns;
        while (num_excluded > 0 && *out < 0) out++, num_excluded--;
        double q_excluded = 0;
        for (int64_t e = 0; e < num_excluded; e++) {
            walk_up(&tree, of_query, out[e], shares + e * num_above);
            q_excluded += mixed(&tree, shares[e * num_above + num_levels]);
        }
        const double log_left = log1p(-q_excluded);
        for (int64_t t = 0; t < num_targets; t++) {
            const int64_t target = targets[q * num_targets + t];
            if (target >= 0) walk_up(&tree, of_query, target, of_target);
            log_q_targets[q * num_targets + t] = target < 0 ? 0 : log(mixed(&tree, of_target[num_levels])) - log_left;
        }

        /* Which draws are uniform: of both parts of the mixture, what is not excluded is left. */
        const double uniform_left = uniform_share * (double)(num_classes - num_excluded) / (double)num_classes;
        const double *chance = uniform + q * num; /* of the first draw; the next level's are `stride` further */
        int64_t *node = ids + q * num;
        double *probability = log_q + q * num;
        for (int64_t r = 0; r < num; r++) node[r] = 1, probability[r] = 1;
        for (int64_t level = 1; level <= num_levels; level++) {
            const int64_t below = num_levels - level;
            for (int64_t r = 0; r < num; r++) {
                if (r + 1 < num) fetch_children(&tree, node[r + 1]);
                const double left = branch(&tree, of_query, node[r], level);
                int64_t is_right;
                if (chance[r] * (1 - q_excluded) < uniform_left) {
                    is_right = uniform_except(chance[stride + r], num_classes, out, num_excluded) >> below & 1;
                } else {
                    double kept[2] = {1, 1};
                    int64_t num_left[2];
                    for (int c = 0; c < 2; c++) num_left[c] = num_classes_below(&tree, 2 * node[r] + c, level);
                    for (int64_t e = 0; e < num_excluded; e++) {
                        const int64_t c = ((((int64_t)1 << num_levels) + out[e]) >> below) - 2 * node[r];
                        if (c != 0 && c != 1) continue;
                        kept[c] -= shares[e * num_above + below];
                        num_left[c]--;
                    }
                    for (int c = 0; c < 2; c++) kept[c] = kept[c] > 0 && num_left[c] > 0 ? kept[c] : 0;
                    is_right = chance[(level + 1) * stride + r] >=
                               share_of_left(left * kept[0], (1 - left) * kept[1], num_left[0], num_left[1]);
                }
                probability[r] *= is_right ? 1 - left : left;
                node[r] = 2 * node[r] + is_right;
            }
        }
        for (int64_t r = 0; r < num; r++) {
            node[r] -= (int64_t)1 << num_levels;
            log_q[q * num + r] = log(mixed(&tree, probability[r])) - log_left;
        }
    }
    free(shares);
    return 0;
}
