"""Write manifest.csv for CMU AN4: python datasets/an4/prepare.py DIR (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.audio.corpora import describe, index_audio, parse_paths, read_list, refuse, write_manifest
from cpc.data.audio.manifest import Manifest

# 9 to 14 utterances per training speaker: every tenth, from the fifth on, gives each of them exactly one.
VALID_PERIOD, VALID_OFFSET = 10, 4


def prepare_an4(root: Path, out: Path | None = None) -> Manifest:
    """Write the manifest of CMU AN4: splits train, valid and test, label `transcript`.

    The official test speakers are not among the training speakers. Speaker probes and held-out bounds need utterances
    of the training speakers: `valid` is every tenth utterance of each training speaker, in the order of file names.

    Args:
        root: folder with `etc` and, at any depth, `an4_clstk/SPEAKER/*` and `an4test_clstk/SPEAKER/*`.
        out: path of the manifest; ROOT/manifest.csv if not given.

    Raises:
        ValueError: if audio lies elsewhere, a part or its transcriptions are missing, or an utterance has no
            transcription.
    """
    index, out = index_audio(root, out)
    layout = "an4_clstk/SPEAKER/UTTERANCE or an4test_clstk/SPEAKER/UTTERANCE"
    pattern = r"(?:^|/)(?P<part>an4(?:test)?_clstk)/(?P<speaker>[^/]+)/(?P<utterance>[^/]+)\.\w+$"
    named = parse_paths(index, pattern, layout)
    absent = {"an4_clstk", "an4test_clstk"} - set(named["part"])
    if absent:
        raise ValueError(f"{root} has no audio in {', '.join(sorted(absent))}: training and test part belong together")

    transcripts = _read_transcripts(root)
    refuse(
        f"utterances have no line in {root / 'etc'}/an4_{{train,test}}.transcription",
        [utterance for utterance in named["utterance"] if utterance not in transcripts],
    )
    num_seen = dict.fromkeys(named["speaker"], 0)
    splits = []
    for part, speaker in zip(named["part"], named["speaker"], strict=True):  # sorted by path: deterministic
        is_valid = num_seen[speaker] % VALID_PERIOD == VALID_OFFSET
        num_seen[speaker] += 1
        splits.append("test" if part == "an4test_clstk" else "valid" if is_valid else "train")
    spoken = [transcripts[utterance] for utterance in named["utterance"]]
    return write_manifest(index, out, split=splits, speaker=named["speaker"], transcript=spoken)


def _read_transcripts(root: Path) -> dict[str, str]:
    """Return the words of each utterance, from lines like `<s> YES </s> (an251-fash-b)`."""
    transcripts = {}
    for part in ("train", "test"):
        for line in read_list(root / "etc" / f"an4_{part}.transcription"):
            words, _, utterance = line.rpartition("(")
            spoken = [word for word in words.split() if word not in ("<s>", "</s>")]
            transcripts[utterance.rstrip(")")] = " ".join(spoken)
    return transcripts


if __name__ == "__main__":
    prepare_from_command_line(prepare_an4, describe, published={"train": 874, "valid": 74, "test": 130})
