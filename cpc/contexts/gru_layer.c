/* The recurrence of a layer of gated recurrent units, forward and backward, in float32 and float64: all that waits for
   the step before. What does not is a few large products in gru_layer.py. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define VECTOR_BYTES 64
#else
#define VECTOR_BYTES 32
#endif

/* exp(x) within 2e-7 of itself for |x| <= 87, cut off there, and nan of nan: compilers make no vectors of calls to expf. */
static inline float exponential(float of) {
    const float x = of < -87 ? -87 : of > 87 ? 87 : of;
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
    return of == of ? y : of;
}

static inline float sigmoid_float32(float x) { return 1 / (1 + exponential(-x)); }

static inline float hyperbolic_tangent_float32(float x) {
    const float size = fabsf(x), e = exponential(-2 * size), square = x * x;
    const float far = copysignf((1 - e) / (1 + e), x); /* loses digits near 0, where the series has them */
    const float series =
        1 + square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315 + square * (62.0f / 2835))));
    return size < 0.3f ? x * series : far;
}

static inline double sigmoid_float64(double x) { return 1 / (1 + exp(-x)); }
static inline double hyperbolic_tangent_float64(double x) { return tanh(x); }

#define REAL float
#define NAMED(name) name##_float32
#include "gru_layer_steps.h"
#undef REAL
#undef NAMED

#define REAL double
#define NAMED(name) name##_float64
#include "gru_layer_steps.h"
