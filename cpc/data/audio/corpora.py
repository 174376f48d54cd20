"""Public corpora: from the folders as their authors lay them out to a manifest with splits and labels.

One function per corpus; `datasets/NAME/prepare.py` calls it by way of `cpc.options.prepare_from_command_line`, and
`datasets/NAME/card.md` says what to download. Nothing is downloaded here, and nothing but the manifest is written.
"""

import re
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path

from cpc.data.audio.index import index_folder
from cpc.data.audio.manifest import MANIFEST_NAME, Manifest
from cpc.data.store.folders import name_a_few

FSDD_TEST_INDICES = range(5)
# 9 to 14 utterances per training speaker: every tenth, from the fifth on, gives each of them exactly one.
AN4_VALID_PERIOD, AN4_VALID_OFFSET = 10, 4


def prepare_fsdd(root: Path, out: Path | None = None) -> Manifest:
    """Write the manifest of the Free Spoken Digit Dataset: splits train and test, label `digit`.

    Args:
        root: folder with recordings named `{digit}_{speaker}_{index}`.
        out: where the manifest goes; ROOT/manifest.csv unless given.

    Raises:
        ValueError: if a file is named otherwise, or a digit of a speaker has no recording in one of the splits.
    """
    index, out = _index(root, out)
    named = _parse(index, r"(?:^|/)(?P<digit>\d)_(?P<speaker>[^/_]+)_(?P<index>\d+)\.\w+$", "{digit}_{speaker}_{index}")
    splits = ["test" if int(take) in FSDD_TEST_INDICES else "train" for take in named["index"]]
    groups = list(zip(named["digit"], named["speaker"], strict=True))
    for split in ("train", "test"):
        present = {group for group, own in zip(groups, splits, strict=True) if own == split}
        absent = sorted(f"digit {digit} by {speaker}" for digit, speaker in set(groups) - present)
        if absent:
            raise ValueError(f"split {split} (indices 0-4 are test) lacks recordings of:\n{name_a_few(absent)}")
    return _write(index, out, split=splits, speaker=named["speaker"], digit=named["digit"])


def prepare_an4(root: Path, out: Path | None = None) -> Manifest:
    """Write the manifest of CMU AN4: splits train, valid and test, label `transcript`.

    The official test speakers are not among the training speakers. For what needs the same speakers again, a speaker
    probe or a held-out bound, `valid` is every tenth utterance of each training speaker, in the order of file names.

    Args:
        root: folder with `etc` and, at any depth, `an4_clstk/SPEAKER/*` and `an4test_clstk/SPEAKER/*`.
        out: where the manifest goes; ROOT/manifest.csv unless given.

    Raises:
        ValueError: if audio lies elsewhere, either part or its transcriptions are missing, or an utterance has none.
    """
    index, out = _index(root, out)
    layout = "an4_clstk/SPEAKER/UTTERANCE or an4test_clstk/SPEAKER/UTTERANCE"
    pattern = r"(?:^|/)(?P<part>an4(?:test)?_clstk)/(?P<speaker>[^/]+)/(?P<utterance>[^/]+)\.\w+$"
    named = _parse(index, pattern, layout)
    absent = {"an4_clstk", "an4test_clstk"} - set(named["part"])
    if absent:
        raise ValueError(f"{root} has no audio in {', '.join(sorted(absent))}: training and test part belong together")

    transcripts = _read_an4_transcripts(root)
    _refuse(
        f"utterances have no line in {root / 'etc'}/an4_{{train,test}}.transcription",
        [utterance for utterance in named["utterance"] if utterance not in transcripts],
    )
    num_seen = dict.fromkeys(named["speaker"], 0)
    splits = []
    for part, speaker in zip(named["part"], named["speaker"], strict=True):  # sorted by path: deterministic
        is_valid = num_seen[speaker] % AN4_VALID_PERIOD == AN4_VALID_OFFSET
        num_seen[speaker] += 1
        splits.append("test" if part == "an4test_clstk" else "valid" if is_valid else "train")
    spoken = [transcripts[utterance] for utterance in named["utterance"]]
    return _write(index, out, split=splits, speaker=named["speaker"], transcript=spoken)


