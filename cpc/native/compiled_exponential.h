/* exp(x) that compilers can vectorise, unlike calls to expf. */

#include <stdint.h>
#include <string.h>

/* The relative error is at most 2e-7; |x| is clipped to 87, and nan gives nan. */
static inline float exponential(float input) {
    const float x = input < -87 ? -87 : input > 87 ? 87 : input;
    float power = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 puts the rounded number into the last bits */
    int32_t exponent;
    memcpy(&exponent, &power, sizeof power);
    power -= 12582912.0f;
    const float r = x - power * 0.693359375f + power * 2.12194440e-4f; /* log 2 in two parts: |r| <= log(2) / 2 */
    float y = 1 + r * (1 + r * (1.0f / 2 + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    uint32_t bits;
    memcpy(&bits, &y, sizeof y);
    bits += (uint32_t)exponent << 23;
    memcpy(&y, &bits, sizeof y);
    return input == input ? y : input;
}
