"""Files of `torch.save`, read without running code from them (docs/records.md)."""

import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from cpc.data.store.untrusted import require_regular


def read_torch_archive(path: str | Path, written_by: str) -> Any:
    """Read a file written by `torch.save` without running code from it.

    All bytes are compared with their checksums, and tensors are mapped from the file.

    Args:
        path: the file.
        written_by: program that writes these files, for messages.

    Raises:
        ValueError: if the file is damaged, or contains more than tensors and plain values. The message names the file.
        OSError: if the file does not exist.
    """
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
        raise ValueError(
            f"{path} holds {', '.join(names)}, which could run code when the file is read. A checkpoint of "
            f"{written_by} holds only tensors, numbers and text"
        )
    return content
