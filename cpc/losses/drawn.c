/* The three products of a loss with drawn negatives: what `SharedTiles` does with every candidate, done with the drawn
   ones alone, in float32 and float64. */

#include <stdint.h>
#include <string.h>

#define REAL float
#define NAMED(name) name##_float32
#include "drawn_products.h"
#undef REAL
#undef NAMED

#define REAL double
#define NAMED(name) name##_float64
#include "drawn_products.h"
