"""datasets/*/prepare.py, run by path on small trees of each corpus's layout, and on real ones where they lie near."""

import csv
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_data import REPOSITORY, Prepare, real

from cpc.data.audio.manifest import read_manifest

Write = Callable[..., Path]


def rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as stream:
        return {"/".join(Path(row["path"]).parts[-2:]): row for row in csv.DictReader(stream)}


@pytest.fixture
def fsdd(tmp_path: Path, write_audio: Write) -> Path:
    for digit in (0, 7):
        for speaker in ("ann", "bob"):
            for take in (0, 4, 5, 12):
                path = tmp_path / "fsdd" / "recordings" / f"{digit}_{speaker}_{take}.wav"
                write_audio(path, 0.2, sample_rate_hz=8000, seed=take)
    return tmp_path / "fsdd"


@pytest.fixture
def an4(tmp_path: Path, write_audio: Write) -> Path:
    root = tmp_path / "an4"
    (root / "etc").mkdir(parents=True)
    for part, folder, speakers in (("train", "an4_clstk", ("fash", "mblb")), ("test", "an4test_clstk", ("fcaw",))):
        lines = []
        for speaker in speakers:
            for number in range(12 if part == "train" else 3):
                write_audio(root / "wav" / folder / speaker / f"an{100 + number}-{speaker}-b.wav", 0.2)
                words = "<s> YES NO </s>" if part == "train" else "RUBOUT G M"
                lines.append(f"{words} (an{100 + number}-{speaker}-b)")
        (root / "etc" / f"an4_{part}.transcription").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def speech_commands(tmp_path: Path, write_audio: Write) -> Path:
    root = tmp_path / "commands"
    for word in ("yes", "stop"):
        for speaker in ("0a1b2c3d", "ffff0000", "12345678"):
            for take in (0, 1):
                write_audio(root / word / f"{speaker}_nohash_{take}.wav", 0.2)
    write_audio(root / "_background_noise_" / "pink_noise.wav", 0.3)
    (root / "validation_list.txt").write_text("yes/ffff0000_nohash_0.wav\nstop/ffff0000_nohash_1.wav\n")
    (root / "testing_list.txt").write_text("yes/12345678_nohash_0.wav\n")
    return root


@pytest.fixture
def librispeech(tmp_path: Path, write_audio: Write) -> Path:
    root = tmp_path / "librispeech"
    ids = [f"{speaker}-{chapter}-{n:04}" for speaker, chapter in ((19, 198), (26, 495)) for n in range(3)]
    for utterance in ids:
        speaker, chapter, _ = utterance.split("-")
        write_audio(root / "LibriSpeech" / "train-clean-100" / speaker / chapter / f"{utterance}.flac", 0.2)
    lists = root / "lists"
    lists.mkdir()
    (lists / "train_split.txt").write_text("\n".join([*ids[:2], *ids[3:5]]))  # the published lists end so, too
    (lists / "test_split.txt").write_text("\n".join([ids[2], ids[5]]) + "\n")
    (root / "converted_aligned_phones.txt").write_text("".join(f"{utterance} 0 0 7 40\n" for utterance in ids))
    return root


@pytest.fixture
def speechocean(tmp_path: Path, write_audio: Write) -> Path:
    root = tmp_path / "speechocean"
    for part, speakers in (("train", ("0001", "0005")), ("test", ("0003",))):
        (root / part).mkdir(parents=True)
        for speaker in speakers:
            for number in range(6):
                write_audio(root / "WAVE" / f"SPEAKER{speaker}" / f"00{speaker}{number:03}.WAV", 0.2)
        names = [f"00{speaker}{number:03}\t{speaker}" for speaker in speakers for number in range(6)]
        (root / part / "utt2spk").write_text("\n".join(names) + "\n")
        for name, value in (("spk2gender", "f"), ("spk2age", "12")):
            (root / part / name).write_text("".join(f"{speaker}\t{value}\n" for speaker in speakers))
    return root


def test_fsdd(prepare: Prepare, fsdd: Path) -> None:
    printed = prepare("fsdd", fsdd)
    written = rows(fsdd / "manifest.csv")
    assert len(written) == 16
    for name, row in written.items():
        digit, speaker, take = name.split("/")[1].removesuffix(".wav").split("_")
        assert (row["digit"], row["speaker"]) == (digit, speaker)
        assert row["split"] == ("test" if int(take) <= 4 else "train")
        assert (row["num_samples"], row["sample_rate_hz"], row["num_channels"]) == ("1600", "8000", "1")
    assert read_manifest(fsdd).label_columns == ["digit"]
    assert re.search(r"train +8 +\S+ +\(published: 2700\)", printed)
    assert sorted(path.name for path in fsdd.iterdir()) == ["manifest.csv", "recordings"]


def test_fsdd_refusals(prepare: Prepare, fsdd: Path, write_audio: Write) -> None:
    for take in (5, 12):
        (fsdd / "recordings" / f"7_bob_{take}.wav").unlink()
    prepare("fsdd", fsdd, refused=r"split train .*\n  digit 7 by bob")
    write_audio(fsdd / "recordings" / "seven.wav")
    prepare("fsdd", fsdd, refused=r"1 of 15 audio files do not have names like .*\n  recordings/seven.wav")
    assert not list(fsdd.glob("*.csv")), "a refused corpus leaves no manifest"


