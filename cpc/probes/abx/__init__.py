"""ABX tests: is X, which has the same label as A, closer to A than to B (Schatz et al. 2013)?

`items.py` finds the frames of items, `alignment.py` measures the distance of two items, `errors.py` lists the triplets,
counts and averages errors, `command.py` is `cpc abx`.
"""

from cpc.probes.abx.errors import ABXError, ABXProtocol, abx_errors
from cpc.probes.abx.items import Spans, frames_of_items

__all__ = ["ABXError", "ABXProtocol", "Spans", "abx_errors", "frames_of_items"]
