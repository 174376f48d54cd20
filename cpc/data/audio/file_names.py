"""Names of audio files in tables: their paths, their paths without suffix, or their stems."""

import unicodedata
from collections.abc import Sequence
from pathlib import PurePosixPath

from cpc.data.audio.headers import AUDIO_SUFFIXES


def composed(name: str) -> str:
    """Return a name in Unicode's normal form C, in which names are compared."""
    return unicodedata.normalize("NFC", name)


def bare_path(path: str) -> str:
    """Return a path without the suffix of an audio file (`spk.001` keeps its dot), in Unicode's normal form C.

    File systems and unpackers change the normal form of a name: names that differ only in the form are equal.
    """
    pure = PurePosixPath(composed(path))
    return pure.with_suffix("").as_posix() if pure.suffix.lower() in AUDIO_SUFFIXES else pure.as_posix()


def is_end_of(one: str, other: str) -> bool:
    """Return whether one bare path ends with the other, in whole folders: one tree may start a folder deeper."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def shortest_names(paths: Sequence[str]) -> list[str]:
    """Return one name for each path: all stems if they differ, else all paths without suffix, else the paths."""
    bare = [bare_path(path) for path in paths]
    for names in ([path.rpartition("/")[2] for path in bare], bare):
        if len(set(names)) == len(names):
            return names
    return list(paths)
