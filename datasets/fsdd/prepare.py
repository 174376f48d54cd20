"""Write manifest.csv for the Free Spoken Digit Dataset: python datasets/fsdd/prepare.py DIR (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.audio.corpora import describe, index_audio, parse_paths, write_manifest
from cpc.data.audio.manifest import Manifest
from cpc.data.store.folders import name_a_few

TEST_INDICES = range(5)


def prepare_fsdd(root: Path, out: Path | None = None) -> Manifest:
    """Write the manifest of the Free Spoken Digit Dataset: splits train and test, label `digit`.

    Args:
        root: folder with recordings named `{digit}_{speaker}_{index}`.
        out: path of the manifest; ROOT/manifest.csv if not given.

    Raises:
        ValueError: if a file name has another form, or a digit of a speaker has no recording in one of the splits.
    """
    index, out = index_audio(root, out)
    named = parse_paths(
        index, r"(?:^|/)(?P<digit>\d)_(?P<speaker>[^/_]+)_(?P<index>\d+)\.\w+$", "{digit}_{speaker}_{index}"
    )
    splits = ["test" if int(take) in TEST_INDICES else "train" for take in named["index"]]
    groups = list(zip(named["digit"], named["speaker"], strict=True))
    for split in ("train", "test"):
        present = {group for group, own in zip(groups, splits, strict=True) if own == split}
        absent = sorted(f"digit {digit} by {speaker}" for digit, speaker in set(groups) - present)
        if absent:
            raise ValueError(f"split {split} (indices 0-4 are test) lacks recordings of:\n{name_a_few(absent)}")
    return write_manifest(index, out, split=splits, speaker=named["speaker"], digit=named["digit"])


if __name__ == "__main__":
    prepare_from_command_line(prepare_fsdd, describe, published={"train": 2700, "test": 300})
