"""Which frames are an item's."""

from typing import NamedTuple

import numpy as np

from cpc.data.audio.alignments import FrameTimes
from cpc.data.audio.item_files import Items
from cpc.probes.store import FeatureStore


class Spans(NamedTuple):
    """Stretches of frames in a store, n of them.

    Attributes:
        starts: `[n]` int64, the first frame of each.
        lengths: `[n]` int64, how many frames; 0 where no frame's centre lies in the item.
    """

    starts: np.ndarray
    lengths: np.ndarray


def frames_of_items(items: Items, rows: np.ndarray, store: FeatureStore) -> Spans:
    """The frames whose centres lie in an item; its onset belongs to it, its offset does not.

    An item that ends after its observation has the frames up to its end; `cpc abx` counts these items.

    libri-light leaves out the last of these frames, by mistake; so do figures that were published with it.

    Args:
        items: n of them.
        rows: `[n]` the observation that each lies in.
        store: holds these observations.
    """
    times: FrameTimes = store.extractor.times
    first, end = (_frames_before(seconds, times) for seconds in (items.onset_seconds, items.offset_seconds))
    places = [store.place(row) for row in rows.tolist()]
    starts, stops = (np.array([getattr(place, name) for place in places], np.int64) for name in ("start", "stop"))
    end = np.minimum(starts + end, stops)
    return Spans(starts + first, np.maximum(end - starts - first, 0))


def _frames_before(seconds: np.ndarray, times: FrameTimes) -> np.ndarray:
    """How many frames of a file have their centre before these times."""
    hops = (seconds * times.sample_rate_hz - times.first_centre_samples) / times.hop_samples
    return np.maximum(np.ceil(hops.round(6)), 0).astype(np.int64)  # times are decimal: a centre may miss one by 1e-9
