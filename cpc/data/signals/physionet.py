"""Recordings of PhysioNet: WFDB headers (`.hea`) with their signals and annotations, read by wfdb."""

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.extras import import_extra
from cpc.data.recordings.labels import Segment
from cpc.data.signals.channels import channels_rate
from cpc.data.signals.listing import ReadOptions, SignalFile
from cpc.data.store.untrusted import reading

_BLOCK_SAMPLES = 1 << 16
_NOTE = re.compile(rb"(.)[\xfc-\xff](?=## )", re.DOTALL)  # length, mark and content of a note
_NOTES = {b"## annotation type definitions": "d", b"## end of definitions": "e"}
_KNOWN_ANNOTATIONS = ("atr", "ann", "ecg", "qrs", "qrsc", "rhy", "ari", "apn", "st")
_OTHER_FILES = "hea dat txt csv tsv json xml xws html pdf png jpg svg edf bdf npy npz mat parquet md zip gz"


class WfdbRecord(SignalFile):
    """A WFDB record of one segment, in physical units. A channel may have several samples per frame.

    Annotation files have the record's name and, as suffix, the annotator's, which names the task. `(`, a symbol and `)`
    are a segment from `(` to `)`; every other symbol marks one sample; rhythms (`+` with an auxiliary text such as
    `(AFIB`) last until the next and are the task `ANNOTATOR_rhythm`.
    """

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._record = str(path.with_suffix(""))
        wfdb = _wfdb(path)
        with reading(path, "cannot be read as a WFDB header"):
            header = wfdb.rdheader(self._record)
            if isinstance(header, wfdb.MultiRecord):
                raise ValueError("it has several segments; name the segments' headers instead, in a manifest.csv")
            if not header.n_sig:
                raise ValueError("it has no signals")
            names = list(header.sig_name or [None] * header.n_sig)
            self.channels = [name or str(number) for number, name in enumerate(names)]
            self.units = [unit or "" for unit in header.units or [None] * header.n_sig]
            rates = [float(header.fs) * number for number in header.samps_per_frame]
        _, chosen = options.choose(self.channels, path)
        self.rate_hz = channels_rate(rates, chosen, self.channels, path)
        self._per_frame = int(header.samps_per_frame[chosen[0]])
        data = [path.parent / name for name in dict.fromkeys(header.file_name)]
        with reading(path, "it names signals that cannot be there"):
            absent = [str(file) for file in data if not file.is_file()]
        if absent:
            raise ValueError(f"{path} names the signals {', '.join(absent)}, which are absent")
        if header.sig_len is None:
            with reading(path, "its signals cannot be read"):
                header.sig_len = wfdb.rdrecord(self._record).sig_len
        with reading(path, "its number of frames cannot be read"):
            self._num_frames = int(np.int64(header.sig_len))
        self.num_samples = self._num_frames * self._per_frame
        self.parts = [path, *data]
        for file in sorted(path.parent.glob(f"{glob.escape(path.stem)}.*")):
            if file not in self.parts and file.suffix[1:].lower() not in _OTHER_FILES.split() and file.is_file():
                self._read_annotations(wfdb, file, float(header.fs))

    def blocks(self, columns: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the chosen channels in physical units; NaN where the record marks samples as invalid."""
        wfdb = _wfdb(self.path)
        step = max(1, _BLOCK_SAMPLES // self._per_frame)
        for first in range(0, self._num_frames, step):
            end = min(first + step, self._num_frames)
            with reading(self.path, "its signals cannot be read"):
                # smooth_frames would average the samples of a frame
                record = wfdb.rdrecord(
                    self._record, sampfrom=first, sampto=end, channels=list(columns), smooth_frames=False
                )
                block = np.stack(record.e_p_signal, axis=1)
                if len(block) != (end - first) * self._per_frame:
                    raise ValueError(f"frames {first} to {end} are incomplete")
            yield block

    def _read_annotations(self, wfdb: Any, file: Path, header_rate: float) -> None:
        annotator = file.suffix[1:]
        try:
            with reading(file, "cannot be read as WFDB annotations"):
                _check_notes(file.read_bytes())
                found = wfdb.rdann(self._record, annotator)
                if not all(isinstance(symbol, str) for symbol in found.symbol):
                    raise ValueError("it has symbols that WFDB does not define")
                if np.diff(found.sample, prepend=0).min(initial=0) < 0:
                    raise ValueError("its times are not in order")
                rate = float(found.fs or header_rate)
                marks, rhythms = annotation_segments(found.sample.tolist(), found.symbol, found.aux_note, rate)
        except ValueError:
            if annotator in _KNOWN_ANNOTATIONS:
                raise
            return  # a file of another kind beside the record
        if rhythms:
            last = rhythms[-1]
            rhythms[-1] = last._replace(end_seconds=max(self._num_frames / header_rate, last.start_seconds))
        self.segments |= {task: each for task, each in ((annotator, marks), (f"{annotator}_rhythm", rhythms)) if each}


def _check_notes(content: bytes) -> None:
    """Raise an error on notes that begin with "## " and define nothing, on which wfdb would hang."""
    notes = [content[match.end() : match.end() + match[1][0]] for match in _NOTE.finditer(content)]
    kinds = ["t" if re.match(rb"## time resolution: \d", note) else _NOTES.get(note, "?") for note in notes]
    if not re.fullmatch("(de)*t?(de)*", "".join(kinds)):
        raise ValueError("it has a note that begins with '## ' and defines nothing")


def annotation_segments(
    samples: Sequence[int], symbols: Sequence[str], notes: Sequence[str], sample_rate_hz: float
) -> tuple[list[Segment], list[Segment]]:
    """Return the intervals and marks of annotations, and the rhythms, of which the last has no end."""
    marks: list[Segment] = []
    rhythms: list[Segment] = []
    opened, inside = None, ""
    for sample, symbol, note in zip(samples, symbols, notes, strict=True):
        seconds = sample / sample_rate_hz
        if symbol == "+" and note.startswith("("):
            if rhythms:
                rhythms[-1] = Segment(rhythms[-1].start_seconds, seconds, rhythms[-1].label)
            rhythms.append(Segment(seconds, np.inf, note.strip("(\0 ")))
        elif symbol == "(":
            opened, inside = seconds, ""
        elif symbol == ")":
            if opened is not None and inside:
                marks.append(Segment(opened, seconds, inside))
            opened = None
        elif opened is not None:
            inside = inside or symbol
        else:
            marks.append(Segment(seconds, seconds, symbol))
    return marks, rhythms


def _wfdb(path: Path) -> Any:
    return import_extra("wfdb", "signals", f"{path}: WFDB records need the package `wfdb`")
