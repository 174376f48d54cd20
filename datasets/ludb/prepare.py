"""Write ludb.npz, a source of `cpc.data.Signals`: python datasets/ludb/prepare.py DIR --out OUT (see card.md)."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from scipy.signal import resample_poly

from cpc.config.extras import install_hint
from cpc.config.options import prepare_from_command_line
from cpc.data.images.arrays import load_array
from cpc.data.signals.corpora import SignalArrays, describe, write_recordings

LEADS = ("i", "ii", "iii", "avr", "avl", "avf", "v1", "v2", "v3", "v4", "v5", "v6")
CLASSES = ("none", "P", "QRS", "T")
WAVE_OF = {"p": 1, "N": 2, "t": 3}  # symbols of peaks in the annotation files
NUM_FOLDS = 5
UNITS = ("uV",) * len(LEADS)  # not stated, but a count of another size would give beats that hearts do not have


def prepare_ludb(
    root: Path, out: Path | None = None, lead: str = "ii", rate_hz: int | None = None
) -> tuple[Path, SignalArrays]:
    """Write LUDB to one npz file: 12 leads in raw ADC values, and the wave of each sample of one lead.

    A sample before the first marked wave or after the last one has no label, since nobody marked waves there. The
    splits are by subject: valid if subject % 5 is 4, test if it is 0.

    Args:
        root: folder of PhysioNet's files, `data/1.hea`, `data/1.dat`, `data/1.ii` and so on, or the same without
            `data`; or of `ludb.npz` with `ecg`, `wave`, `span`, `subject`, `sex`, `rhythm`, `lead_names` and `rate`.
        out: path of the npz file; ROOT/ludb_recordings.npz if not given.
        lead: the lead whose marks are the labels.
        rate_hz: rate to which recordings are resampled, with a low-pass filter; the rate of the files if not given. A
            sample takes the label of the nearest sample of the file.

    Raises:
        ValueError: if `lead` is not one of the 12, `rate_hz` is below 1, files are missing or damaged, or wfdb is not
            installed.
    """
    if lead not in LEADS:
        raise ValueError(f"`lead` is {lead!r}, but must be one of {', '.join(LEADS)}")
    if rate_hz is not None and rate_hz < 1:
        raise ValueError(f"`rate_hz` is {rate_hz}, but must be at least 1")
    packed = root / "ludb.npz"
    arrays = _read_packed(packed, lead) if packed.is_file() else _read_published(root, lead)
    arrays = arrays if rate_hz is None else _resample(arrays, rate_hz)
    return write_recordings(root / "ludb_recordings.npz" if out is None else out, arrays)


def _read_packed(path: Path, lead: str) -> SignalArrays:
    ecg, wave, span, subject, sex, rhythm, leads, rate = (
        load_array(path, name) for name in ("ecg", "wave", "span", "subject", "sex", "rhythm", "lead_names", "rate")
    )
    column = leads.tolist().index(lead)
    num_samples = ecg.shape[2]
    label = wave[:, column].astype(np.int8)
    sample = np.arange(num_samples)
    is_marked = (span[:, column, :1] <= sample) & (sample <= span[:, column, 1:])
    return _as_arrays(
        np.concatenate(list(ecg.transpose(0, 2, 1))),
        np.full(len(ecg), num_samples),
        np.where(is_marked, label, -1).ravel(),
        subject,
        sex.tolist(),
        [text.split(" | ")[0] for text in rhythm.tolist()],
        float(rate),
    )


def _read_published(root: Path, lead: str) -> SignalArrays:
    try:
        import wfdb
    except ImportError as error:
        raise ValueError(f"PhysioNet's files need the package wfdb: {install_hint('signals')}") from error
    folder = root / "data" if (root / "data").is_dir() else root
    subjects = sorted(int(path.stem) for path in folder.glob("*.hea") if path.stem.isdecimal())
    if not subjects:
        raise ValueError(f"{root} has neither ludb.npz nor PhysioNet's files data/1.hea, ...: unpack the archive there")
    signals, labels, sexes, rhythms, rates = [], [], [], [], set()
    for subject in subjects:
        path = folder / str(subject)
        try:
            record = wfdb.rdrecord(str(path), physical=False)
            marks = wfdb.rdann(str(path), lead)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ValueError(f"{path}: header, signal or marks of lead {lead} cannot be read: {error}") from error
        if tuple(record.sig_name) != LEADS:
            raise ValueError(f"{path}.hea has the leads {', '.join(record.sig_name)}, but must have {', '.join(LEADS)}")
        comments = {
            key.strip("#<> "): text.strip(" .") for key, _, text in (each.partition(":") for each in record.comments)
        }
        signals.append(record.d_signal.astype(np.int16))
        labels.append(_wave_of_samples(marks.sample, marks.symbol, len(record.d_signal)))
        sexes.append(comments.get("sex", ""))
        rhythms.append(comments.get("Rhythm", ""))
        rates.add(float(record.fs))
    if len(rates) > 1:
        raise ValueError(
            f"{root} has recordings at {', '.join(f'{rate:g}' for rate in sorted(rates))} Hz; keep one rate"
        )
    length = np.array([len(signal) for signal in signals])
    return _as_arrays(
        np.concatenate(signals), length, np.concatenate(labels), np.array(subjects), sexes, rhythms, rates.pop()
    )


def _wave_of_samples(samples: np.ndarray, symbols: list[str], num_samples: int) -> np.ndarray:
    """Return the wave of each sample from marks `(`, a peak and `)`; a wave without a mark of its peak is left out."""
    wave = np.full(num_samples, -1, np.int8)
    first, last = int(min(samples, default=0)), int(max(samples, default=-1))
    wave[first : last + 1] = 0
    onset, code = None, 0
    for sample, symbol in zip(samples.tolist(), symbols, strict=True):
        if symbol == "(":
            onset, code = sample, 0
        elif symbol in WAVE_OF:
            code = WAVE_OF[symbol]
        elif symbol == ")" and onset is not None:
            if code:
                wave[onset : sample + 1] = code
            onset, code = None, 0
    return wave


def _resample(arrays: SignalArrays, rate_hz: int) -> SignalArrays:
    ratio = Fraction(rate_hz) / Fraction(arrays.sample_rate_hz)
    starts = np.cumsum(arrays.length)[:-1]
    signals, labels = [], []
    for x, label in zip(np.split(arrays.x, starts), np.split(arrays.label, starts), strict=True):
        signals.append(resample_poly(x.astype(np.float32), ratio.numerator, ratio.denominator, 0, padtype="line"))
        nearest = np.rint(np.arange(len(signals[-1])) / float(ratio)).astype(np.int64)
        labels.append(label[nearest.clip(max=len(label) - 1)])
    return replace(
        arrays,
        x=np.concatenate(signals),
        length=np.array([len(each) for each in signals]),
        label=np.concatenate(labels),
        sample_rate_hz=float(rate_hz),
    )


def _as_arrays(
    x: np.ndarray,
    length: np.ndarray,
    label: np.ndarray,
    subject: np.ndarray,
    sex: list[str],
    rhythm: list[str],
    rate_hz: float,
) -> SignalArrays:
    split = [{NUM_FOLDS - 1: "valid", 0: "test"}.get(number % NUM_FOLDS, "train") for number in subject.tolist()]
    labels = {"sex": sex, "rhythm": rhythm}
    return SignalArrays(x, length, subject, label, CLASSES, LEADS, rate_hz, split, labels, UNITS)


if __name__ == "__main__":
    prepare_from_command_line(prepare_ludb, describe)