def _read_an4_transcripts(root: Path) -> dict[str, str]:
    """Utterance -> words, from lines like `<s> YES </s> (an251-fash-b)`."""
    transcripts = {}
    for part in ("train", "test"):
        for line in _read_list(root / "etc" / f"an4_{part}.transcription"):
            words, _, utterance = line.rpartition("(")
            spoken = [word for word in words.split() if word not in ("<s>", "</s>")]
            transcripts[utterance.rstrip(")")] = " ".join(spoken)
    return transcripts


def prepare_speech_commands(root: Path, out: Path | None = None) -> Manifest:
    """Write the manifest of Speech Commands v0.02: splits train, valid and test, label `word`.

    Speakers are the hashes in the file names; `_background_noise_` holds no words and is left out.

    Args:
        root: folder with `validation_list.txt`, `testing_list.txt` and one folder per word.
        out: where the manifest goes; ROOT/manifest.csv unless given.

    Raises:
        ValueError: if a list is missing, names absent audio or what the other names, or a file is named otherwise.
    """
    index, out = _index(root, out)
    index = index.take([row for row, path in enumerate(index.paths) if Path(path).parent.name != "_background_noise_"])
    layout = "WORD/SPEAKER_nohash_NUMBER"
    pattern = r"(?:^|/)(?P<id>(?P<word>[^/]+)/(?P<speaker>[^/_]+)_nohash_\d+)\.\w+$"
    named = _parse(index, pattern, layout)
    lists = {"valid": root / "validation_list.txt", "test": root / "testing_list.txt"}
    split_of = _splits(lists, named["id"], without_suffix=True)
    splits = [split_of.get(utterance, "train") for utterance in named["id"]]
    return _write(index, out, split=splits, speaker=named["speaker"], word=named["word"])


def prepare_librispeech(
    root: Path,
    out: Path | None = None,
    lists: Path | None = None,
    phones: Path | None = None,
    allow_missing: bool = False,
) -> Manifest:
    """Write the manifest of LibriSpeech train-clean-100 with the CPC paper's split: train and test, same speakers.

    Audio that neither list names is left out, with a warning that says how much.

    Args:
        root: folder with `SPEAKER/CHAPTER/SPEAKER-CHAPTER-UTTERANCE.flac` at any depth.
        out: where the manifest goes; ROOT/manifest.csv unless given.
        lists: folder with `train_split.txt` and `test_split.txt`, one SPEAKER-CHAPTER-UTTERANCE per line; ROOT unless
            given.
        phones: `converted_aligned_phones.txt`; checked to label the utterances of both lists.
        allow_missing: leave out what the lists name and the folder has not, and warn how much, instead of raising.

    Raises:
        ValueError: if a list is missing, names absent audio or what the other names, or a file is named otherwise.
    """
    lists = root if lists is None else lists
    index, out = _index(root, out)
    pattern = r"(?:^|/)(?P<id>(?P<speaker>\d+)-(?P<chapter>\d+)-\d+)\.\w+$"
    named = _parse(index, pattern, "SPEAKER-CHAPTER-UTTERANCE.flac")
    ids = named["id"]
    split_files = {"train": lists / "train_split.txt", "test": lists / "test_split.txt"}
    split_of = _splits(split_files, ids, allow_missing=allow_missing)
    if phones is not None:
        labelled = {line.split(maxsplit=1)[0] for line in _read_list(phones)}
        _refuse(f"listed utterances have no labels in {phones}", sorted(split_of.keys() - labelled))

    rows = [row for row, utterance in enumerate(ids) if utterance in split_of]
    unlisted = [utterance for utterance in ids if utterance not in split_of]
    if unlisted:
        warnings.warn(f"left out {len(unlisted)} utterances in neither list:\n{name_a_few(unlisted)}", stacklevel=2)
    kept = {name: [values[row] for row in rows] for name, values in named.items()}
    splits = [split_of[utterance] for utterance in kept["id"]]
    return _write(index.take(rows), out, split=splits, speaker=kept["speaker"], chapter=kept["chapter"])


