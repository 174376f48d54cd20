"""The recordings of a source, with their splits, groups and labels. T samples, t samples of a block, C channels."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float32, Float64

from cpc.config.argument_rules import Range, checked
from cpc.data.recordings.labels import labels_of_segments
from cpc.data.signals.arrays import list_npy, list_npz
from cpc.data.signals.channels import RATE_TOLERANCE, convert_units
from cpc.data.signals.folder import MANIFEST_NAME, OPENERS, list_files, list_folder
from cpc.data.signals.listing import Listing, ReadOptions
from cpc.data.store.atomic import json_text
from cpc.data.store.contents import draw_splits, rows_of_split

Missing = Literal["refuse", "mask"]
Positive = Annotated[int | float, Range(0, is_open=True)]
Share = Annotated[int | float, Range(0, 1)]


@dataclass(eq=False, kw_only=True)
class Recordings(Listing):
    """The recordings of a source, of which channels and splits are chosen; samples of files are decoded by `read`."""

    source: Any
    sample_rate_hz: float
    missing: str = "refuse"
    # Unit of each channel, to which all recordings are converted; "" if unknown; empty: all are unknown.
    units: Sequence[str] = ()
    columns: Sequence[int] = ()
    factors: Float64[np.ndarray, "n C"] | None = None  # `[n, C]` factors of this conversion; None: nothing is converted
    conversions: str = ""

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, split: str | None) -> np.ndarray:
        """Return the rows of a split (None: of all); raise a ValueError if there are none."""
        return rows_of_split(self.splits, split, f"recording of {self.source}")

    def read(self, row: int) -> Iterator[Float32[np.ndarray, "t C"]]:
        """Yield a recording in blocks, in `units`; NaN where a sample is missing."""
        assert self.read_blocks is not None
        num_read, num_known = 0, 0
        for block in self.read_blocks(row, self.columns):
            with np.errstate(over="ignore", invalid="ignore"):
                block = block if self.factors is None else block * self.factors[row]
                samples = np.array(block, np.float32, order="C")
            known = np.isfinite(samples)
            if not known.all():
                if self.missing == "refuse":
                    raise ValueError(self._missing_sample(row, num_read, samples, known))
                samples[~known] = np.nan
            num_read += len(samples)
            num_known += int(known.sum())
            yield samples
        if not num_known:
            held = f"{num_read} samples, all missing" if num_read else "no samples"
            raise ValueError(f"{self.title(row)} has {held}: remove it")

    def title(self, row: int) -> str:
        """Return a recording's name with that of its source, for messages."""
        if self.source.is_dir():
            return str(self.source / self.names[row])
        return str(self.source) if self.names[row] == self.source.name else f"{self.source}, {self.names[row]}"

    def key(self) -> str:
        """Return a hash of all that the samples depend on; paths, sizes and times stand for the content of files."""
        parts = [self.channels, list(self.columns), self.sample_rate_hz, self.missing, list(self.version)]
        if self.factors is not None:
            parts.append(self.factors.tolist())
        return hashlib.sha256(json_text(parts).encode()).hexdigest()[:24]

    def _missing_sample(self, row: int, num_read: int, samples: np.ndarray, known: np.ndarray) -> str:
        sample, channel = np.argwhere(~known)[0].tolist()
        value = "missing (NaN)" if np.isnan(samples[sample, channel]) else "infinite, or too large for float32"
        index = num_read + sample
        what = f"channel {self.channels[channel]} is {value} at {index / self.sample_rate_hz:.6g} s (sample {index})"
        return f"{self.title(row)}: {what}: cut it out, choose others by `channels`, or set `missing` to mask"


