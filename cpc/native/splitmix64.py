"""Constants of SplitMix64 (Steele, Lea and Flood 2014), a generator whose n-th number is a function of key and n.

The n-th number is mix(key + n * INCREMENT), with arithmetic modulo 2^64. For each (shift, factor) in ROUNDS, mix
replaces x by (x ^ x >> shift) * factor; its result is x ^ x >> LAST_SHIFT. Shifts fill with zeros. draws.c has the same
constants.
"""

INCREMENT = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
