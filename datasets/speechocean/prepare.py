"""Write manifest.csv for speechocean762: python datasets/speechocean/prepare.py DIR (see card.md)."""

import csv
from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.audio.corpora import describe, index_audio, parse_paths, read_list, refuse, write_manifest
from cpc.data.audio.manifest import Manifest

# Every speaker has 20 utterances: every tenth, from the fifth on, gives each of them exactly two.
VALID_PERIOD, VALID_OFFSET = 10, 4


def prepare_speechocean(root: Path, out: Path | None = None) -> Manifest:
    """Write the manifest of speechocean762: splits train, valid and test, labels `gender` and `age`.

    The official test speakers are not among the training speakers. `valid` is every tenth utterance of each training
    speaker, in the order of file names.

    Args:
        root: folder with the official lists `train/utt2spk`, `train/spk2age`, `train/spk2gender` (and `test/...`), or
            with one table `utterances.tsv` of training utterances; and, at any depth, `SPEAKER/UTTERANCE` as audio.
        out: path of the manifest; ROOT/manifest.csv if not given.

    Raises:
        ValueError: if audio lies elsewhere, there are no lists, or an utterance is not in them.
    """
    index, out = index_audio(root, out)
    pattern = r"(?:^|/)(?:SPEAKER)?(?P<speaker>\d{4})/(?P<utterance>\d{9})\.\w+$"
    named = parse_paths(index, pattern, "SPEAKER0001/000010011.WAV or 0001/000010011.ogg")
    parts = _read_table(root / "utterances.tsv") if (root / "utterances.tsv").exists() else _read_lists(root)
    refuse(f"utterances are not in the lists of {root}", [each for each in named["utterance"] if each not in parts])
    num_seen = dict.fromkeys(named["speaker"], 0)
    splits = []
    for utterance, speaker in zip(named["utterance"], named["speaker"], strict=True):  # sorted by path
        is_valid = num_seen[speaker] % VALID_PERIOD == VALID_OFFSET
        num_seen[speaker] += 1
        part = parts[utterance][0]
        splits.append("valid" if is_valid and part == "train" else part)
    genders, ages = ([parts[utterance][i] for utterance in named["utterance"]] for i in (1, 2))
    return write_manifest(index, out, split=splits, speaker=named["speaker"], gender=genders, age=ages)


def _read_table(path: Path) -> dict[str, tuple[str, str, str]]:
    """Return part, gender and age by utterance, from the table of the training part."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream, delimiter="\t")
        return {Path(row["file"]).stem: ("train", row["gender"], row["age"]) for row in rows}


def _read_lists(root: Path) -> dict[str, tuple[str, str, str]]:
    """Return part, gender and age by utterance, from lines like `000010011 0001` of the official lists."""
    found = {}
    for part in ("train", "test"):
        speaker_of, gender_of, age_of = (
            dict(line.split(maxsplit=1) for line in read_list(root / part / name))
            for name in ("utt2spk", "spk2gender", "spk2age")
        )
        found |= {utterance: (part, gender_of[name], age_of[name]) for utterance, name in speaker_of.items()}
    return found


if __name__ == "__main__":
    prepare_from_command_line(prepare_speechocean, describe, published={"train": 2250, "valid": 250, "test": 2500})
