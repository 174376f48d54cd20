"""ABX tests: is X, said to be the same phone as A, closer to A than to B (Schatz et al. 2013)?

`files.py` and `spans.py` find the frames of items, `alignment.py` measures how far two items are apart, `cells.py` says
which are compared, `errors.py` counts and averages, `protocol.py` puts these together, `command.py` is `cpc abx`.
"""

from cpc.probes.abx.errors import ABXError
from cpc.probes.abx.protocol import ABXProtocol, abx_errors
from cpc.probes.abx.spans import Spans, frames_of_items

__all__ = ["ABXError", "ABXProtocol", "Spans", "abx_errors", "frames_of_items"]
