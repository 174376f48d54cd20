"""What a table calls an audio file."""

import pytest

from cpc.data.audio.file_names import is_end_of, shortest_names


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/1.wav", "b/2.flac"], ["1", "2"]),
        (["a/1.wav", "b/1.wav"], ["a/1", "b/1"]),
        (["a/1.wav", "a/1.flac"], ["a/1.wav", "a/1.flac"]),
        (["a/spk.001", "b/spk.002"], ["spk.001", "spk.002"]),
    ],
)
def test_shortest_names_differ(paths: list[str], names: list[str]) -> None:
    assert shortest_names(paths) == names


def test_paths_end_in_whole_folders() -> None:
    assert is_end_of("1", "a/1")
    assert is_end_of("a/b/1", "b/1")
    assert not is_end_of("1", "a/11")
    assert not is_end_of("11", "a/1")
    assert not is_end_of("b/1", "a/1")
