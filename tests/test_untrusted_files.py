"""Files of strangers: a reader gives a value, or a ValueError that names the file, and takes no memory for mere claims.

100 examples each; 100 000 each by `pytest -m fuzz --hypothesis-profile=fuzz`.
"""

import hashlib
import io
import json
import os
import runpy
import shutil
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cpc import CPC, load_pretrained, save_pretrained
from cpc.contexts import GRU
from cpc.data import read_alignments, read_audio, read_image_source, read_items, read_manifest
from cpc.data.audio.headers import read_header
from cpc.data.audio.index import join_labels
from cpc.data.images.pack import TABLE_NAME, PackedImages, read_sharded_images
from cpc.data.recordings.windows import PackedRecordings
from cpc.data.sentences.books import read_sentences
from cpc.data.sentences.labelled import read_labelled
from cpc.data.sharding import shard_corpus
from cpc.data.signals.recordings import read_recordings
from cpc.data.store.atomic import read_records
from cpc.data.store.packed import FORMAT
from cpc.data.store.shards import INDEX_NAME
from cpc.data.text.lines import read_lines
from cpc.data.text.segmentation import VERSION, WORD, normal_form
from cpc.data.text.vocabulary import END, UNKNOWN, Vocabulary
from cpc.encoders import AudioEncoder
from cpc.monitor.badges import badges
from cpc.monitor.charts import charts
from cpc.monitor.record_types import BOUND, HEALTH, PROBE
from cpc.monitor.run import Run
from cpc.monitor.table import parse_lines
from cpc.monitor.view import View
from cpc.predictors import Bilinear

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.usefixtures("unchecked_types"),  # as users run: the type checker would speak first
]

