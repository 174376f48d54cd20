"""What a stream of batches without end needs to be resumed: length, position, and proof that it is the same stream."""

from collections.abc import Iterator
from typing import Any

ENDLESS = 2**62  # batches


def check_same_batches(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse to go on where another stream was left.

    Args:
        saved: the fingerprint in the state, all that the batches depend on, by option.
        here: this stream's.

    Raises:
        ValueError: if they differ, naming what does.
    """
    changes = [
        f"other {name}" if is_of_files(name) else f"{name} {saved.get(name)!r} -> {here.get(name)!r}"
        for name in here | saved
        if saved.get(name) != here.get(name) and (name in saved or not is_of_files(name))
    ]
    if changes:
        raise ValueError(
            f"the run cannot be resumed with other batches than it began with: {', '.join(changes)}; restore these "
            "options and files, or start a new run"
        )


def is_of_files(name: str) -> bool:
    """Whether an entry is one of those that checkpoints before issue 34 do not have, and cannot be compared by."""
    return "paths of " in name or "content of " in name


class ResumableIndex:
    """The numbers of the batches, one after the other without end; resumes exactly.

    Args:
        fingerprint: what a state must agree on: all that the batches depend on, by option.
    """

    def __init__(self, fingerprint: dict[str, Any]) -> None:
        self.fingerprint = fingerprint
        self.position = 0

    def batch(self, index: int) -> Any:
        """What the data set is asked for as batch number `index`."""
        return [index]

    def __len__(self) -> int:
        return ENDLESS  # a loader of unknown length is read one batch ahead, and its state is that of a batch too late

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.position += 1
            yield self.batch(self.position - 1)

    def state_dict(self) -> dict[str, Any]:
        """The next batch, and of what."""
        return {"position": self.position, "fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ValueError: if the state belongs to another stream, naming what differs.
        """
        check_same_batches(state["fingerprint"], self.fingerprint)
        self.position = state["position"]