def describe(manifest: Manifest, published: dict[str, int] | None = None) -> str:
    """A table of the splits: files, speakers, hours, and where `published` counts of files differ from these."""
    hours = manifest.num_samples / manifest.sample_rate_hz / 3600
    speakers, splits = manifest.column("speaker"), manifest.column("split")
    lines = [
        f"{len(manifest)} files, manifest in {manifest.root}",
        f"{'split':8}{'files':>8}{'speakers':>10}{'hours':>8}",
    ]
    for split in dict.fromkeys([*(published or {}), *splits]):
        rows = [row for row, own in enumerate(splits) if own == split]
        num_speakers = len({speakers[row] for row in rows})
        line = f"{split:8}{len(rows):8}{num_speakers:10}{hours[rows].sum():8.2f}"
        if published and published.get(split) != len(rows):
            line += f"   (published: {published.get(split, 0)})"
        lines.append(line)
    labels = [f"{name} ({len(set(manifest.column(name)))} values)" for name in manifest.label_columns]
    return "\n".join([*lines, f"labels: {', '.join(labels) or 'none'}"])


def _index(root: Path, out: Path | None) -> tuple[Manifest, Path]:
    """The audio below `root`, and where its manifest goes; nothing is left there if the corpus is refused later."""
    out = root if out is None else out
    if out.is_dir():
        out = out / MANIFEST_NAME
    draft = out.with_name(f"{out.stem}.index.csv")
    index = index_folder(root, draft, valid_share=0.0, test_share=0.0, overwrite=True)
    draft.unlink()
    return index, out


def _parse(index: Manifest, pattern: str, layout: str) -> dict[str, list[str]]:
    """The pattern's named groups, one list per group."""
    matches = [re.search(pattern, path) for path in index.paths]
    strange = [path for path, match in zip(index.paths, matches, strict=True) if match is None]
    _refuse(f"of {len(index)} audio files are not named like {layout}", strange)
    groups = re.compile(pattern).groupindex
    return {name: [match[name] for match in matches if match] for name in groups}


def _splits(
    lists: dict[str, Path], ids: Collection[str], *, without_suffix: bool = False, allow_missing: bool = False
) -> dict[str, str]:
    """Utterance -> split, from one list per split."""
    present = set(ids)
    split_of: dict[str, str] = {}
    for split, path in lists.items():
        named = [line.rpartition(".")[0] if without_suffix else line for line in _read_list(path)]
        _refuse(f"utterances of {path} stand in another list too", [each for each in named if each in split_of])
        absent = [each for each in named if each not in present]
        if absent and allow_missing:
            warnings.warn(f"left out {len(absent)} utterances of {path} without audio", stacklevel=3)
        elif absent:
            _refuse(f"of {len(named)} utterances of {path} have no audio", absent)
        split_of |= {each: split for each in named if each in present}
    return split_of


def _read_list(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"there is no {path}: the corpus's card says where it comes from")
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _refuse(complaint: str, culprits: Iterable[str]) -> None:
    culprits = list(culprits)
    if culprits:
        raise ValueError(f"{len(culprits)} {complaint}:\n{name_a_few(culprits)}")


def _write(index: Manifest, out: Path, *, split: list[str], speaker: list[str], **labels: list[str]) -> Manifest:
    counts = {name: values for name, values in index.columns.items() if name != "path"}
    columns = {"path": index.paths, "split": split, "speaker": speaker, **counts, **labels}
    manifest = Manifest(index.root, columns)
    manifest.write(out)
    return manifest
