"""A run's folder, which shows the bound of the run."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpc.bounds.bound import steps_of
from cpc.data.figure_text import figure_text
from cpc.data.store.atomic import read_records
from cpc.evaluation.tables import bound_table
from cpc.pages.palette import step_colours
from cpc.pages.report import drawn

if TYPE_CHECKING:
    from pathlib import Path as _Folder

    from matplotlib.figure import Figure
else:
    _Folder = type(Path())  # the system's kind of Path, the only one that Python 3.11 lets inherit


class Run(_Folder):
    """The folder of a run: a path that shows the last bounds of the run in a notebook, and its figure.

    `cpc.evaluate`, `cpc.probe`, `cpc.embed` and `cpc.load_pretrained` take it as a model.
    """

    @property
    def bounds(self) -> list[dict[str, Any]]:
        """The lines of `bound.jsonl` (docs/records.md); empty before the first."""
        return read_records(self / "bound.jsonl")

    def to_dict(self) -> dict[str, Any]:
        """Return the folder, and the last bound of each split and strategy."""
        last = {(record["split"], record["strategy"]): record for record in self.bounds}
        return {"run_dir": str(self), "bounds": list(last.values())}

    def figure(self) -> "Figure":
        """Return a figure of the bound over training, with a panel for each split and strategy.

        Raises:
            ValueError: if the run has no record yet.
        """
        if not (bounds := self.bounds):
            raise ValueError(f"{self} has no bound.jsonl with records: is it the folder of a run?")
        return drawn(partial(_draw, bounds))

    def _repr_html_(self) -> str:
        tables = [bound_table(record).html() for record in self.to_dict()["bounds"]]
        return f"<p><code>{self}</code></p>" + "".join(tables)


def _draw(bounds: list[dict[str, Any]], figure: "Figure") -> None:
    kinds = list(dict.fromkeys((record["split"], record["strategy"]) for record in bounds))
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        records = [record for record in bounds if (record["split"], record["strategy"]) == kind]
        at, steps = [record["step"] for record in records], steps_of(records[-1])
        for index, (step, colour) in enumerate(zip(steps, step_colours(len(steps)), strict=True)):
            for key, style in (("mi_bound_nats", "-"), ("mi_ceiling_nats", ":")):
                nats = [math.nan if record[key][index] is None else record[key][index] for record in records]
                label = step.words if key == "mi_bound_nats" else "_"
                axes.plot(at, nats, style, color=colour, linewidth=1, label=label)
        axes.set(xlabel="training step", title=figure_text(", ".join(kind)))
    panels[0].set_ylabel(f"{bound_table(bounds[0]).header[1]}, nats (dotted: ceiling)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
