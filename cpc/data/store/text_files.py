"""Decoding of text files by a declared encoding, which is checked against the bytes."""

import codecs
import re
from pathlib import Path
from typing import Literal

from cpc.data.store.untrusted import reading

Encoding = Literal["UTF-8", "latin-1", "windows-1252"]

# A byte-order mark overrides the declared encoding. UTF-32 comes before UTF-16, because its mark begins with the mark
# of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32LE",
    codecs.BOM_UTF32_BE: "UTF-32BE",
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF16_LE: "UTF-16LE",
    codecs.BOM_UTF16_BE: "UTF-16BE",
}
_UTF8_CHARACTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_CONTRADICTION = 0.9  # share of UTF-8 in the bytes beyond ASCII; Latin-1 has some by chance, such as `É»`


def marked_encoding(start: bytes) -> tuple[str | None, int]:
    """Return the encoding and the length of a byte-order mark at the start of a file; (None, 0) without a mark."""
    return next(((encoding, len(mark)) for mark, encoding in _MARKS.items() if start.startswith(mark)), (None, 0))


def read_text(path: Path, encoding: Encoding | None = None) -> str:
    r"""Return the text of a file, with line ends `\n`; raises the errors of `decode`."""
    with reading(path):
        return decode(path.read_bytes(), path, encoding).replace("\r\n", "\n").replace("\r", "\n")


def decode(data: bytes, source: Path | str, encoding: Encoding | None = None, offset: int = 0) -> str:
    """Decode bytes by the encoding of their byte-order mark, or without a mark by the declared encoding.

    `offset` is that of the bytes in the file `source`, whose start may have a mark. Without `encoding` it is UTF-8.

    Raises:
        ValueError: if bytes are not in the encoding, a byte is NUL, or `latin-1` or `windows-1252` is declared for
            UTF-8. The message names the file and the first such byte.
    """
    marked, length = marked_encoding(data) if offset == 0 else (None, 0)
    body = data[length:] if length else data
    used = marked or encoding or "UTF-8"
    is_wide = used.startswith(("UTF-16", "UTF-32"))
    if not is_wide and (nul := body.find(0)) >= 0:
        guess = "UTF-16LE" if (offset + length + nul) % 2 else "UTF-16BE"
        raise ValueError(
            f"{source}, byte {offset + length + nul}: a NUL, which {used} text does not contain. Convert UTF-16 "
            f"without a byte-order mark to UTF-8 (iconv -f {guess} -t UTF-8); remove a file of another kind"
        )
    if used in ("latin-1", "windows-1252"):
        _refuse_utf8(body, source, used)
    try:
        text = body.decode(used)
    except UnicodeDecodeError as error:
        advice = "convert the file to UTF-8, or remove it"
        if encoding is not None and marked is None:
            advice = "convert the file, remove it, or set `encoding`, which is often latin-1 for old files"
        raise ValueError(
            f"{source}, byte {offset + length + error.start}: {body[error.start]:#04x} is not {used} "
            f"({error.reason}); {advice}"
        ) from error
    if is_wide and (nul := text.find("\0")) >= 0:
        raise ValueError(f"{source}, character {nul}: a NUL, which text does not contain; remove the file")
    return text


def _refuse_utf8(data: bytes, source: Path | str, declared: str) -> None:
    num_beyond_ascii = len(data) - len(data.translate(None, bytes(range(128, 256))))
    found = list(_UTF8_CHARACTER.finditer(data)) if num_beyond_ascii else []
    num_bytes = sum(len(match[0]) for match in found)
    if found and num_bytes >= _CONTRADICTION * num_beyond_ascii:
        first = found[0]
        raise ValueError(
            f"{source}, byte {first.start()}: {declared} is declared, but {num_bytes} of the {num_beyond_ascii} bytes "
            f"beyond ASCII are UTF-8, first {first[0].decode(errors='replace')!r}; set `encoding` to UTF-8, or "
            "convert the file, so that all files have one encoding"
        )
