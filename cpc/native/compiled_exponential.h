/* exp(x) that compilers make vectors of, as they do not of calls to expf. */

#include <stdint.h>
#include <string.h>

/* Within 2e-7 of itself for |x| <= 87, cut off there; nan of nan. */
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
