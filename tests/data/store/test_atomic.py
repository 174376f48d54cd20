from pathlib import Path

import pytest

from cpc.data.store.atomic import write_atomically


def test_a_file_is_replaced_when_the_block_ends_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with write_atomically(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
        assert new.parent == tmp_path  # the same disk, or a rename would be a copy
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail_halfway() -> None:
        with write_atomically(path) as new:
            new.write_text("torn")
            raise failure

    with pytest.raises(failure):
        fail_halfway()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "a") as place:
        place.write_text("first")
    place.write_text("left behind by a kill")
    with write_atomically(tmp_path / "a") as new:
        new.write_text("second")
    assert (tmp_path / "a").read_text() == "second"
    assert not place.exists()
