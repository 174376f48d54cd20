"""Delimited tables in UTF-8: a header and one row per line, with commas between the cells, or tabs in a `.tsv`."""

import codecs
import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cpc.data.store.folders import name_a_few
from cpc.data.store.text_files import marked_encoding
from cpc.data.store.untrusted import require_regular

_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_HEAD_BYTES = 1 << 16
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
_LINE_BREAK = re.compile(r"[\r\n]")


def read_table(path: str | Path, errors: str = "strict") -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    r"""Read a delimited table line by line.

    Tables with commas are quoted as in RFC 4180, but without line breaks inside cells. In a table with tabs a line is
    read as quoted only if all its quoted cells are well-formed; otherwise a quote is an ordinary character. Rows
    without any content are skipped.

    Args:
        path: the table; with the suffix `.tsv` tabs separate cells, otherwise commas.
        errors: argument `errors` of `open`, for bytes that are not UTF-8.

    Returns:
        The column names; and, for each row, its line number and its cells, as many as there are columns.

    Raises:
        ValueError: if the file cannot be read, is a FIFO or a device, or has another format (semicolons, UTF-16, JSON);
            if the header holds only numbers and dates (but 0, 1, 2, ... are names), a column has no name, two columns
            have one name, a quote does not close in its line, or the number of cells of a row differs from the number
            of columns. The message names the file and the line.
    """
    path = Path(path)
    rows = _rows(path, "\t" if path.suffix.lower() == ".tsv" else ",", errors)
    line_number, names = next(rows, (1, []))
    if not names:
        raise ValueError(f"{path} is empty; expected a header, followed by one row per line")
    if names != list(map(str, range(len(names)))) and all(map(_is_value, names)):
        raise ValueError(
            f"{path}, line {line_number}: {', '.join(names)[:80]} are values, no names of columns: write a header into "
            "the first line"
        )
    unfit = [name for name in names if not name or name != name.strip()]
    if unfit:
        raise ValueError(
            f"{path}, line {line_number}: the column name {unfit[0]!r} is empty, or begins or ends with a blank; "
            "rename the column, or leave it out"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"{path}, line {line_number} names a column twice: {', '.join(names)}")
    return names, rows


def format_table(columns: Mapping[str, Sequence[str]]) -> bytes:
    """Return the content of a CSV that `read_table` reads."""
    broken = [
        f"{name}: {cell[:80]!r}" for name, cells in columns.items() for cell in (name, *cells) if has_line_break(cell)
    ]
    if broken:
        raise ValueError(f"{len(broken)} cells of a table hold a line break; rename them\n{name_a_few(broken)}")
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
    return _LINE_BREAK.search(cell) is not None


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
                    raise ValueError(
                        f"{path}, line {line_number}: holds a NUL, which text does not contain; is the file damaged?"
                    )
                width = len(cells)
                yield line_number, cells
    except UnicodeDecodeError as error:
        with path.open("rb") as stream:
            is_bad = (line.decode(errors="replace").encode() != line for line in stream)
            line_number = next(number for number, is_this in enumerate(is_bad, start=1) if is_this)
        raise ValueError(
            f"{path}, line {line_number}: is not UTF-8 ({error.reason}); expected {_SEPARATORS[delimiter]}, UTF-8: "
            "save the table in UTF-8"
        ) from error
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
        advice = {"tabs": "name it .tsv", "commas": "name it .csv"}.get(others[0], "save it as a CSV with commas")
        raise ValueError(f"{path}, line 1: has {others[0]} between its columns; expected {expected}: {advice}")


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
        raise ValueError(
            f"{path}, line {line_number + 1}: is not a row of a CSV ({error}); close every quote in its line, double "
            "a quote inside a quoted cell, and remove line breaks"
        ) from error


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
