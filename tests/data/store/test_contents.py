import pytest

from cpc.data.store.contents import _say_once, say, say_contents


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
