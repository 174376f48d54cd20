/* Includes the file IN_BOTH for float32 and for float64; it uses REAL for numbers and NAMED(...) for functions. */

#define REAL float
#define NAMED(name) name##_float32
#include IN_BOTH
#undef REAL
#undef NAMED

#define REAL double
#define NAMED(name) name##_float64
#include IN_BOTH
