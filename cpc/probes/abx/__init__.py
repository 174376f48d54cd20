"""ABX tests: is X, said to be the same phone as A, closer to A than to B (Schatz et al. 2013)?

`files.py` and `spans.py` find the frames of items, `alignment.py` measures how far two items are apart, `cells.py` says
which are compared, `errors.py` counts and averages, `protocol.py` puts these together, `command.py` is `cpc abx`.
"""
