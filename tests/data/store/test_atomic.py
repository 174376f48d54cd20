import json
import math
import os
from pathlib import Path

import pytest

from cpc.data.store.atomic import append_record, build_atomically, finite, json_text, write_atomically


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


def test_a_full_disk_names_the_file_or_folder_that_is_written(tmp_path: Path) -> None:
    def fill(place: Path, to: str) -> None:
        (place / to).symlink_to("/dev/full") if place.is_dir() else place.symlink_to("/dev/full")
        (place / to if place.is_dir() else place).write_text("more than there is room for")

    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/report.json'"),
        write_atomically(tmp_path / "report.json") as new,
    ):
        fill(new, "")
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/shards'"),
        build_atomically(tmp_path / "shards", lambda _: True) as folder,
    ):
        fill(folder, "00000.tar")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "a") as place:
        place.write_text("first")
    place.write_text("left behind by a kill")
    with write_atomically(tmp_path / "a") as new:
        new.write_text("second")
    assert (tmp_path / "a").read_text() == "second"
    assert not place.exists()


def test_what_killed_builders_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    for age in ("new", "old"):
        (tmp_path / f"pack.partial-{age}").mkdir()
        (tmp_path / f"pack.partial-{age}" / "rows.bin").touch()
    for path in ("pack.partial-old/rows.bin", "pack.partial-old"):
        os.utime(tmp_path / path, (1, 1))
    with build_atomically(tmp_path / "pack", lambda _: True) as folder:
        (folder / "rows.bin").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack", "pack.partial-new"]


def test_no_json_holds_what_other_languages_do_not_read(tmp_path: Path) -> None:
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            json_text({"a": [value]})
        assert json_text(finite({"a": [value, 1.5], "b": {"c": value}})) == '{"a": [null, 1.5], "b": {"c": null}}'
        append_record(tmp_path / "a.jsonl", {"step": 1, "gradient_norm": value})
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "gradient_norm": None}] * 3
