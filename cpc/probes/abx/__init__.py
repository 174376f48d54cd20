"""ABX tests: is X, which has the same label as A, closer to A than to B (Schatz et al. 2013)?

`files.py` and `spans.py` find the frames of items, `alignment.py` measures the distance of two items, `cells.py` lists
the triplets, `errors.py` counts and averages errors, `protocol.py` combines these steps, `command.py` is `cpc abx`.
"""

from cpc.probes.abx.errors import ABXError
from cpc.probes.abx.protocol import ABXProtocol, abx_errors
from cpc.probes.abx.spans import Spans, frames_of_items

__all__ = ["ABXError", "ABXProtocol", "Spans", "abx_errors", "frames_of_items"]
