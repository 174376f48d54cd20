"""Which of a run's tables speaks for it: strategy and steps k may change on the way, and old tables stay."""

from collections.abc import Iterable

from cpc.monitor.kinds import BOUND
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import AS_TRAINED, View


def newest(tables: Iterable[Table]) -> Table | None:
    """The one written to last, by its step; of several, as in an evaluation of many strategies, the first."""
    return max(tables, key=lambda table: table.last_mean("step"), default=None)


def current(run: Run) -> list[Table]:
    """One table of the bound per split and strategy, without those of strategies that are trained no more."""
    tables, trained = run.tables(BOUND), newest(_trained(run))
    by_names = {table.key.names: newest(t for t in tables if t.key.names == table.key.names) for table in tables}
    return [table for table in by_names.values() if table and (table.key.names[0] != "train" or table is trained)]


def bound_table(run: Run, view: View) -> Table | None:
    """The run's records of the split and strategy asked for; None if it has none.

    `as trained` is the strategy of the last training record; of a run without any, that which its last evaluation
    began with.
    """
    trained = newest(_trained(run))
    tables = _trained(run) if view.split == "training" else [t for t in run.tables(BOUND) if t.key.names[0] != "train"]
    if view.strategy != AS_TRAINED:
        return newest(table for table in tables if table.key.names[1] == view.strategy)
    return newest(t for t in tables if trained and t.key.names[1] == trained.key.names[1]) or newest(tables)


def _trained(run: Run) -> list[Table]:
    return [table for table in run.tables(BOUND) if table.key.names[0] == "train"]