def test_an4(prepare: Prepare, an4: Path) -> None:
    prepare("an4", an4)
    written = rows(an4 / "manifest.csv")
    # 12 utterances per training speaker: the fifth of each is valid, the fifteenth does not exist.
    valid = {name for name, row in written.items() if row["split"] == "valid"}
    assert valid == {"fash/an104-fash-b.wav", "mblb/an104-mblb-b.wav"}
    assert Counter(row["split"] for row in written.values()) == {"train": 22, "valid": 2, "test": 3}
    assert {row["speaker"] for row in written.values() if row["split"] == "test"} == {"fcaw"}
    assert written["fash/an103-fash-b.wav"]["transcript"] == "YES NO"
    assert written["fcaw/an100-fcaw-b.wav"]["transcript"] == "RUBOUT G M"


def test_speechocean(prepare: Prepare, speechocean: Path) -> None:
    prepare("speechocean", speechocean)
    written = rows(speechocean / "manifest.csv")
    assert len(written) == 18
    for name, row in written.items():
        speaker, number = name.split("/")[0].removeprefix("SPEAKER"), int(name.split(".")[0][-3:])
        assert row["split"] == ("test" if speaker == "0003" else "valid" if number == 4 else "train")
        assert (row["speaker"], row["gender"], row["age"]) == (speaker, "f", "12")


def test_speechocean_from_one_table(prepare: Prepare, speechocean: Path) -> None:
    shutil.rmtree(speechocean / "WAVE" / "SPEAKER0003")
    for part in ("train", "test"):
        shutil.rmtree(speechocean / part)
    lines = [
        f"{speaker}/00{speaker}{number:03}.wav\t{speaker}\tm\t40\tNO\tN OW"
        for speaker in ("0001", "0005")
        for number in range(6)
    ]
    header = "file\tspeaker\tgender\tage\ttext\tphones"
    (speechocean / "utterances.tsv").write_text("\n".join([header, *lines]) + "\n")
    prepare("speechocean", speechocean)
    written = rows(speechocean / "manifest.csv")
    assert Counter(row["split"] for row in written.values()) == {"train": 10, "valid": 2}
    assert {(row["gender"], row["age"]) for row in written.values()} == {("m", "40")}
    (speechocean / "utterances.tsv").write_text("\n".join([header, *lines[1:]]) + "\n")
    prepare("speechocean", speechocean, refused=r"1 utterances are not in the lists of .*:\n  000001000")


def test_an4_refusals(prepare: Prepare, an4: Path) -> None:
    transcription = an4 / "etc" / "an4_test.transcription"
    lines = transcription.read_text().splitlines()
    transcription.write_text("\n".join(lines[1:]))
    prepare("an4", an4, refused=r"1 utterances have no line in .*an4_.*transcription:\n  an100-fcaw-b")
    transcription.unlink()
    prepare("an4", an4, refused=r"there is no .*an4_test.transcription")
    (an4 / "wav" / "an4test_clstk").rename(an4 / "test")
    prepare("an4", an4, refused=r"3 of 27 audio files do not have names like an4_clstk")


def test_speech_commands(prepare: Prepare, speech_commands: Path) -> None:
    prepare("speech_commands", speech_commands)
    written = rows(speech_commands / "manifest.csv")
    assert len(written) == 12, "background noise is no word"
    valid, test = ({name for name, row in written.items() if row["split"] == split} for split in ("valid", "test"))
    assert valid == {"yes/ffff0000_nohash_0.wav", "stop/ffff0000_nohash_1.wav"}
    assert test == {"yes/12345678_nohash_0.wav"}
    row = written["stop/0a1b2c3d_nohash_1.wav"]
    assert (row["word"], row["speaker"], row["split"]) == ("stop", "0a1b2c3d", "train")


def test_speech_commands_refusals(prepare: Prepare, speech_commands: Path) -> None:
    testing = speech_commands / "testing_list.txt"
    testing.write_text("yes/99999999_nohash_0.wav\n")
    prepare("speech_commands", speech_commands, refused=r"1 of 1 utterances of .*testing_list.txt have no audio")
    testing.write_text("yes/ffff0000_nohash_0.wav\n")
    prepare("speech_commands", speech_commands, refused=r"are also in another list:\n  yes/ffff0000_nohash_0")
    testing.unlink()
    prepare("speech_commands", speech_commands, refused=r"there is no .*testing_list.txt")


def test_librispeech(prepare: Prepare, librispeech: Path) -> None:
    phones = librispeech / "converted_aligned_phones.txt"
    prepare("librispeech", librispeech, "--lists", librispeech / "lists", "--phones", phones)
    written = rows(librispeech / "manifest.csv")
    assert Counter((row["split"], row["speaker"]) for row in written.values()) == {
        ("train", "19"): 2,
        ("train", "26"): 2,
        ("test", "19"): 1,
        ("test", "26"): 1,
    }
    assert written["198/19-198-0002.flac"]["split"] == "test"
    assert written["495/26-495-0001.flac"]["chapter"] == "495"


