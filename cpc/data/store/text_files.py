"""Text files, whose declared encoding is checked against the bytes, and delimited tables in UTF-8.

A table has a header and one row per line, with commas between the cells, or tabs in a `.tsv`.
"""

import codecs
import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from cpc.data.store.folders import refuse
from cpc.data.store.untrusted import reading, require_regular

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
    """Decode bytes by the encoding of their byte-order mark, or without a mark by the declared encoding (None: UTF-8).

    `offset` is that of the bytes in the file `source`, whose start may have a mark. Bytes that are not in the encoding,
    NUL bytes, and UTF-8 that is declared as Latin are a ValueError that names the file and the first such byte.
    """
    marked, length = marked_encoding(data) if offset == 0 else (None, 0)
    body = data[length:] if length else data
    used = marked or encoding or "UTF-8"
    is_wide = used.startswith(("UTF-16", "UTF-32"))
    if not is_wide and (nul := body.find(0)) >= 0:
        guess = "UTF-16LE" if (offset + length + nul) % 2 else "UTF-16BE"
        advice = f"convert UTF-16 without a byte-order mark to UTF-8 (iconv -f {guess} -t UTF-8)"
        raise ValueError(f"{source}, byte {offset + length + nul}: a NUL, which {used} text does not contain; {advice}")
    if used in ("latin-1", "windows-1252"):
        _refuse_utf8(body, source, used)
    try:
        text = body.decode(used)
    except UnicodeDecodeError as error:
        is_declared = encoding is not None and marked is None
        advice = "set `encoding`, which is often latin-1 for old files" if is_declared else "convert the file to UTF-8"
        bad = f"{body[error.start]:#04x} is not {used} ({error.reason})"
        raise ValueError(f"{source}, byte {offset + length + error.start}: {bad}; {advice}") from error
    if is_wide and (nul := text.find("\0")) >= 0:
        raise ValueError(f"{source}, character {nul}: a NUL, which text does not contain; remove the file")
    return text


def _refuse_utf8(data: bytes, source: Path | str, declared: str) -> None:
    num_beyond_ascii = len(data) - len(data.translate(None, bytes(range(128, 256))))
    found = list(_UTF8_CHARACTER.finditer(data)) if num_beyond_ascii else []
    num_bytes = sum(len(match[0]) for match in found)
    if found and num_bytes >= _CONTRADICTION * num_beyond_ascii:
        share = f"{num_bytes} of the {num_beyond_ascii} bytes beyond ASCII are UTF-8; set `encoding` to UTF-8"
        raise ValueError(f"{source}, byte {found[0].start()}: {declared} is declared, but {share}")


_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_HEAD_BYTES = 1 << 16
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


def read_table(path: str | Path, errors: str = "strict") -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    r"""Return the column names of a delimited table; and, for each row, its line number and its cells.

    Tables with commas are quoted as in RFC 4180, but without line breaks inside cells. In a table with tabs a line is
    read as quoted only if all its quoted cells are well-formed; otherwise a quote is an ordinary character. Rows
    without any content are skipped. Anything else is a ValueError that names the file and the line: another format
    (semicolons, UTF-16, JSON), a header of only numbers and dates (but 0, 1, 2, ... are names), columns without a name
    or with one name, a quote that does not close in its line, a row with more or fewer cells.
    """
    path = Path(path)
    rows = _rows(path, "\t" if path.suffix.lower() == ".tsv" else ",", errors)
    line_number, names = next(rows, (1, []))
    if not names:
        raise ValueError(f"{path} is empty; expected a header, followed by one row per line")
    where = f"{path}, line {line_number}"
    if names != list(map(str, range(len(names)))) and all(map(_is_value, names)):
        raise ValueError(f"{where}: {', '.join(names)[:80]} are values, no names of columns: write a header")
    if unfit := [name for name in names if not name or name != name.strip()]:
        raise ValueError(f"{where}: the column name {unfit[0]!r} is empty, or begins or ends with a blank")
    if len(set(names)) < len(names):
        raise ValueError(f"{where} names a column twice: {', '.join(names)}")
    return names, rows


