"""Write manifest.csv for LibriSpeech: python datasets/librispeech/prepare.py DIR --lists DIR (see card.md)."""

import warnings
from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.audio.corpora import describe, index_audio, parse_paths, read_list, refuse, splits_of, write_manifest
from cpc.data.audio.manifest import Manifest
from cpc.data.store.folders import name_a_few


def prepare_librispeech(
    root: Path,
    out: Path | None = None,
    lists: Path | None = None,
    phones: Path | None = None,
    allow_missing: bool = False,
) -> Manifest:
    """Write the manifest of LibriSpeech train-clean-100 with the CPC paper's split: train and test, same speakers.

    Audio in neither list is left out, with a warning that gives the number of files.

    Args:
        root: folder with `SPEAKER/CHAPTER/SPEAKER-CHAPTER-UTTERANCE.flac` at any depth.
        out: path of the manifest; ROOT/manifest.csv if not given.
        lists: folder with `train_split.txt` and `test_split.txt`, one SPEAKER-CHAPTER-UTTERANCE per line; ROOT unless
            given.
        phones: `converted_aligned_phones.txt`; checked to label the utterances of both lists.
        allow_missing: leave out listed utterances without audio, with a warning, instead of raising an error.

    Raises:
        ValueError: if a list is missing, an utterance is in both lists or has no audio, or a file name has another
            form.
    """
    lists = root if lists is None else lists
    index, out = index_audio(root, out)
    pattern = r"(?:^|/)(?P<id>(?P<speaker>\d+)-(?P<chapter>\d+)-\d+)\.\w+$"
    named = parse_paths(index, pattern, "SPEAKER-CHAPTER-UTTERANCE.flac")
    ids = named["id"]
    split_files = {"train": lists / "train_split.txt", "test": lists / "test_split.txt"}
    split_of = splits_of(split_files, ids, allow_missing=allow_missing)
    if phones is not None:
        labelled = {line.split(maxsplit=1)[0] for line in read_list(phones)}
        refuse(f"listed utterances have no labels in {phones}", sorted(split_of.keys() - labelled))

    rows = [row for row, utterance in enumerate(ids) if utterance in split_of]
    unlisted = [utterance for utterance in ids if utterance not in split_of]
    if unlisted:
        warnings.warn(f"left out {len(unlisted)} utterances in neither list:\n{name_a_few(unlisted)}", stacklevel=2)
    kept = {name: [values[row] for row in rows] for name, values in named.items()}
    splits = [split_of[utterance] for utterance in kept["id"]]
    return write_manifest(index.take(rows), out, split=splits, speaker=kept["speaker"], chapter=kept["chapter"])


if __name__ == "__main__":
    prepare_from_command_line(prepare_librispeech, describe, published={"train": 22830, "test": 5708})
