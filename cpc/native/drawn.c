/* The three products of a loss with sampled negatives, in float32 and float64: `SharedTiles` computes them with all
   candidates, these functions only with the sampled ones. */

#include <stdint.h>
#include <string.h>

#define IN_BOTH "drawn_products.h"
#include "compiled_in_both.h"
