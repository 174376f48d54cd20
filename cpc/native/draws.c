/* `draw_negatives` of draws.py in one pass over the negatives; see that file for keys, rows and positions. */

#include <stdint.h>

/* The function `mix` of splitmix64.py. */
static inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* first [M], num_eligible [M] and behind [M] of each row, and members [P], as in `NegativePool`; drawn [M, R]. Returns
   1 if the pool of a row is not inside of `members`. */
int64_t draw(int64_t num_threads, int64_t num_rows, int64_t num_draws, int64_t num_members, int64_t num_rows_before,
             int64_t key, const int64_t *first, const int64_t *num_eligible, const int64_t *behind,
             const int64_t *members, int64_t *drawn) {
    int is_outside = 0;
#pragma omp parallel for num_threads(num_threads) reduction(| : is_outside)
    for (int64_t m = 0; m < num_rows; m++) {
        const int64_t left = num_members - (behind[m] < num_eligible[m]); /* members that row m may draw from */
        if (num_eligible[m] < 1 || num_eligible[m] > left || first[m] < 0 || first[m] > left - num_eligible[m]) {
            is_outside = 1;
            continue;
        }
        for (int64_t r = 0; r < num_draws; r++) {
            const uint64_t number = (uint64_t)((num_rows_before + m) * num_draws + r);
            const uint64_t bits = mix((uint64_t)key + number * 0x9E3779B97F4A7C15u);
            int64_t position = (int64_t)((double)(bits >> 11) * 0x1p-53 * (double)num_eligible[m]);
            position += position >= behind[m];
            drawn[m * num_draws + r] = members[first[m] + position];
        }
    }
    return is_outside;
}
