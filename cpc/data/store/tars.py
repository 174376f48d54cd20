"""Tars of WebDataset. The members of a sample have equal names up to the first dot (`000012.flac`, `000012.json`)."""

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cpc.data.store.untrusted import reading

MOST_MEMBER_BYTES = 2**30
_BLOCK_BYTES = 2**20


class Sample(NamedTuple):
    """The members of a tar with one name.

    Attributes:
        tar: file of the tar.
        key: the name up to the first dot, with its folders.
        parts: content of each member, by the rest of its name in lower case.
    """

    tar: Path
    key: str
    parts: dict[str, bytes]


def read_samples(tar: Path) -> Iterator[Sample]:
    """Yield the samples of a tar, in order; nothing is written to disk, and no name is used as a path.

    Raises:
        ValueError: if the file is not a tar, is compressed or truncated, holds several joined tars, or holds anything
            except files and folders; if a member is larger than 2^30 bytes or occurs twice; or if members of a sample
            do not follow each other. The message names tar and member.
    """
    seen: set[str] = set()
    sample: Sample | None = None
    num_bytes = tar.stat().st_size
    with reading(tar, "is damaged, compressed or not a tar"):
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                if member.isdir():
                    continue
                if not member.isreg():
                    raise ValueError(f"{tar}: {member.name!r} is a link or a device, but samples must be files")
                if num_bytes >= member.size > MOST_MEMBER_BYTES:
                    raise ValueError(
                        f"{tar}: {member.name!r} has {member.size} bytes, but the largest size is "
                        f"{MOST_MEMBER_BYTES}: unpack the tar with `tar -x`"
                    )
                if member.size > num_bytes:
                    raise ValueError(
                        f"{tar}: {member.name!r} should have {member.size} bytes, but the tar has only {num_bytes}"
                    )
                key, kind = _key_and_kind(member.name)
                if sample is None or key != sample.key:
                    if sample is not None:
                        yield sample
                    if key in seen:
                        raise ValueError(f"{tar}: the members of sample {key!r} do not follow each other")
                    seen.add(key)
                    sample = Sample(tar, key, {})
                if kind in sample.parts:
                    raise ValueError(f"{tar}: {member.name!r} occurs twice")
                stream = archive.extractfile(member)
                assert stream is not None
                content = stream.read()
                if len(content) != member.size:
                    raise ValueError(f"{tar}: {member.name!r} is cut off")
                sample.parts[kind] = content
            end = archive.offset
        _check_end(tar, end)
    if sample is not None:
        yield sample


def _check_end(tar: Path, end: int) -> None:
    """Raise an error if a tar does not end with zeros. `tarfile` would take damage, or a missing end, for the end."""
    with tar.open("rb") as stream:
        stream.seek(end)
        if not (block := stream.read(_BLOCK_BYTES)):
            raise ValueError(f"{tar} is cut off: the zeros that end a tar are missing")
        while block:
            if any(block):
                raise ValueError(
                    f"{tar} goes on after byte {end}: it is damaged there, or another tar was joined to it. Name each "
                    "tar separately, or copy the tar again"
                )
            block = stream.read(_BLOCK_BYTES)


def write_samples(samples: Iterable[tuple[str, dict[str, bytes]]], folder: Path, tar_bytes: int) -> int:
    """Write samples (key and parts) to `00000.tar`, `00001.tar`, ... in a folder; return the number of tars.

    A tar ends with the sample that reaches `tar_bytes`.
    """
    archive: tarfile.TarFile | None = None
    num_tars = 0
    try:
        for key, parts in samples:
            if archive is None:
                archive = tarfile.open(folder / f"{num_tars:05}.tar", "w", format=tarfile.PAX_FORMAT)
                num_tars += 1
            for kind, content in parts.items():
                member = tarfile.TarInfo(f"{key}.{kind}")  # no time or owner, so that equal corpora give equal tars
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            if archive.offset >= tar_bytes:
                archive.close()
                archive = None
    finally:
        if archive is not None:
            archive.close()
    return num_tars


def _key_and_kind(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    stem, _, kind = last.partition(".")
    return f"{folder}{slash}{stem}", kind.lower()