fuzz = settings(max_examples=settings.default.max_examples, deadline=None, suppress_health_check=list(HealthCheck))
MOST_BYTES = 16 * 2**20  # files here have a few hundred
WORDS = [
    *(b"-1", b"0", b"2", b"1e308", b"nan", b"inf", b"-0", b"1_0", b"0x10", b"1.5", b"9" * 20, b"9" * 400),
    *(b"999999999", b"4611686018427387904", b"true", b"null", b"[]", b"{}", b"{", b"[" * 3000, b'"', b"'", b'""', b"a"),
    *(b",", b";", b":", b"\t", b" ", b"\n", b"\r"),
    *(b"\n\n", b"\0", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1c", b"\\ud800"),
    *(each.encode() for each in ("\u0663", "\u00b2", "\u2028", "\x85", "../", "/etc/passwd", "O", "<f8", ">i8")),
]
Edit = tuple[int, int, bytes]
edits = st.lists(
    st.tuples(
        st.integers(0, 999), st.sampled_from([0, 0, 1, 1, 2, 4, 8, 30, 400]), st.sampled_from(WORDS) | st.binary()
    ),
    min_size=1,
    max_size=4,
)


def edited(content: bytes, changes: list[Edit]) -> bytes:
    """At each place, given in thousandths, so many bytes give way to others."""
    for place, num_bytes, others in changes:
        at = place * (len(content) + 1) // 1000
        content = content[:at] + others + content[at + num_bytes :]
    return content


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    return st.builds(edited, st.just(content), edits) | st.binary(max_size=60)


def reads_or_refuses(read: Callable[[], Any], name: str, has_sizes: bool = False) -> None:
    """`has_sizes`: the format says how much is to come, so that memory is watched, which takes time."""
    told = name
    if has_sizes:
        tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
    except ValueError as error:
        told = str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert name in told
    assert peak < MOST_BYTES, f"{peak} bytes"


MANIFEST = (
    b"path,split,speaker,num_samples,sample_rate_hz,num_channels,word\n"
    b'a/1.wav,train,ann,8000,16000,1,yes\n"b,2.wav",valid,bob,9000,16000,2,\n'
)
ITEMS = b"#file onset offset #phone prev-phone next-phone speaker\na 0.0 0.25 sh b iy ann\nb 0.1 0.2 iy sh a bob\n"
IDX = bytes([0, 0, 8, 3, *(0, 0, 0, 3), *(0, 0, 0, 4), *(0, 0, 0, 4), *range(48)])
READ_IDX = runpy.run_path(str(Path(__file__).parents[1] / "datasets/mnist/prepare.py"))["_read_idx"]
RECORDS = (
    b'{"schema": 1, "step": 2, "split": "train", "strategy": "mixed", "steps": [1, 2], "directions": [], '
    b'"num_batches": 2, "num_rows": [8, 6], "loss_nats": [1.5, null], "num_candidates": [9.0, 9.0], '
    b'"mi_ceiling_nats": [2.2, 2.2], "mi_bound_nats": [0.7, NaN], "standard_error_nats": [0.1, 0.1], '
    b'"accuracy": [0.5, 0.4], "saturated": [false, true]}\n'
    b'{"schema": 1, "step": 4, "time_unix_seconds": 1.0, "event": "finished", "message": ""}\n'
)


def check_manifest(path: Path) -> None:
    manifest = read_manifest(path, check_files=False)
    assert len(manifest) == len(manifest.files) > 0
    assert not any(mark in cell for cells in manifest.columns.values() for cell in cells for mark in "\r\n")


def check_items(path: Path) -> None:
    items = read_items(path)
    assert len(items.speakers) == len(items) > 0
    assert (items.onset_seconds >= 0).all()
    assert (items.onset_seconds < items.offset_seconds).all()
    assert np.isfinite(items.offset_seconds).all()
    assert len({*zip(items.files, items.onset_seconds, items.offset_seconds, strict=True)}) == len(items)


def check_records(path: Path) -> None:
    assert all(isinstance(record, dict) for record in read_records(path))


def check_labelled_sentences(path: Path) -> None:
    found = read_labelled(path)
    assert len(found.sentences) == len(found.labels) == len(found.rows("set")) > 0


FILES: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "manifest.csv": (MANIFEST, check_manifest),
    "a.item": (ITEMS, check_items),
    "a.idx": (IDX, lambda path: READ_IDX(path, num_axes=3)),
    "bound.jsonl": (RECORDS, check_records),
    "set.train.tsv": (b'pos\ta good film\nneg\ta bad film\npos\t\nneg\tx y\npos\t"fine"\n', check_labelled_sentences),
}


@pytest.mark.parametrize("name", FILES)
@fuzz
@given(data=st.data())
def test_a_file(name: str, data: st.DataObject, tmp_path: Path) -> None:
    content, check = FILES[name]
    (tmp_path / name).write_bytes(data.draw(damaged(content)))
    reads_or_refuses(lambda: check(tmp_path / name), name, has_sizes=name == "a.idx")


ALIGNMENTS = {
    "a.phn": b"0 1600 h#\n1600 4800 sh\n4800 9600 iy\n",
    "a.ctm": b";; made\na 1 0.00 0.25 the\na 1 0.25 0.5 cat\nb A 0.1 0.2 x 0.9\n",
    "a.csv": b'path,start,end,label\na.wav,0,0.5,sh\na.wav,0.5,0.75,"i,y"\nb.wav,0,1,a\n',
    "a.txt": b"84-121123-0001 0 0 0 12 12 3\n84-121123-0002 7 7\n",
    "a.TextGrid": (
        b'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = 1\ntiers? <exists>\nsize = 1\n'
        b'item []:\n  item [1]:\n    class = "IntervalTier"\n    name = "phones"\n    xmin = 0\n    xmax = 1\n'
        b'    intervals: size = 2\n      intervals [1]:\n        xmin = 0\n        xmax = 0.5\n        text = "a"\n'
        b'      intervals [2]:\n        xmin = 0.5\n        xmax = 1\n        text = "b ""c"""\n'
    ),
    "b.TextGrid": (
        b'File type = "ooTextFile short"\n"TextGrid"\n0\n1\n<exists>\n2\n"IntervalTier"\n"phones"\n0\n1\n2\n'
        b'0\n0.5\n"a"\n0.5\n1\n"b"\n"TextTier"\n"clicks"\n0\n1\n1\n0.3\n"x"\n'
    ),
}


