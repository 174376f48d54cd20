/* The three products of a loss with drawn negatives: what `SharedTiles` does with every candidate, done with the drawn
   ones alone, in float32 and float64. */

#include <stdint.h>
#include <string.h>

#define IN_BOTH "drawn_products.h"
#include "compiled_in_both.h"