def format_table(columns: Mapping[str, Sequence[str]]) -> bytes:
    """Return the content of a CSV that `read_table` reads."""
    cells = [(name, cell) for name, values in columns.items() for cell in (name, *values)]
    broken = [f"{name}: {cell[:80]!r}" for name, cell in cells if has_line_break(cell)]
    refuse("cells of a table hold a line break", broken, "rename them")
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return stream.getvalue().encode("utf-8", "surrogateescape")


def number_or_nan(cell: str) -> float:
    """Return the number in a cell; NaN if the cell holds none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def has_line_break(cell: str) -> bool:
    """Return whether a cell holds a line break, so that it does not fit into one line."""
    return "\r" in cell or "\n" in cell


def require_utf8(path: Path, head: bytes, expected: str = "UTF-8") -> None:
    """Raise a ValueError if the first bytes of a text file are UTF-16, or not text."""
    marked, _ = marked_encoding(head)
    found = "" if marked in (None, "UTF-8") else f"is {marked.removesuffix('LE').removesuffix('BE')}"
    found = found or ("holds NUL bytes, as UTF-16 and spreadsheets do" if b"\0" in head else "")
    if found:
        raise ValueError(f"{path} {found}; expected {expected}: save it as text in UTF-8")


def _rows(path: Path, delimiter: str, errors: str) -> Iterator[tuple[int, list[str]]]:
    width = None
    require_regular(path)
    try:
        with path.open("rb") as stream:
            _refuse_other_formats(path, stream.read(_HEAD_BYTES), delimiter)
        with path.open(encoding="utf-8-sig", errors=errors, newline="" if delimiter == "," else None) as lines:
            for line_number, cells in _comma_cells(path, lines) if delimiter == "," else _tab_cells(lines):
                if not any(map(str.strip, cells)):
                    continue
                if width not in (None, len(cells)):
                    raise ValueError(f"{path}, line {line_number}: {len(cells)} cells for {width} columns")
                if any("\0" in cell for cell in cells):
                    raise ValueError(f"{path}, line {line_number}: holds a NUL, which text does not contain")
                width = len(cells)
                yield line_number, cells
    except UnicodeDecodeError as error:
        with path.open("rb") as stream:
            is_bad = (line.decode(errors="replace").encode() != line for line in stream)
            line_number = next(number for number, is_this in enumerate(is_bad, start=1) if is_this)
        expected = f"expected {_SEPARATORS[delimiter]}, UTF-8"
        raise ValueError(f"{path}, line {line_number}: is not UTF-8 ({error.reason}); {expected}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error


def _refuse_other_formats(path: Path, head: bytes, delimiter: str) -> None:
    expected = f"{_SEPARATORS[delimiter]}, UTF-8"
    require_utf8(path, head, expected)
    text = head.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    if text.lstrip().startswith(("{", "[")):
        raise ValueError(f"{path} is JSON, or JSON lines; expected {expected}: write it as a table with a header")
    header = next(filter(str.strip, text.splitlines()), "")
    others = [name for separator, name in _SEPARATORS.items() if separator in header and separator != delimiter]
    if others and delimiter not in header:
        raise ValueError(f"{path}, line 1: has {others[0]} between its columns; expected {expected} (.tsv: tabs)")


def _comma_cells(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True)
    line_number = 0
    try:
        for cells in reader:
            if reader.line_num > line_number + 1:
                raise csv.Error("a cell continues in the next line")
            line_number = reader.line_num
            yield line_number, cells
    except csv.Error as error:
        what = f"is not a row of a CSV ({error}); a quote must close in its line"
        raise ValueError(f"{path}, line {line_number + 1}: {what}") from error


def _tab_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    width = None
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = line.rstrip("\n").split("\t")
        if '"' in line:
            try:
                (unquoted,) = csv.reader([line], delimiter="\t", strict=True)
            except csv.Error:  # the quote is an ordinary character
                unquoted = cells
            cells = unquoted if width in (None, len(unquoted)) else cells
        width = width or len(cells)
        yield line_number, cells


def _is_value(cell: str) -> bool:
    return bool(_DATE.fullmatch(cell)) or not math.isnan(number_or_nan(cell)) or cell.strip().lower() == "nan"
