"""An ABX test of features within and across speakers: the choice of triplets, and their errors.

R stored vectors, D feature dim, n items.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args

import numpy as np

from cpc.config.argument_rules import Count, Range, Seed, check_fields
from cpc.data.audio.item_files import Items
from cpc.probes.abx.alignment import alignment_distances
from cpc.probes.abx.cells import Cells, Groups, cells_across, cells_within
from cpc.probes.abx.errors import ABXError, abx_error
from cpc.probes.abx.spans import Spans

Context = Literal["within", "any"]


@dataclass(frozen=True)
class ABXProtocol:
    """The choice of triplets; the defaults are libri-light's.

    Attributes:
        context: `within` compares phones between the same neighbours, `any` between any neighbours, which is harder
            and works for smaller corpora (Hallap et al. 2022, arXiv:2210.15775).
        max_size_group: maximum number of items of one context, speaker and phone, at least 2; a random subset of a
            larger group is taken.
        max_x_across: maximum number of speakers of X for each group of A, in the test across speakers. If there are
            more speakers, a random subset is taken.
        seed: seed of the subsampling.

    Raises:
        ValueError: if `max_size_group` is below 2, or `max_x_across` below 1.
    """

    context: Context = "within"
    max_size_group: Annotated[int, Range(2)] = 10
    max_x_across: Count = 5
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.context not in get_args(Context):
            raise ValueError(f"context={self.context!r} is not one of {', '.join(get_args(Context))}")

    def cells(self, items: Items) -> tuple[Groups, dict[str, Cells]]:
        """Return the groups of the items, and their cells `within` and `across` speakers."""
        rng = np.random.default_rng(self.seed)
        groups = Groups.of(items, self.context == "any", self.max_size_group, rng)
        return groups, {"within": cells_within(groups), "across": cells_across(groups, self.max_x_across, rng)}


def abx_errors(
    vectors: Any,
    spans: Spans,
    items: Items,
    protocol: ABXProtocol | None = None,
    *,
    device: str = "cpu",
    progress: bool = False,
) -> dict[str, ABXError | None]:
    """Return how often features confuse two phones.

    Args:
        vectors: `[R, D]` array of frames.
        spans: the frames of each item; items without frames are left out.
        items: n items.
        protocol: the choice of triplets.
        device: device of the computation, in float64.
        progress: show progress bars.

    Returns:
        The errors `within` and `across` speakers; None if there is no triplet.

    Raises:
        ValueError: if there is not one span for each item, or a span has frames that do not exist or are not finite.
    """
    if not len(spans.starts) == len(spans.lengths) == len(items):
        raise ValueError(f"there are {len(spans.starts)} spans for {len(items)} items: give one span per item")
    for row, (start, length) in enumerate(zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)):
        if not 0 <= start <= start + length <= len(vectors):
            raise ValueError(
                f"item {row} has the frames {start} to {start + length}, but there are only {len(vectors)} frames"
            )
        if not np.isfinite(vectors[start : start + length]).all():
            raise ValueError(f"item {row} has frames that are not finite, at {start} to {start + length}")
    kept = np.flatnonzero(spans.lengths)
    if not len(kept):
        return {"within": None, "across": None}
    groups, cells = (protocol or ABXProtocol()).cells(items.take(kept))
    distances = partial(
        alignment_distances, vectors, spans.starts[kept], spans.lengths[kept], device=device, progress=progress
    )
    return {mode: abx_error(groups, mode_cells, distances) for mode, mode_cells in cells.items()}
