/* The recurrence of a GRU layer, forward and backward, in float32 and float64: all computations that depend on the
   previous step. gru_layer.py computes the rest as a few large products. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "compiled_exponential.h"

#ifdef __AVX512F__
#define VECTOR_BYTES 64
#else
#define VECTOR_BYTES 32
#endif

static inline float sigmoid_float32(float x) { return 1 / (1 + exponential(-x)); }

static inline float hyperbolic_tangent_float32(float x) {
    const float size = fabsf(x), e = exponential(-2 * size), square = x * x;
    const float far = copysignf((1 - e) / (1 + e), x); /* inaccurate near 0, where the series is used */
    const float series =
        1 + square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315 + square * (62.0f / 2835))));
    return size < 0.3f ? x * series : far;
}

static inline double sigmoid_float64(double x) { return 1 / (1 + exp(-x)); }
static inline double hyperbolic_tangent_float64(double x) { return tanh(x); }

#define IN_BOTH "gru_layer_steps.h"
#include "compiled_in_both.h"
