"""Text files: their bytes as text, by a declared encoding that the bytes must bear out."""

import codecs
import re
from pathlib import Path
from typing import Literal

from cpc.data.store.untrusted import reading

Encoding = Literal["UTF-8", "latin-1", "windows-1252"]

# A mark says the encoding by itself, whatever is declared. UTF-32 before UTF-16, whose mark begins the same.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32LE",
    codecs.BOM_UTF32_BE: "UTF-32BE",
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF16_LE: "UTF-16LE",
    codecs.BOM_UTF16_BE: "UTF-16BE",
}
_UTF8_CHARACTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_CONTRADICTION = 0.9  # share of the bytes beyond ASCII; of Latin-1 prose, `É»` and the like are a few per cent


def marked_encoding(start: bytes) -> tuple[str | None, int]:
    """The encoding that a byte-order mark at the start of a file says, or None, and the length of the mark."""
    return next(((encoding, len(mark)) for mark, encoding in _MARKS.items() if start.startswith(mark)), (None, 0))


def read_text(path: Path, encoding: Encoding | None = None) -> str:
    r"""The text of a file, its lines ended by `\n`; raises a ValueError as `decode` does."""
    with reading(path):
        return decode(path.read_bytes(), path, encoding).replace("\r\n", "\n").replace("\r", "\n")


def decode(data: bytes, source: Path | str, encoding: Encoding | None = None, offset: int = 0) -> str:
    """Decode bytes by the encoding of their byte-order mark, or else by the declared one.

    Args:
        data: the bytes.
        source: the file that they are from, for messages.
        encoding: the declared encoding; None: UTF-8, where no option declares another.
        offset: place of the bytes in the file. Only its start can hold a mark.

    Raises:
        ValueError: naming the file and the first byte, on bytes that are not in the encoding, on NUL, and where
            `latin-1` or `windows-1252` is declared of UTF-8.
    """
    marked, length = marked_encoding(data) if offset == 0 else (None, 0)
    body = data[length:] if length else data
    used = marked or encoding or "UTF-8"
    is_wide = used.startswith(("UTF-16", "UTF-32"))
    if not is_wide and (place := body.find(0)) >= 0:
        guess = "UTF-16LE" if (offset + length + place) % 2 else "UTF-16BE"
        raise ValueError(
            f"{source}, byte {offset + length + place}: a NUL, which no {used} text holds; of UTF-16 without a "
            f"byte-order mark make UTF-8 (iconv -f {guess} -t UTF-8), of anything else take the file out"
        )
    if used in ("latin-1", "windows-1252"):
        _refuse_utf8(body, source, used)
    try:
        text = body.decode(used)
    except UnicodeDecodeError as error:
        advice = "convert the file to UTF-8, or take it out"
        if encoding is not None and marked is None:
            advice = "convert the file, take it out, or set `encoding`, of old files often latin-1"
        raise ValueError(
            f"{source}, byte {offset + length + error.start}: {body[error.start]:#04x} is not {used} "
            f"({error.reason}); {advice}"
        ) from error
    if is_wide and (place := text.find("\0")) >= 0:
        raise ValueError(f"{source}, character {place}: a NUL, which no text holds; take the file out")
    return text


def _refuse_utf8(data: bytes, source: Path | str, declared: str) -> None:
    num_beyond_ascii = len(data) - len(data.translate(None, bytes(range(128, 256))))
    found = list(_UTF8_CHARACTER.finditer(data)) if num_beyond_ascii else []
    num_bytes = sum(len(match[0]) for match in found)
    if found and num_bytes >= _CONTRADICTION * num_beyond_ascii:
        first = found[0]
        raise ValueError(
            f"{source}, byte {first.start()}: {declared} is declared, but {num_bytes} of the {num_beyond_ascii} bytes "
            f"beyond ASCII are UTF-8, the first {first[0].decode(errors='replace')!r}; set `encoding` to UTF-8, or "
            "convert the file, so that all have one encoding"
        )
