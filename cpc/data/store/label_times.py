"""A check that labels and their recordings have the same unit of time. n recordings."""

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from cpc.data.store.folders import name_a_few

# Labels may end up to this time after their recording, because of an aligner's frames or a codec's padding. (In 80
# files of TIMIT none does.) If they end later, they are probably shifted, or in another unit.
MOST_SECONDS_AFTER_END = 0.05
# Labels at half the rate, or in another unit, end in the first half of the recording. Unlabelled silence at the end of
# a file rarely lasts that long.
LEAST_SHARE_LABELLED = 0.55
_LEAST_COVERED = 2 / 3  # of the time up to the last label, by words without pauses; sparse marks may end anywhere


def check_label_ends(
    source: str,
    names: Sequence[str],
    ends: Float[np.ndarray, " n"],
    covered: Float[np.ndarray, " n"],
    lengths: Float[np.ndarray, " n"],
    *,
    noun: str,
    advice: str,
    rate_error: float = 0.0,
) -> None:
    """Raise an error if labels end after their recordings.

    Args:
        source: source of the labels, for messages.
        names: names of the recordings.
        ends: end of the last label of each recording in seconds; 0 without labels.
        covered: seconds of each recording that have a label.
        lengths: length of each recording in seconds.
        noun: noun for a recording, for messages.
        advice: what to change.
        rate_error: largest relative error of `lengths`.

    Raises:
        ValueError: if the labels of a recording end more than 50 ms after it; the message has both times.

    Warns:
        UserWarning: if labels cover two thirds of the time up to the last one, but end before 55 % of the recording
            (medians of the labelled recordings).
    """
    late = np.flatnonzero(ends > lengths * (1 + rate_error) + MOST_SECONDS_AFTER_END).tolist()
    if late:
        lines = [f"{names[row]}: labels until {ends[row]:g} s, {noun} until {lengths[row]:g} s" for row in late]
        raise ValueError(
            f"{source}: {len(late)} of {len(names)} labelled files have labels that end after the {noun}:\n"
            f"{name_a_few(lines)}\n{advice}"
        )
    is_labelled = (ends > 0) & np.isfinite(lengths)
    ends, covered, lengths = ends[is_labelled], covered[is_labelled], lengths[is_labelled]
    if not len(ends) or np.median(covered / ends) < _LEAST_COVERED:
        return
    if (share := float(np.median(ends / lengths))) < LEAST_SHARE_LABELLED:
        warnings.warn(
            f"{source}: the last label of a file ends at {share:.2g} of its {noun} (median of {len(ends)} files): "
            f"if whole files are labelled, the times are in another unit; {advice}",
            stacklevel=4,
        )