@pytest.mark.parametrize("name", ALIGNMENTS)
@fuzz
@given(changes=edits)
def test_alignments(name: str, changes: list[Edit], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(edited(ALIGNMENTS[name], changes))

    def read() -> None:
        alignments = read_alignments(tmp_path / name)
        for each in alignments.names:
            segments = alignments.segments(each)
            assert all(0 <= segment.start_seconds < segment.end_seconds < np.inf for segment in segments)
            assert all(a.end_seconds <= b.start_seconds for a, b in pairwise(segments))
        assert len(alignments.labels) >= 0

    reads_or_refuses(read, name)


@pytest.fixture(scope="module")
def audio_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Of every container, a tenth of a second."""
    folder, x = tmp_path_factory.mktemp("audio"), np.random.default_rng(0).uniform(-0.5, 0.5, 1600)
    for name, options in AUDIO.items():
        soundfile.write(folder / name, x, 16000, **options)
    return {name: (folder / name).read_bytes() for name in AUDIO}


AUDIO: dict[str, dict[str, str]] = {
    "a.mp3": {},
    "a.ogg": {},
    "a.wav": {},
    "a.caf": {"subtype": "PCM_24"},
    "a.rf64": {"format": "RF64"},
    "a.sph": {"format": "NIST", "subtype": "PCM_16"},
}


@pytest.mark.parametrize("name", AUDIO)
@fuzz
@given(changes=edits)
def test_audio(name: str, changes: list[Edit], audio_files: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(edited(audio_files[name], changes))

    def read() -> None:
        header = read_header(tmp_path / name)
        x = read_audio(tmp_path / name, header.sample_rate_hz)
        assert len(x) == header.num_samples

    reads_or_refuses(read, name)


FOLDERS = [  # of signals; one of the files is damaged
    *(["a.csv"], ["a.tsv"], ["a.parquet"], ["a.npy"], ["a.npz"], ["a.bdf"], ["a.hea", "a.dat", "a.atr"]),
    *(["a_eeg.edf", "a_events.tsv"], ["SC1E0-PSG.edf", "SC1EC-Hypnogram.edf"], ["manifest.csv", "labels.csv", "a.csv"]),
]


@pytest.fixture(scope="module")
def signal_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    edfio, wfdb = pytest.importorskip("edfio"), pytest.importorskip("wfdb")
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, rng = tmp_path_factory.mktemp("signals"), np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    rows = [f"{time / 50},{a:.3f},{b:.3f},walk" for time, (a, b) in enumerate(x)]
    table = "\n".join(["time,x,y,label", *rows, ""]).encode()
    np.savez(folder / "a.npz", x=x, length=[30, 10], label=["a", "b"], channels=["x", "y"], sample_rate_hz=50)
    np.save(folder / "a.npy", x)
    times = pa.array(np.arange(40) * 20, pa.timestamp("ms"))
    parquet.write_table(pa.table({"time": times, "x": x[:, 0], "label": ["a", "b"] * 20}), folder / "a.parquet")
    for name, of_file, of_signal in (
        ("a_eeg.edf", edfio.Edf, edfio.EdfSignal),
        ("a.bdf", edfio.Bdf, edfio.BdfSignal),
        ("SC1E0-PSG.edf", edfio.Edf, edfio.EdfSignal),
    ):
        signals = [of_signal(column, 20, label=label) for column, label in zip(x.T, "AB", strict=True)]
        of_file(signals, annotations=[edfio.EdfAnnotation(0.5, 1, "spindle")]).write(folder / name)
    edfio.Edf([], annotations=[edfio.EdfAnnotation(0, 1, "W")]).write(folder / "SC1EC-Hypnogram.edf")
    (folder / "a.dat").write_bytes(rng.integers(-99, 99, 120).astype("<i2").tobytes())
    (folder / "a.hea").write_bytes(b"a 2 20 30\na.dat 16x2 200 16 0 0 0 0 I\na.dat 16x2 200 16 0 0 0 0 II\n")
    notes = ["(AFIB", "", "(N"]
    wfdb.wrann("a", "atr", np.array([2, 5, 20]), ["+", "N", "+"], aux_note=notes, fs=20, write_dir=str(folder))
    return {file.name: file.read_bytes() for file in folder.iterdir()} | {
        "a.csv": table,
        "a.tsv": table.replace(b",", b"\t"),
        "manifest.csv": b"path,split,group,mood\na.csv,train,ann,good\n",
        "labels.csv": b"path,start,end,label,task\na.csv,0.1,0.3,cough,sound\na.csv,0.4,0.4,beat,heart\n",
        "a_events.tsv": b"onset\tduration\ttrial_type\n0.1\tn/a\tgo\n0.5\t0.2\tstop\n",
    }


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # pandas 3.1 about wfdb 4.3, which writes the record
@fuzz
@example(which=("a.hea", FOLDERS[6]), changes=[(103, 0, b"9" * 400)])  # frames
@example(which=("a.hea", FOLDERS[6]), changes=[(148, 0, b"9" * 400)])  # of a name
@given(which=st.sampled_from([(name, names) for names in FOLDERS for name in names]), changes=edits)
def test_signals(
    which: tuple[str, list[str]], changes: list[Edit], signal_files: dict[str, bytes], tmp_path: Path
) -> None:
    damaged, names = which
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    for name in names:
        (tmp_path / name).write_bytes(edited(signal_files[name], changes if name == damaged else []))

    def read() -> None:
        source = tmp_path / names[0] if names == ["a.npz"] else tmp_path
        recordings = read_recordings(source, missing="mask", sample_rate_hz=50 if names == ["a.npy"] else None)
        for row in range(len(recordings)):
            samples = np.concatenate(list(recordings.read(row)))
            assert 0 < len(samples) <= recordings.num_samples[row]
            for labels in recordings.labels.values():
                codes = labels.codes(row, 0, len(samples))
                assert -1 <= codes.min() <= codes.max() < max(1, len(labels.classes))
        for labels in recordings.labels.values():
            labels.check(str(tmp_path), recordings.names, np.array(recordings.num_samples))

    reads_or_refuses(read, str(tmp_path), has_sizes=True)


LABELS = {
    "a.csv": b'file,word,split\n1.wav,"yes, so",train\n2.wav,"so ""no""",valid\n',
    "a.tsv": b'file\tword\tsplit\n1.wav\t"yes\ttrain\n2.wav\t"no"\tvalid\n3.wav\tso"\ttest\n',
}


