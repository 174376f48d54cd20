"""Names of audio files in tables: their paths, their paths without suffix, or their stems."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from cpc.data.audio.headers import AUDIO_SUFFIXES
from cpc.data.store.folders import composed, refuse


def bare_path(path: str) -> str:
    """Return a path without the suffix of an audio file (`spk.001` keeps its dot), in Unicode's normal form C.

    File systems and unpackers change the normal form of a name: names that differ only in the form are equal.
    """
    pure = PurePosixPath(composed(path))
    return pure.with_suffix("").as_posix() if pure.suffix.lower() in AUDIO_SUFFIXES else pure.as_posix()


def is_end_of(one: str, other: str) -> bool:
    """Return whether one bare path ends with the other, in whole folders, since one tree may start a folder deeper."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def shortest_names(paths: Sequence[str]) -> list[str]:
    """Return one name for each path: the stems if they differ, else paths without suffix if they differ, else paths."""
    bare = [bare_path(path) for path in paths]
    for names in ([path.rpartition("/")[2] for path in bare], bare):
        if len(set(names)) == len(names):
            return names
    return list(paths)


def named_groups(paths: Sequence[str], pattern: re.Pattern[str], problem: str) -> dict[str, list[str]]:
    """Return each named group of a pattern, searched in every path; `problem` describes paths that do not match."""
    matches = [pattern.search(path) for path in paths]
    refuse(f"of {len(paths)} {problem}", [path for path, match in zip(paths, matches, strict=True) if not match])
    return {name: [match[name] or "" for match in matches if match] for name in pattern.groupindex}
