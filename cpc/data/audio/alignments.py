"""Alignments: labelled segments of audio files, and the label of every frame."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.argument_rules import Choices
from cpc.data.audio.alignment_formats import (
    Track,
    index_aligned_phones,
    read_aligned_phones,
    read_csv,
    read_ctm,
    read_phn,
    read_textgrid,
)
from cpc.data.audio.manifest import Manifest, bare_path, is_end_of
from cpc.data.batch import UNLABELLED
from cpc.data.recordings.labels import Segment, check_label_ends
from cpc.data.store.folders import name_a_few, refuse

ALIGNMENTS_NAME = "alignments.csv"

_UTTERANCE_FORMATS = (".phn", ".textgrid", ".ctm")  # one file per utterance (CTM: per utterance or corpus)
_FORMATS = (*_UTTERANCE_FORMATS, ".csv", ".txt")


class Alignments:
    """The segments of many audio files. The segments of a file are parsed when they are first used."""

    def __init__(self, tracks: Mapping[str, Track | Callable[[], Track]], source: str = "the alignments") -> None:
        self._tracks = dict(tracks)
        self.source = source
        self._names_of_bare: dict[str, list[str]] = defaultdict(list)
        self._names_of_stem: dict[str, list[str]] = defaultdict(list)
        for name in self._tracks:
            bare = bare_path(name)
            self._names_of_bare[bare].append(name)
            self._names_of_stem[bare.rpartition("/")[2]].append(name)

    def __len__(self) -> int:
        return len(self._tracks)

    def __contains__(self, path: str) -> bool:
        return bool(self._candidates(path))

    @property
    def names(self) -> list[str]:
        """The names of the aligned files in the source."""
        return list(self._tracks)

    @property
    def labels(self) -> list[str]:
        """All labels, sorted (numbers by value). Every track is read, so a malformed track raises a ValueError."""
        labels = {label for name in self._tracks for label in self._track(name).labels}
        return sorted(labels, key=lambda each: (int(each) if each.isdecimal() and len(each) < 19 else np.inf, each))

    def name_of(self, path: str) -> str | None:
        """Return the name in the source that matches a path of a manifest; None if there is none."""
        names = self._candidates(path)
        if len(names) > 1:
            raise ValueError(f"{path}: {len(names)} alignments in {self.source} have this name:\n{name_a_few(names)}")
        return names[0] if names else None

    def segments(self, path: str) -> list[Segment]:
        """Return the segments of a file by its path in the manifest, in order of time; they do not overlap."""
        track = self._track_of(path)
        return list(map(Segment, track.starts.tolist(), track.ends.tolist(), track.labels))

    def extent_seconds(self, path: str) -> tuple[float, float]:
        """Return the end of the last segment of a file and the length of all, or 0; raises the errors of `segments`."""
        track = self._track_of(path)
        return track.ends.max(initial=0.0), (track.ends - track.starts).sum()

    def _track_of(self, path: str) -> Track:
        name = self.name_of(path)
        if name is None:
            raise ValueError(f"{path}: {self.source} has no alignment of it, only {', '.join(self.names[:3])}")
        return self._track(name)

    def _candidates(self, path: str) -> list[str]:
        if path in self._tracks:
            return [path]
        bare = bare_path(path)
        if bare in self._names_of_bare:
            return self._names_of_bare[bare]
        names = self._names_of_stem.get(bare.rpartition("/")[2], [])
        if len(names) > 1:  # in TIMIT every speaker's folder has an sa1, and one of the trees may start a folder deeper
            names = [name for name in names if is_end_of(bare_path(name), bare)] or names
        return names

    def _track(self, name: str) -> Track:
        track = self._tracks[name]
        if not isinstance(track, Track):
            track = self._tracks[name] = track()
        return track


def read_alignments(path: str | Path, *, tier: str | None = None) -> Alignments:
    """Read alignments; the suffix of a file determines its format.

    Args:
        path: a file (CTM, CSV with path,start,end,label, `converted_aligned_phones.txt`, one `.phn` or TextGrid), or a
            folder with `alignments.csv` in it or `.phn`, `.TextGrid` or `.ctm` files below it.
        tier: name of the tier of a TextGrid; None: `phones`, or the only interval tier.

    Raises:
        ValueError: if there are no alignments or several formats, a name occurs twice, a table is malformed, or `tier`
            is given for a format without tiers. A file of one utterance is checked on first use.
    """
    path = Path(path)
    if (path / ALIGNMENTS_NAME).is_file():
        path = path / ALIGNMENTS_NAME
    if path.is_dir():
        root, files = path, _files_below(path)
    elif path.is_file():
        root, files = path.parent, [path]
        Choices(_FORMATS).check(f"{path}: the suffix", path.suffix.lower())
    else:
        raise ValueError(f"there are no alignments at {path}: it is neither a file nor a folder")
    if tier is not None and files[0].suffix.lower() != ".textgrid":
        raise ValueError(f"`tier`={tier}: {files[0]} is not a TextGrid: leave `tier` out")
    tracks: dict[str, Track | Callable[[], Track]] = {}
    file_of: dict[str, Path] = {}
    for file in files:
        file_tracks = _tracks_in(file, root, tier)
        for name in file_tracks:
            if name in tracks:
                raise ValueError(f"{name} is aligned in both {file_of[name]} and {file}; keep one of them")
            file_of[name] = file
        tracks.update(file_tracks)
    if not tracks:
        raise ValueError(f"{path} holds no alignments")
    return Alignments(tracks, str(path))


def read_matching_alignments(
    manifest: Manifest, rows: Sequence[int] | np.ndarray, source: str | Path | None, tier: str | None, purpose: str
) -> Alignments:
    """Read the alignments that `purpose` needs, by default from beside the manifest, and check them for `rows`."""
    source = manifest.root / ALIGNMENTS_NAME if source is None else Path(source)
    if not source.exists():
        raise ValueError(f"{purpose} needs alignments, but there is no {source}: name them with `alignments`")
    alignments = read_alignments(source, tier=tier)
    check_alignments(alignments, manifest, rows)
    return alignments


def window_labels(
    segments: Sequence[Segment], times: Any, start: int, num_frames: int, classes: Mapping[str, int]
) -> np.ndarray:
    """Return the class at the centre of every frame of a window, `[T]` int64; -100 where it is in no segment.

    Args:
        segments: segments of the window's file, in order of time and without overlap; if empty, no frame has a label.
        times: has `sample_rate_hz`, `hop_samples`, and `first_centre_samples` of frame 0 in a window.
        start: the window's first sample; 0 for a whole file.
        num_frames: T.
        classes: class of each label; frames whose label is not in it stay unlabelled.
    """
    if not segments:
        return np.full(num_frames, UNLABELLED, dtype=np.int64)
    starts, ends, labels = zip(*segments, strict=True)
    class_of_segment = np.array([classes.get(label, UNLABELLED) for label in labels], dtype=np.int64)
    rate = times.sample_rate_hz
    centres = (start + times.first_centre_samples) / rate + times.hop_samples / rate * np.arange(num_frames)
    segment = np.searchsorted(np.array(starts), centres, side="right") - 1
    covered = (segment >= 0) & (centres < np.array(ends)[segment])
    return np.where(covered, class_of_segment[segment], UNLABELLED)


def check_alignments(alignments: Alignments, manifest: Manifest, rows: Sequence[int] | np.ndarray) -> None:
    """Raise an error if alignments do not fit these files, or none has a label; see also `check_label_ends`."""
    rows = np.unique(np.asarray(rows, dtype=np.int64))  # folds may repeat a row
    paths = [manifest.paths[row] for row in rows.tolist()]
    aligned = [i for i, path in enumerate(paths) if alignments.name_of(path)]
    if not aligned:
        unused = f"{len(alignments)} alignments have no audio, by path or stem:\n{name_a_few(alignments.names)}"
        refuse(f"of {len(paths)} audio files have no alignment", paths, unused)
    files = manifest.take(rows[aligned])
    ends, covered = np.array([alignments.extent_seconds(path) for path in files.paths]).T
    if not ends.any():
        raise ValueError(f"the alignments of {len(files)} audio files hold no label:\n{name_a_few(files.paths)}")
    check_label_ends(
        alignments.source,
        files.paths,
        ends,
        covered,
        files.seconds,
        noun="audio",
        advice="times are seconds (samples at 16 kHz in .phn) from the beginning of each file",
    )


def _files_below(folder: Path) -> list[Path]:
    """Return the alignment files below a folder, all of one format."""
    files = [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in _UTTERANCE_FORMATS and file.is_file()]
    counts = Counter(file.suffix.lower() for file in files)
    if len(counts) > 1:
        raise ValueError(f"{folder} holds files of {', '.join(sorted(counts))}; name a folder with a single format")
    if not files:
        raise ValueError(f"no {ALIGNMENTS_NAME}, .phn, .TextGrid or .ctm files below {folder}: name the file itself")
    return files


def _tracks_in(file: Path, root: Path, tier: str | None) -> Mapping[str, Track | Callable[[], Track]]:
    name = file.relative_to(root).with_suffix("").as_posix()
    match file.suffix.lower():
        case ".phn":
            return {name: partial(read_phn, file)}
        case ".textgrid":
            return {name: partial(read_textgrid, file, tier)}
        case ".ctm":
            return read_ctm(file)
        case ".csv":
            return read_csv(file)
        case _:
            positions = index_aligned_phones(file)
            return {stem: partial(read_aligned_phones, file, *position) for stem, position in positions.items()}
