"""Write manifest.csv for ESC-10: python datasets/esc10/prepare.py DIR (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.audio.corpora import describe, index_audio, parse_paths, write_manifest
from cpc.data.audio.manifest import Manifest

SPLITS = {"4": "valid", "5": "test"}  # by fold


def prepare_esc10(root: Path, out: Path | None = None) -> Manifest:
    """Write the manifest of ESC-10: splits train, valid and test, label `sound`.

    `speaker` is the field recording that a clip was cut from.

    Args:
        root: folder with clips named `{class} - {sound}/{fold}-{recording}-{take}`.
        out: path of the manifest; ROOT/manifest.csv if not given.

    Raises:
        ValueError: if a path has another form.
    """
    index, out = index_audio(root, out)
    layout = "CLASS - SOUND/FOLD-RECORDING-TAKE"
    pattern = r"(?:^|/)\d+ - (?P<sound>[^/]+)/(?P<fold>[1-5])-(?P<recording>\d+)-[A-Z]\.\w+$"
    named = parse_paths(index, pattern, layout)
    splits = [SPLITS.get(fold, "train") for fold in named["fold"]]
    sounds = [sound.lower().replace(" ", "_") for sound in named["sound"]]
    return write_manifest(index, out, split=splits, speaker=named["recording"], sound=sounds)


if __name__ == "__main__":
    prepare_from_command_line(prepare_esc10, describe, published={"train": 240, "valid": 80, "test": 80})
