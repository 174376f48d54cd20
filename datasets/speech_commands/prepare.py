"""Write manifest.csv for Speech Commands v0.02: python datasets/speech_commands/prepare.py DIR (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.audio.corpora import describe, index_audio, parse_paths, splits_of, write_manifest
from cpc.data.audio.manifest import Manifest


def prepare_speech_commands(root: Path, out: Path | None = None) -> Manifest:
    """Write the manifest of Speech Commands v0.02: splits train, valid and test, label `word`.

    Speakers are the hashes in the file names; `_background_noise_` holds no words and is left out.

    Args:
        root: folder with `validation_list.txt`, `testing_list.txt` and one folder per word.
        out: where the manifest goes; ROOT/manifest.csv unless given.

    Raises:
        ValueError: if a list is missing, names absent audio or what the other names, or a file is named otherwise.
    """
    index, out = index_audio(root, out)
    index = index.take([row for row, path in enumerate(index.paths) if Path(path).parent.name != "_background_noise_"])
    layout = "WORD/SPEAKER_nohash_NUMBER"
    pattern = r"(?:^|/)(?P<id>(?P<word>[^/]+)/(?P<speaker>[^/_]+)_nohash_\d+)\.\w+$"
    named = parse_paths(index, pattern, layout)
    lists = {"valid": root / "validation_list.txt", "test": root / "testing_list.txt"}
    split_of = splits_of(lists, named["id"], drop_suffix=True)
    splits = [split_of.get(utterance, "train") for utterance in named["id"]]
    return write_manifest(index, out, split=splits, speaker=named["speaker"], word=named["word"])


if __name__ == "__main__":
    prepare_from_command_line(
        prepare_speech_commands, describe, published={"train": 84843, "valid": 9981, "test": 11005}
    )