@checked
def read_recordings(
    source: str | Path,
    *,
    sample_rate_hz: Positive | None = None,
    channels: Sequence[str | int] | None = None,
    missing: Missing = "refuse",
    valid_share: Share = 0.0,
    test_share: Share = 0.0,
    seed: int = 0,
    model_channels: Sequence[str] | None = None,
    model_units: Sequence[str] | None = None,
    model_rate_hz: float | None = None,
    listing: Listing | None = None,
) -> Recordings:
    """Read names, splits, groups and labels of a source of recordings, but not the samples.

    Args:
        source: an npz file (see `cpc.data.signals.arrays.list_npz`) or an npy file, `[T, C]` or `[n, T, C]`; a folder
            of csv, tsv, parquet, npy, EDF, BDF or WFDB (`.hea`) files, with or without `manifest.csv` and `labels.csv`
            (see `cpc.data.signals.folder.list_folder`), or one such file.
        sample_rate_hz: rate of all recordings; required if the source does not say, and else equal to what it says
            within a hundredth.
        channels: channels to read, by name or number, in this order; None: all.
        missing: `refuse` raises an error at a sample that is NaN or infinite; `mask` reads it as NaN.
        valid_share: if the source has no split `valid`, the share of `train` that becomes `valid`, drawn by group (see
            `cpc.data.store.contents.draw_splits`); a recording without a group is its own.
        test_share: likewise for `test`.
        seed: seed of these splits.
        model_channels: names of the channels that a model reads; they are returned in its order. Channels without
            names are taken by position, and so are all if it is None.
        model_units: units that a model reads, to which recordings are converted; None: those of the first recording.
        model_rate_hz: rate that a model reads; the rate of a source that says none, if `sample_rate_hz` is None.
        listing: what the source holds, if it has been listed.

    Raises:
        ValueError: if the source is missing, damaged, transposed or of no known format, a channel is unknown, files
            differ in rate or channels or in units that cannot be converted, the rate is missing or contradicts the
            source, or a share leaves a split empty.
    """
    given_rate = None if sample_rate_hz is None else float(sample_rate_hz)
    channels = [channels] if isinstance(channels, str) else channels
    options = ReadOptions(given_rate, channels, model_channels)
    path: Any = source
    if listing is None:
        path = Path(source).expanduser()
        listing = _list(path, options)
    if listing.layout_problem and (channels is None or len(channels) != len(listing.channels)):
        raise ValueError(listing.layout_problem)
    names, columns = options.choose(listing.channels, path)
    units, factors, conversions = convert_units(
        [[each[column] for column in columns] for each in listing.file_units], names, listing.names, model_units, path
    )
    says_rate = given_rate is not None or listing.sample_rate_hz is not None
    rate = _agreed_rate(path, listing.sample_rate_hz, given_rate if says_rate else model_rate_hz)
    own_rates = [own or rate for own in listing.own_rates_hz]
    labels = listing.labels | {task: labels_of_segments(rows, own_rates) for task, rows in listing.segments.items()}
    chosen = {"channels": names, "columns": columns, "sample_rate_hz": rate, "labels": labels, "missing": missing}
    converted = {"units": units, "factors": factors, "conversions": conversions}
    splits = _drawn_splits(listing, valid_share, test_share, seed)
    return Recordings(**vars(listing) | chosen | converted | {"source": path, "splits": splits})


def _list(path: Path, options: ReadOptions) -> Listing:
    if not path.exists():
        raise ValueError(f"there is no file or folder {path}")
    if path.is_dir() or path.name == MANIFEST_NAME:
        return list_folder(path if path.is_dir() else path.parent, options)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return list_npz(path)
    if suffix == ".npy":
        return list_npy(path)
    if suffix not in OPENERS:
        known = " ".join([".npz", *OPENERS])
        raise ValueError(f"{path} is of no known format: known are folders, and files {known}")
    return list_files(path.parent, [path.name], options)


def _agreed_rate(path: object, own: float | None, given: float | None) -> float:
    if own is None and given is None:
        raise ValueError(f"{path} does not say its sample rate: give it by `sample_rate_hz`")
    if own is not None and given is not None and abs(given / own - 1) > RATE_TOLERANCE:
        raise ValueError(f"{path} says {own:g} Hz, but `sample_rate_hz` is {given:g}: leave the option out")
    return float(given if given is not None else own)  # type: ignore[arg-type]


def _drawn_splits(listing: Listing, valid_share: float, test_share: float, seed: int) -> list[str]:
    """Return the splits; those of `valid` and `test` that the source lacks are drawn from `train`, by group."""
    splits = [split or "train" for split in listing.splits]
    shares = {"valid": float(valid_share), "test": float(test_share)}
    valid, test = (0.0 if name in splits else share for name, share in shares.items())
    rows = [row for row, split in enumerate(splits) if split == "train"]
    if rows and (valid or test):
        units = [listing.groups[row] or listing.names[row] for row in rows]
        for row, split in zip(rows, draw_splits(units, valid_share=valid, test_share=test, seed=seed), strict=True):
            splits[row] = split
    return splits
