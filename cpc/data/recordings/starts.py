"""The first samples at which windows of recordings may begin. S samples of a window, R ranges of starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64

_SAMPLES_AT_ONCE = 2**18


@dataclass(frozen=True, eq=False)
class Starts:
    """The starts of the windows that are drawn from n recordings, numbered from 0 in each recording.

    Attributes:
        num: `[n]`, number of starts of each recording; none is drawn from a recording with 0.
        ranges: ranges of consecutive starts, `[R, 2]`, of the recordings whose missing samples exclude some: the first
            start of each range and its number. In all other recordings a start has its own number.
    """

    num: Int64[np.ndarray, " n"]
    ranges: Mapping[int, Int64[np.ndarray, "R 2"]] = field(default_factory=dict)

    def first_sample(self, recording: int, number: int) -> int:
        """Return the first sample of the window that begins at a numbered start."""
        if recording not in self.ranges:
            return number
        firsts, numbers = self.ranges[recording].T
        index = int(np.searchsorted(numbers, number, side="right")) - 1
        return int(firsts[index] + number - numbers[index])


def known_samples(signals: Any, row: int) -> Bool[np.ndarray, " n"]:
    """Return the samples of a recording of which at least one channel is known."""
    blocks = range(0, int(signals.num_samples[row]), _SAMPLES_AT_ONCE)
    return np.concatenate([~np.isnan(signals.read(row, start, _SAMPLES_AT_ONCE)).all(1) for start in blocks])


def usable_starts(
    is_known: Bool[np.ndarray, " n"], encoder: Any, window_samples: int, steps: Sequence[int]
) -> Bool[np.ndarray, " starts"]:
    """Return the starts of the windows of a recording in which latents t and t + k are known, for a step k.

    Args:
        is_known: the samples of the recording of which a channel is known.
        encoder: its latents are known by `known_latents`.
        window_samples: S; a shorter recording is one window.
        steps: the steps k; 0 stands for any known latent.
    """
    window_samples = min(window_samples, len(is_known))
    num_latents, hop = encoder.num_latents(window_samples), encoder.hop_samples
    is_usable = np.zeros(len(is_known) - window_samples + 1, bool)
    for phase in range(min(hop, len(is_usable))):
        # Windows whose starts differ by hops share their latents.
        known = encoder.known_latents(torch.from_numpy(is_known[None, phase:]))[0].numpy()
        usable = is_usable[phase::hop]
        for step in steps:
            num_pairs = num_latents - step  # of a window
            if num_pairs > 0:
                totals = np.cumsum(known[: len(known) - step] & known[step:])
                before = np.concatenate([[0], totals])[: len(usable)]
                usable |= totals[num_pairs - 1 :][: len(usable)] > before
    return is_usable


def ranges_of(is_usable: Bool[np.ndarray, " starts"]) -> Int64[np.ndarray, "R 2"]:
    """Return the first start of each range of usable starts, and its number among the usable starts."""
    firsts = np.flatnonzero(np.diff(is_usable, prepend=False) & is_usable)
    return np.stack([firsts, np.cumsum(is_usable)[firsts] - 1], axis=1).astype(np.int64)
