"""The result of a command, as notebooks and terminals show it."""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

from cpc.pages.html import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Table(NamedTuple):
    """Formatted values; the first cell of a row is the row's heading.

    >>> print(Table(["k", "nats"], [["1", "0.52"], ["12", "0.1"]], "bound", ("two steps",)))
    bound
      k   nats
      1   0.52
      12   0.1
      two steps
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        cells = [self.header, *self.rows] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells]
        return "\n".join([*([self.title] if self.title else []), *(f"  {line}" for line in (*lines, *self.notes))])

    def html(self) -> str:
        """Return the table as HTML."""
        grid = table(self.header, self.rows) if self.rows else ""
        return f"<p>{escape(self.title)}</p>{grid}" + "".join(f"<p>{escape(note)}</p>" for note in self.notes)


class Report(dict[str, Any]):
    """A dictionary of what a command has measured, which shows itself as tables, and as a figure.

    Args:
        record: the content of the command's JSON file; docs/records.md lists the keys.
        tables: the tables that a terminal and a notebook show.
        draw: draws the measurement into an empty figure.
        path: the JSON file.
    """

    def __init__(
        self, record: Mapping[str, Any], tables: Sequence[Table], draw: Callable[["Figure"], None], path: Path
    ) -> None:
        super().__init__(record)
        self._tables, self._draw, self.path = tables, draw, path

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self._tables))

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self._tables)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a plain dictionary."""
        return dict(self)

    def figure(self) -> "Figure":
        """Return a new `matplotlib.figure.Figure`, which a notebook shows as a picture."""
        return drawn(self._draw)


def written(places: Path | str | Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return the lines that a command prints about its files."""
    return "\n".join(f"{place} written" for place in ([places] if isinstance(places, Path | str) else places))


def number(value: SupportsFloat | None, digits: int = 3) -> str:
    """Return a value as text.

    >>> number(1.23456), number(None), number(float("nan"))
    ('1.235', 'n/a', 'n/a')
    """
    return "n/a" if value is None or not math.isfinite(value) else f"{float(value):.{digits}f}"


def drawn(draw: Callable[["Figure"], None]) -> "Figure":
    """Return a new figure after `draw` has drawn into it. It shows itself in notebooks, also without `pyplot`."""
    from matplotlib.figure import Figure

    def picture() -> bytes:
        figure.savefig(stream := io.BytesIO(), format="png")
        return stream.getvalue()

    draw(figure := Figure(layout="constrained"))
    figure._repr_png_ = picture  # type: ignore[attr-defined]
    return figure