def test_librispeech_with_ids_missing_on_either_side(prepare: Prepare, librispeech: Path) -> None:
    lists = librispeech / "lists"
    train = lists / "train_split.txt"
    published = train.read_text()
    train.write_text(published + "\n103-1240-0057\n")
    listed = ("librispeech", librispeech, "--lists", lists)
    prepare(*listed, refused=r"1 of 5 utterances of .*train_split.txt have no audio:\n  103-1240-0057")
    assert not (librispeech / "manifest.csv").exists()
    with pytest.warns(UserWarning, match="left out 1 utterances of .*train_split.txt without audio"):
        prepare(*listed, "--allow_missing")
    assert len(rows(librispeech / "manifest.csv")) == 6

    train.write_text("\n".join(published.splitlines()[1:]))
    with pytest.warns(UserWarning, match="left out 1 utterances in neither list:\n  19-198-0000"):
        prepare(*listed)
    assert len(rows(librispeech / "manifest.csv")) == 5

    phones = librispeech / "converted_aligned_phones.txt"
    phones.write_text("".join(phones.read_text().splitlines(keepends=True)[:5]))
    prepare(*listed, "--phones", phones, refused=r"1 listed utterances have no labels in .*phones.txt:\n  26-495-0002")


def test_synthesised(prepare: Prepare, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra `speech` is not installed")
    folder = tmp_path / "synthesised"
    arguments = ("--num_speakers", 3, "--num_heldout_speakers", 1, "--minutes", 0.2)
    printed = prepare("synthesised", folder, *arguments)
    manifest = read_manifest(folder)
    speakers = {split: set(manifest.select(split).column("speaker")) for split in ("train", "valid", "test")}
    assert speakers["train"] == speakers["valid"]
    assert not speakers["train"] & speakers["test"]
    assert re.search(r"test +\d+ +0\.\d", printed)
    prepare("synthesised", folder, "--minutes", 1, refused="made with other parameters")


@pytest.mark.parametrize(
    ("corpus", "num_test", "num_others", "seconds"), [("fsdd", 300, 2700, 1312), ("an4", 130, 948, 2903)]
)
def test_real_speech(
    corpus: str, num_test: int, num_others: int, seconds: float, prepare: Prepare, tmp_path: Path
) -> None:
    out = tmp_path / "manifest.csv"
    printed = prepare(corpus, real(corpus), "--out", out)
    manifest = read_manifest(out)
    assert "published:" not in printed
    test = manifest.select("test")
    assert (len(test), len(manifest) - len(test)) == (num_test, num_others)
    speakers = set(manifest.select("train").column("speaker")) & set(test.column("speaker"))
    assert speakers == (set(test.column("speaker")) if corpus == "fsdd" else set())
    assert manifest.seconds.sum() == pytest.approx(seconds, rel=1e-3)


def test_every_card_says_what_a_card_must() -> None:
    folders = [folder for folder in (REPOSITORY / "datasets").iterdir() if folder.is_dir()]
    assert len(folders) >= 12
    for corpus in folders:
        card = (corpus / "card.md").read_text(encoding="utf-8")
        for heading in ("**Source**", "**Licence**", "**Citation**", "**Size**", "## Get it", "## Splits and labels"):
            assert heading in card, (corpus, heading)
        for heading in ("## How it is checked", "## Traps"):
            assert heading in card, (corpus, heading)


def test_ptb_of_another_size_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    words = " ".join(f"w{number}" for number in range(10_000))
    for split in ("train", "valid"):
        (tmp_path / f"ptb.{split}.txt").write_text(words, encoding="utf-8")
    prepare("ptb", tmp_path, refused="has no split test")
    (tmp_path / "ptb.test.txt").write_text("w1 w2", encoding="utf-8")
    prepare("ptb", tmp_path, refused="train has 10001 tokens, 929589 are published")


@pytest.mark.slow
def test_real_ptb(prepare: Prepare, tmp_path: Path) -> None:
    assert "929589 tokens" in prepare("ptb", real("ptb"), "--cache_dir", tmp_path)


def test_sentences_of_another_number_are_refused(prepare: Prepare, tmp_path: Path) -> None:
    for name in ("mpqa.all", "rt-polarity.all", "TREC.train.all"):
        (tmp_path / name).write_text("0 dull\n1 fine\n0 grey\n1 blue\n", encoding="utf-8")
    prepare("sentence_sets", tmp_path, refused=r"MR, split all: \[2, 2\] sentences, \[5331, 5331\] are published")
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("One. Two.", encoding="utf-8")
    prepare("gutenberg", tmp_path, refused="3 books with 6 sentences, not the 13 with 48865")


@pytest.mark.slow
def test_real_sentences(prepare: Prepare) -> None:
    assert " valid   3565 sentences  austen-persuasion.txt" in prepare("gutenberg", real("gutenberg"))
    assert "TREC     test      500 sentences" in prepare("sentence_sets", real("sentclf"))