@pytest.mark.parametrize("name", LABELS)
@fuzz
@given(changes=edits)
def test_labels(name: str, changes: list[Edit], tmp_path: Path) -> None:
    content = edited(LABELS[name], changes)
    (tmp_path / name).write_bytes(content)
    paths = ["a/1.wav", "a/2.wav"]

    def read() -> None:
        found = join_labels(paths, tmp_path / name, "file")
        assert all(len(column) == 2 and name not in ("", "path") for name, column in found.items())
        lines = content.decode().replace('"', "").replace("\r", "\n").split("\n")
        for row, path in enumerate(paths):  # a file's labels are of one line
            cells = [column[row].replace('"', "") for column in found.values()]
            stem = path.removeprefix("a/").removesuffix(".wav")
            assert not any(cells) or any(stem in line and all(cell in line for cell in cells) for line in lines)

    reads_or_refuses(read, name)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


ARRAYS = {
    "images": npy(np.arange(48, dtype=np.uint8).reshape(3, 4, 4)),
    "labels": npy(np.array([0, 1, -1])),
    "classes": npy(np.array(["cat", "dog"])),
    "sequence": npy(np.array([0, 0, 1])),
    "split": npy(np.array(["train", "valid", "test"])),
}


@fuzz
@given(
    changes=st.dictionaries(st.sampled_from(list(ARRAYS)), edits, max_size=2),
    of_all=st.just([]) | st.just([]) | edits,
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
def test_npz(changes: dict[str, list[Edit]], of_all: list[Edit], method: int, tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in ARRAYS.items():
            archive.writestr(f"{name}.npy", edited(content, changes.get(name, [])))
    (tmp_path / "a.npz").write_bytes(edited(file.getvalue(), of_all))

    def read() -> None:
        table = read_image_source(tmp_path / "a.npz")
        for row in range(len(table)):
            with table.open(row) as image:
                image.load()

    reads_or_refuses(read, "a.npz", has_sizes=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    encoder = AudioEncoder(dim=2, kernels=(4,), strides=(4,), paddings=(0,))
    save_pretrained(CPC(encoder, GRU(dim=2), Bilinear(num_steps=1)), folder)
    load_pretrained(folder)  # what it imports is not the file's doing
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*path, key))


def with_another(value: Any, which: int, content: bytes) -> bytes:
    """JSON with this value somewhere, given in thousandths of its places."""
    whole = json.loads(content)
    where = list(places(whole))
    *way, last = where[1 + which * (len(where) - 1) // 1000]
    inner = whole
    for key in way:
        inner = inner[key]
    inner[last] = value
    return json.dumps(whole).encode()


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.sampled_from([-1, 0, 10**9, 10**400]),
    st.floats(allow_subnormal=False),
    st.sampled_from(["", "cpc.encoders.AudioEncoder", "os.system", "cpc.model.CPC", "../x"]),
    st.lists(st.integers(-2, 9), max_size=3),
    st.just({}),
    st.just({"class_path": "cpc.contexts.GRU", "init_args": {"dim": 2}}),
)


@fuzz
@given(which=st.integers(0, 999), value=anything, changes=st.none() | edits)
def test_config_of_a_model(which: int, value: Any, changes: list[Edit] | None, model: Path, tmp_path: Path) -> None:
    shutil.copy(model / "model.safetensors", tmp_path)
    content = (model / "config.json").read_bytes()
    content = with_another(value, which, content) if changes is None else edited(content, changes)
    (tmp_path / "config.json").write_bytes(content)
    reads_or_refuses(lambda: load_pretrained(tmp_path), str(tmp_path), has_sizes=True)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    np.savez(folder / "a.npz", images=np.arange(48, dtype=np.uint8).reshape(3, 4, 4), labels=[0, 1, -1])
    shard_corpus(folder / "a.npz", folder / "shards", image_size=4, num_channels=1, shard_mb=3.2e-5)
    return folder / "shards"


@fuzz
@given(which=st.integers(0, 999), value=anything, changes=st.none() | edits, of_table=st.booleans())
def test_shards(
    which: int, value: Any, changes: list[Edit] | None, of_table: bool, sharded: Path, tmp_path: Path
) -> None:
    """Their index, or a table whose checksum is right."""
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    damaged = tmp_path / (TABLE_NAME if of_table else INDEX_NAME)
    content = damaged.read_bytes()
    content = with_another(value, which, content) if changes is None else edited(content, changes)
    damaged.write_bytes(content)
    if of_table:
        index = json.loads((tmp_path / INDEX_NAME).read_text())
        index["files"][TABLE_NAME] = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (tmp_path / INDEX_NAME).write_text(json.dumps(index))

    def read() -> None:
        table = read_sharded_images(tmp_path, None, 1.0)
        shards = table.origin.shards
        pack = PackedImages(shards.folder, shards)
        assert set(table.splits) <= {"train", "valid", "test", "unlabelled"}
        assert pack.read(list(range(len(pack)))).nbytes == shards.num_bytes

    reads_or_refuses(read, str(tmp_path), has_sizes=True)


@fuzz
@given(content=damaged(RECORDS), kind=st.sampled_from([BOUND, HEALTH, PROBE]))
def test_records_of_the_monitor(content: bytes, kind: Any) -> None:
    tables, problems, _ = parse_lines(content.split(b"\n"), kind)
    assert all(problem.startswith(f"{kind.file}, line ") for problem in problems)
    run = Run(Path("run"), "run")
    run.files[kind.file].tables = tables
    badges(run, 0.0)
    charts([run], View(split="held-out", unit="bits"))


PACKS = {
    PackedRecordings: (np.arange(10, dtype="<i2"), {"shape": [], "dtype": "<i2", "sample_rate_hz": 16000}),
    PackedImages: (np.arange(40, dtype="u1").reshape(10, 2, 2, 1), {"shape": [2, 2, 1], "dtype": "|u1"}),
}


@pytest.mark.parametrize("kind", PACKS)
@fuzz
@given(changes=st.none() | edits, of_table=st.none() | edits, which=st.integers(0, 999), value=anything)
def test_pack(
    kind: type, changes: list[Edit] | None, of_table: list[Edit] | None, which: int, value: Any, tmp_path: Path
) -> None:
    elements, about = PACKS[kind]
    elements.tofile(tmp_path / "rows.bin")
    table = npy(np.array([[0, 4, 1, 1], [4, 6, 1, 1]]))
    (tmp_path / "rows.npy").write_bytes(edited(table, of_table or []))
    num_bytes = {name: os.path.getsize(tmp_path / name) for name in ("rows.bin", "rows.npy")}
    index = {"format": FORMAT, "num_bytes": num_bytes, "skipped": {"1": "damaged"}, **about}
    if changes is None:
        index[list(index)[which * len(index) // 1000]] = value
    (tmp_path / "index.json").write_bytes(edited(json.dumps(index).encode(), changes or []))

    def read() -> None:
        pack = kind(tmp_path)
        for row in range(len(pack)):
            if row not in pack.skipped:
                found = pack.read(row, 0, 100) if kind is PackedRecordings else pack.read([row])
                assert found.nbytes <= 1000
        assert pack.subset([]).lengths.shape == (0,)
        pack.statistics_over(255)

    reads_or_refuses(read, str(tmp_path), has_sizes=True)


TEXTS = [
    *("“Où?” dit-il. Él vino… Да.\n".encode(encoding) for encoding in ("UTF-8", "UTF-8-sig", "UTF-16", "UTF-16LE")),
    *("वह गया। 他走了。真的。 กินข้าว \u200d❤\ufe0f\n".encode(encoding) for encoding in ("UTF-8", "UTF-16", "UTF-32")),
    "Él vino. «CAFÉ»\r\rÆon.\n".encode("latin-1"),
]


@fuzz
@given(content=st.sampled_from(TEXTS).flatmap(damaged), encoding=st.sampled_from(["UTF-8", "latin-1", "windows-1252"]))
def test_text(content: bytes, encoding: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)

    def read_the_sentences() -> None:
        for sentence in read_sentences(tmp_path / "a.txt", encoding):
            assert sentence.strip()
            assert "\0" not in sentence

    def read_the_lines() -> None:
        for line in read_lines(tmp_path / "a.txt"):
            assert line.strip() == line
            assert "\0" not in line
            symbols = {*WORD.findall(normal_form(line)), END, UNKNOWN}
            known = Vocabulary(sorted(symbols), "words", segmentation=VERSION)
            assert known.unknown not in known.encode(line) or UNKNOWN in line

    reads_or_refuses(read_the_sentences, "a.txt")
    reads_or_refuses(read_the_lines, "a.txt")
