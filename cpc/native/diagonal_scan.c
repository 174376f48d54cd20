/* The recurrence of a diagonal state-space layer, forward and backward, in float32 and float64. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#define VECTOR_BYTES 64
#else
#define VECTOR_BYTES 32
#endif
#define CHUNK 64 /* steps whose states fit into the fastest cache; diagonal_scan.py reads this line */

#define IN_BOTH "diagonal_scan_steps.h"
#include "compiled_in_both.h"
