"""Files of a folder: search by suffix, checks of names, and reading of many files by threads, which release the GIL."""

import os
import unicodedata
import warnings
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeVar

from cpc.config.argument_rules import Count, checked
from cpc.data.store.contents import say

# Formats of audio, images and text that are not read: their files are counted, so that the user notices them.
_UNREADABLE = {
    "audio": ".m4a .m4b .aac .wma .amr .3gp .ac3 .ape .wv .mka .weba .webm .mp4 .m4v .mov .mkv .avi .ra .shn .raw .pcm",
    "image": ".heic .heif .jxl .svg .psd .xcf .dng .cr2 .cr3 .nef .arw .orf .rw2 .raf .mp4 .m4v .mov .mkv .avi .webm",
    "text": ".doc .docx .odt .rtf .pdf .epub .mobi .htm .html .jsonl .parquet .gz .bz2 .xz .zst .zip",
}


def composed(name: str) -> str:
    """Return a name in Unicode's normal form C, in which names are compared."""
    return unicodedata.normalize("NFC", name)


def names_in_table(paths: Sequence[str], keys: Collection[str]) -> list[str]:
    """Return the name of each file in a table, which names files by path, file name or stem, composed."""
    files = [PurePosixPath(composed(path)) for path in paths]
    ways = [list(map(composed, paths)), [file.name for file in files], [file.stem for file in files]]
    return max(ways, key=lambda names: len(set(names) & set(keys)))


def find_files(root: Path, suffixes: Collection[str], kind: str, hint: str = "") -> list[str]:
    """Return the files below a folder that have one of these suffixes: sorted posix paths, relative to `root`.

    The case of suffixes is ignored. Names that begin with a dot are left out; links to folders are followed once. The
    number of files in known formats that are not read is printed on stderr.
    """
    files: list[str] = []
    others: Counter[str] = Counter()
    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = Path(folder).relative_to(root).as_posix()
        prefix = "" if relative == "." else f"{relative}/"
        for name in names:
            suffix = os.path.splitext(name)[1].lower()
            if suffix in suffixes and not name.startswith("."):
                files.append(prefix + name)
            else:
                others[suffix or name] += 1
    unreadable = {suffix: others[suffix] for suffix in _UNREADABLE.get(kind, "").split() if others[suffix]}
    if files and unreadable:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in unreadable.items())
        say(f"data: {root}: left out {counts}, because these formats are not read: convert these files")
    if not files:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(5))
        legal = f"files are recognised by their suffix: {' '.join(sorted(suffixes))}{hint}"
        raise ValueError(f"no {kind} below {root} (found: {counts or 'nothing'}); {legal}")
    return sorted(files)


def refuse_doubles(root: Path, names: Iterable[str]) -> None:
    """Raise an error if a file has two names (links, forms of Unicode), since it could be in two splits."""
    real = cache(os.path.realpath)
    name_of: dict[str, str] = {}
    duplicates = []
    for name in names:
        folder, last = os.path.split(os.path.join(root, name))
        file = os.path.join(real(folder), last)
        file = composed(os.path.realpath(file) if os.path.islink(file) else file)
        if (other := name_of.setdefault(file, name)) != name:
            forms = f"{other!a} and {name!a}, of different Unicode forms"
            duplicates.append(forms if composed(other) == composed(name) else f"{other} and {name}")
    problem = f"files of {root} have two names, so they could be both trained on and held out"
    refuse(problem, duplicates, "keep one name of each")


def name_a_few(problems: Sequence[str], limit: int = 5) -> str:
    """Return the first few problems, one per line, and the number of further problems."""
    more = [f"... and {len(problems) - limit} more"] if len(problems) > limit else []
    return "\n".join(f"  {line}" for line in [*problems[:limit], *more])


def refuse(problem: str, names: Iterable[str], advice: str = "") -> None:
    """Raise a ValueError with the number of names, the problem, the first few names and the advice, if there are names.

    >>> refuse("of 9 files are empty", ["a.wav"], "remove them")
    Traceback (most recent call last):
    ValueError: 1 of 9 files are empty:
      a.wav
    remove them
    """
    names = list(names)
    if names:
        raise ValueError("\n".join(filter(None, [f"{len(names)} {problem}:", name_a_few(names), advice])))


def file_version(path: Path) -> tuple[int, int]:
    """Return size in bytes and time of change in nanoseconds of a file; -1 if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def require_file(path: Path) -> None:
    """Raise a ValueError if a file of a corpus is missing."""
    if not path.is_file():
        raise ValueError(f"there is no {path}: see the card of the corpus for its source")


def require_utf8(names: Iterable[str], where: str) -> None:
    """Raise an error on names that are not UTF-8, because the format `where` cannot hold them."""
    bad = [shown for name in names if (shown := name.encode(errors="replace").decode()) != name]
    refuse(f"names are not UTF-8, which {where} cannot hold", bad, "rename them")


def refuse_bad(problems: Sequence[str], num: int, nouns: str, skip_bad: bool) -> None:
    """Raise an error about files that cannot be used; with `skip_bad`, warn instead, unless all are bad."""
    if not problems:
        return
    words = f"{len(problems)} of {num} {nouns} cannot be used:\n{name_a_few(problems)}"
    if not skip_bad or len(problems) == num:
        raise ValueError(f"{words}\nrepair or remove them, or set `skip_bad` to go on without them")
    warnings.warn(f"went on without {words}", stacklevel=4)


Item = TypeVar("Item")
Result = TypeVar("Result")


@checked
def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], num_workers: Count) -> Iterator[Result]:
    """Yield `function(item)` for every item in order, by `num_workers` threads, of which few results are pending."""
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= 4 * num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
