"""Which of a run's tables speaks for it: strategy and steps k may change on the way, and old tables stay."""

from collections.abc import Iterable

from cpc.monitor.kinds import BOUND
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import AS_TRAINED, Split, View


def newest(tables: Iterable[Table]) -> Table | None:
    """The one written to last, by its step; of several, as in an evaluation of many strategies, the first."""
    return max(tables, key=lambda table: table.last_mean("step"), default=None)


def current(run: Run) -> list[Table]:
    """One table of the bound per split and strategy, without those of strategies that are trained no more."""
    found: dict[tuple[str, ...], Table] = {}
    trained = newest(_of_split(run, "training"))
    for table in run.tables(BOUND):
        former = found.get(table.key.names, table)
        found[table.key.names] = newest((former, table)) or table
    return [table for names, table in found.items() if names[0] != "train" or table is trained]


def bound_table(run: Run, view: View) -> Table | None:
    """The run's records of the split and strategy asked for; None if it has none.

    `as trained` is the strategy of the last training record; of a run without any, that which its last evaluation
    began with.
    """
    tables = _of_split(run, view.split)
    if view.strategy != AS_TRAINED:
        return newest(table for table in tables if table.key.names[1] == view.strategy)
    trained = newest(_of_split(run, "training"))
    of_trained = [table for table in tables if trained is not None and table.key.names[1] == trained.key.names[1]]
    return newest(of_trained or tables)


def _of_split(run: Run, split: Split) -> list[Table]:
    return [table for table in run.tables(BOUND) if (table.key.names[0] == "train") == (split == "training")]
