"""The frames of ABX items."""

from typing import NamedTuple

import numpy as np

from cpc.data.audio.alignments import FrameTimes
from cpc.data.audio.item_files import Items
from cpc.probes.store import FeatureStore


class Spans(NamedTuple):
    """The frames of n items in a store.

    Attributes:
        starts: `[n]` int64 first frame of each item.
        lengths: `[n]` int64 number of frames of each item; 0 if no frame's centre is in the item.
    """

    starts: np.ndarray
    lengths: np.ndarray


def frames_of_items(items: Items, rows: np.ndarray, store: FeatureStore) -> Spans:
    """Return the frames of each item: the frames with onset <= centre < offset.

    An item that ends after its observation gets the frames up to the end of the observation; `cpc abx` counts such
    items. libri-light, and published results that use it, drop the last of these frames by mistake.

    Args:
        items: n items.
        rows: `[n]` observation of each item.
        store: the features of these observations.
    """
    times: FrameTimes = store.extractor.times
    first, end = (_frames_before(seconds, times) for seconds in (items.onset_seconds, items.offset_seconds))
    slices = [store.span(row) for row in rows.tolist()]
    starts, stops = (np.array([getattr(each, name) for each in slices], np.int64) for name in ("start", "stop"))
    end = np.minimum(starts + end, stops)
    return Spans(starts + first, np.maximum(end - starts - first, 0))


def _frames_before(seconds: np.ndarray, times: FrameTimes) -> np.ndarray:
    """Return, for each time, the number of frames of a file whose centre is before this time."""
    hops = (seconds * times.sample_rate_hz - times.first_centre_samples) / times.hop_samples
    # Decimal times may differ from a centre by a rounding error of 1e-9.
    return np.maximum(np.ceil(hops.round(6)), 0).astype(np.int64)
