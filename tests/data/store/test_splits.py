import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from cpc.data.store.contents import _say_once, draw_splits, say, say_contents, splits_of_folders

PATHS = [f"speaker{number % 7}/{number}.flac" for number in range(20_000)]


def split_of(paths: list[str], valid: float = 0.05, test: float = 0.1, seed: int = 0) -> dict[str, str]:
    return dict(zip(paths, draw_splits(paths, valid_share=valid, test_share=test, seed=seed), strict=True))


@pytest.mark.parametrize(("valid", "test"), [(0.05, 0.1), (0.0, 0.2), (0.3, 0.0), (0.3, 0.6)])
def test_shares_are_those_asked_for(valid: float, test: float) -> None:
    counts = Counter(split_of(PATHS, valid, test).values())
    shares = {"valid": valid, "test": test, "train": 1 - valid - test}
    assert set(counts) == {name for name, share in shares.items() if share}
    for name, share in shares.items():
        assert abs(counts[name] - share * len(PATHS)) <= 4 * np.sqrt(len(PATHS) * share * (1 - share))


def test_a_file_stays_in_its_split_whatever_the_order_and_whatever_comes_later() -> None:
    everything, some = split_of(PATHS), split_of(PATHS[5000:100:-3])
    assert set(some.values()) == {"train", "valid", "test"}
    assert some.items() <= everything.items()


def test_larger_shares_take_files_from_training_alone() -> None:
    """`valid` before `test` would move test files to valid: the test part must not be seen, once it was one."""
    before, after = split_of(PATHS, valid=0.05), split_of(PATHS, valid=0.2)
    moved = {(before[path], after[path]) for path in PATHS if before[path] != after[path]}
    assert moved == {("train", "valid")}


def test_seeds_draw_differently_and_processes_alike() -> None:
    """Python's own hash of a string differs between processes."""
    assert split_of(PATHS, seed=1) != split_of(PATHS, seed=2)
    call = "draw_splits([*'abcdefghij'], valid_share=0.3, test_share=0.3)"
    code = f"from cpc.data.store.contents import draw_splits; print(*{call})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert printed == draw_splits([*"abcdefghij"], valid_share=0.3, test_share=0.3)


@pytest.mark.parametrize("num_units", [3, 4, 7, 8, 12])
def test_splits_of_a_small_corpus_have_two_files_or_at_least_one(num_units: int) -> None:
    fewest = (2, 2, 2) if num_units >= 8 else (1, 1, 1)  # train keeps half
    for seed in range(50):
        for shares in ((0.01, 0.01), (0.1, 0.1), (0.49, 0.5), (0.98, 0.01), (0.01, 0.98)):
            counts = Counter(split_of(PATHS[:num_units], *shares, seed=seed).values())
            assert all(counts[name] >= num for name, num in zip(("train", "valid", "test"), fewest, strict=True))
        assert Counter(split_of(PATHS[:num_units], 0.1, 0.0, seed=seed).values())["valid"] >= min(2, num_units - 2)


def test_a_unit_of_two_files_is_enough_for_a_split() -> None:
    """So corpora of a few speakers keep their splits."""
    speakers = [f"speaker{number % 6}" for number in range(20)]
    splits = dict(zip(speakers, draw_splits(speakers, valid_share=0.01, test_share=0.01), strict=True))
    assert Counter(splits.values()) == {"train": 4, "valid": 1, "test": 1}
    one = [*speakers, "speaker of one file"]
    splits = dict(zip(one, draw_splits(one, valid_share=0.01, test_share=0.0), strict=True))
    assert Counter(splits.values())["valid"] == 2


def test_equal_units_stay_together() -> None:
    units = [path.split("/")[0] for path in PATHS]
    splits = draw_splits(units, valid_share=0.2, test_share=0.2)
    assert len(set(zip(units, splits, strict=True))) == 7


def test_what_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r"a, b: these 2 are too few, since train, valid, test need"):
        draw_splits(["b", "a", "b"], valid_share=0.1, test_share=0.1)
    assert draw_splits(["b", "a"], valid_share=0.1, test_share=0.0).count("valid") == 1
    for shares in ((0.5, 0.5), (-0.1, 0.1), (float("nan"), 0.1)):
        with pytest.raises(ValueError, match="valid_share="):
            draw_splits(PATHS, valid_share=shares[0], test_share=shares[1])


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        ("train validation", "train valid"),
        ("Training VAL Testing unlabeled", "train valid test unlabelled"),
        ("train dev eval", "train valid test"),
        ("train2017 val2017 test2017", "train valid test"),
        ("train-clean-100 train-other-500 dev-clean evaluation", "train train valid test"),
        ("train", "train"),
        ("train_station train_track", ""),
        ("test_tube train_station cat", ""),
        ("train_val test", ""),
    ],
)
def test_folders_are_splits_if_all_of_them_say_one(folders: str, expected: str) -> None:
    found = splits_of_folders(folders.split())
    assert found == (dict(zip(folders.split(), expected.split(), strict=True)) if expected else {})


def test_splits_are_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    splits = ["zebra", "test", "train", "", "train", "unlabelled"]
    for _ in range(2):
        say_contents("HERE", "images", splits, classes=["train", "holdout"], speakers=[], sets="edcba")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "data: HERE: 6 images, splits train 2, test 1, unlabelled 1, (none) 1, zebra 1, "
        "2 classes (holdout, train), no speakers, 5 sets (a, b, c, d, ...)\n"
    )
    say_contents("HERE", "files", ["", ""])
    assert capsys.readouterr().err == "data: HERE: 2 files, no splits\n"


@pytest.mark.parametrize(
    ("variables", "is_first"),
    [
        ({"RANK": "1"}, True),  # left by a launcher that has ended
        ({"LOCAL_RANK": "3", "WORLD_SIZE": "1"}, True),
        ({"SLURM_PROCID": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, False),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, True),
    ],
)
def test_a_rank_without_several_processes_is_left_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_first: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _say_once.cache_clear()
    say("a line")
    assert capsys.readouterr().err == ("a line\n" if is_first else "")
