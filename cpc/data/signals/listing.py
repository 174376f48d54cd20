"""The recordings that a source holds, before channels are chosen and splits are drawn.

t samples of a block, C channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpc.data.recordings.labels import RecordingLabels, Segment
from cpc.data.signals.channels import choose_model_channels

GROUP_NAMES = ("group", "user", "subject")


class ReadOptions(NamedTuple):
    """The user's description of the files of a source; a model without `model_channels` reads by position."""

    sample_rate_hz: float | None
    channels: Sequence[str | int] | None
    model_channels: Sequence[str] | None = None

    def choose(self, available: Sequence[str], source: object) -> tuple[list[str], list[int]]:
        """Return names and columns of the channels to read; see `choose_model_channels`."""
        return choose_model_channels(self.model_channels, self.channels, available, source)


class SignalFile(ABC):
    """A file that is one recording. The constructor of a format reads only the header, and sets the attributes.

    Attributes:
        parts: all files that the samples depend on; the file itself unless set.
        units: unit of each channel, "" if the file does not say; empty: it says none.
        rate_hz: rate of the samples; None if the file does not say.
        num_samples: upper bound.
        sample_labels: names of its columns of labels per sample.
        segments: labels that the file itself holds, by task.
    """

    channels: Sequence[str]
    num_samples: int
    rate_hz: float | None = None
    units: Sequence[str] = ()
    sample_labels: Sequence[str] = ()

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.path = path
        self.parts: Sequence[Path] = [path]
        self.segments: dict[str, list[Segment]] = {}

    @abstractmethod
    def blocks(self, columns: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the chosen channels, `[t, C]` in one or several blocks, as real numbers."""

    def texts(self, name: str) -> list[str]:
        """Return the label of each sample in a column of `sample_labels`."""
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class Listing:
    """The recordings of a source; lists have one entry per recording."""

    names: list[str]
    channels: list[str]
    num_samples: list[int] = field(default_factory=list)  # upper bound of each recording's number of samples
    # Yields columns of a recording, as `SignalFile.blocks` does; None if samples are decoded.
    read_blocks: Callable[[int, Sequence[int]], Iterator[np.ndarray]] | None = None
    version: Sequence[Any] = ()  # numbers and strings that change if the content of the source does
    sample_rate_hz: float | None = None
    splits: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    labels: dict[str, RecordingLabels] = field(default_factory=dict)
    segments: Mapping[str, list[list[Segment]]] = field(default_factory=dict)
    # Unit of each channel in each recording, "" if unknown; empty: all are unknown.
    file_units: Sequence[Sequence[str]] = ()
    # Rate of each recording by its own clock, if there are segments; None: that of all.
    own_rates_hz: Sequence[float | None] = ()
    # Message if an array seems to be transposed; it is refused unless the user lists all channels.
    layout_problem: str = ""

    def __post_init__(self) -> None:
        self.splits = self.splits or [""] * len(self.names)
        self.groups = self.groups or [""] * len(self.names)
