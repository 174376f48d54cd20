import pytest

from cpc.data.store.contents import say_contents


def test_splits_are_counted_once_in_their_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setenv("LOCAL_RANK", "1")
    say_contents("THERE", "images", splits)
    assert capsys.readouterr().err == ""
