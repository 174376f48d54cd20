"""Reading of untrusted files: only regular files, of limited size, nodes and depth.

Reading a FIFO or a device may never end, and a few hundred bytes of YAML can expand to gigabytes.
"""

import json
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import yaml

from cpc.config.yaml_rules import MOST_YAML_BYTES, YAML_LOADER, check_yaml

MOST_JSON_BYTES, MOST_JSON_NODES = 2**26, 2**22
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def require_regular(path: str | Path) -> None:
    """Raise an error on a FIFO, device or socket, on which a library could wait for ever. Other paths pass."""
    try:
        _check_kind(path, os.stat(path))
    except OSError:  # a missing file, for which the reader raises a better error
        return


def open_regular(path: str | Path) -> FileIO:
    """Open a file to read its bytes, unbuffered, without waiting for the writer of a FIFO."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_kind(path, os.fstat(file))
        return FileIO(file)
    except BaseException:
        os.close(file)
        raise


def read_bytes(path: str | Path, most_bytes: int) -> bytes:
    """Return the content of a file."""
    with BufferedReader(open_regular(path)) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise ValueError(f"{path} has {size} bytes, but such a file has at most {most_bytes}")
        return file.read(size)


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file."""
    content = read_bytes(path, MOST_JSON_BYTES)
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_JSON_NODES:
        raise ValueError(f"{path} has more than {MOST_JSON_NODES} values: it was not written by cpc")
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON; was it cut off or edited? {error}") from error


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file, with aliases expanded."""
    content = read_bytes(path, MOST_YAML_BYTES)
    try:
        text = content.decode("utf-8")
        check_yaml(text)
        return yaml.load(text, YAML_LOADER)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8, which cpc requires for YAML: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError may come from impossible dates
        raise ValueError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from error


def why_unreadable(path: Path) -> str:
    """Return the reason why a file cannot be read, regardless of its content; "" if it can be read."""
    try:
        with open_regular(path) as stream:
            return "" if stream.read(1) else "is empty (0 bytes)"
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:  # such as a folder, a file without permission, a broken disk
        return f"cannot be read ({error.strerror})"
    except ValueError as error:
        return str(error).removeprefix(f"{path} ")


@contextmanager
def reading(path: str | Path, damage: str = "cannot be read: it is damaged or of another kind") -> Iterator[None]:
    """Convert every error of a file's reader, except MemoryError, to a ValueError that begins with the file's name."""
    require_regular(path)
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise many types of errors
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        words = str(getattr(error, "error_string", error)).strip(" .\n")  # soundfile's message without the file's name
        reason = (words or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: {why_unreadable(Path(path)) or f'{damage} ({reason})'}") from error


def _check_kind(path: str | Path, state: os.stat_result) -> None:
    kind = _KINDS.get(stat.S_IFMT(state.st_mode))
    if kind is not None:
        raise ValueError(f"{path} is {kind}, not a regular file")


def read_torch_archive(path: str | Path, written_by: str) -> Any:
    """Read a file of `torch.save`, checked and mapped into memory, without running code from it; or a ValueError."""
    import torch  # the monitor reads files without torch

    require_regular(path)
    names: list[str] = []
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type for member in archive.infolist()):  # torch.save never compresses
                raise zipfile.BadZipFile("a member is compressed")
            if archive.testzip() is not None:  # torch.load does not check checksums
                raise zipfile.BadZipFile("a checksum differs")
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        content = None if names else torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError:
        raise
    except UnpicklingError:
        names = names or ["objects"]
    except Exception as error:  # reading a damaged file may raise any exception
        raise ValueError(f"{path} cannot be read: cut off, damaged, or no checkpoint at all") from error
    if names:
        legal = f"a checkpoint of {written_by} holds only tensors, numbers and text"
        raise ValueError(f"{path} holds {', '.join(names)}, which could run code when the file is read; {legal}")
    return content
