"""Two streams of batches in turn: so many batches of the first, then the second without end."""

from dataclasses import dataclass
from typing import Any

from cpc.config.argument_rules import Count, check_fields
from cpc.data.batch import Batch
from cpc.data.streams.resumable_index import ResumableIndex
from cpc.data.streams.stream import BatchStream


@dataclass(kw_only=True)
class First:
    """Another source, which a run is trained on first.

    Args:
        source: as the option of the data that names theirs.
        num_batches: of each device, drawn from it.

    Raises:
        ValueError: if `num_batches` is below 1.
    """

    source: str
    num_batches: Count

    def __post_init__(self) -> None:
        check_fields(self, "first.")


class BatchesInTurn(ResumableIndex):
    """Draws of two streams, each with the number of the data set that it is of.

    Args:
        first: whose batches come first.
        num_first: how many of them.
        then: what follows.
    """

    def __init__(self, first: BatchStream, num_first: int, then: BatchStream) -> None:
        of_first = {f"first.{name}": value for name, value in first.state_dict()["fingerprint"].items()}
        super().__init__(then.state_dict()["fingerprint"] | of_first | {"first.num_batches": num_first})
        self._first, self._num_first, self._then = first, num_first, then

    def batch(self, index: int) -> Any:
        """Which data set, and its draws."""
        if index < self._num_first:
            return 0, self._first.batch(index)
        return 1, self._then.batch(index - self._num_first)


class DataSetsInTurn:
    """The data sets of `BatchesInTurn`.

    Args:
        data_sets: by their number.
    """

    def __init__(self, *data_sets: Any) -> None:
        self._data_sets = data_sets

    def __getitems__(self, of: Any) -> Batch:
        """The batch of a data set's draws."""
        number, drawn = of
        batch: Batch = self._data_sets[number].__getitems__(drawn)
        return batch
