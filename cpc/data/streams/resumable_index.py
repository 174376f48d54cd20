"""Endless streams of batches that resume exactly, and the check that a checkpoint belongs to the same stream."""

from collections.abc import Iterator
from typing import Any

ENDLESS = 2**62  # number of batches


def check_same_batches(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise an error if the fingerprint of a state differs from that of this stream.

    Raises:
        ValueError: if the fingerprints differ; the message names the entries.
    """
    changes = [
        f"other {name}" if is_of_files(name) else f"{name} {saved.get(name)!r} -> {here.get(name)!r}"
        for name in here | saved
        if saved.get(name) != here.get(name) and (name in saved or not is_of_files(name))
    ]
    if changes:
        raise ValueError(
            f"the run cannot be resumed, because its batches would change: {', '.join(changes)}; restore these "
            "options and files, or start a new run"
        )


def is_of_files(name: str) -> bool:
    """Return whether an entry is about files. Older checkpoints lack such entries, which are then not compared."""
    return "paths of " in name or "content of " in name


class ResumableIndex:
    """The indices of batches 0, 1, 2, ... without end; resumes exactly.

    Args:
        fingerprint: everything that the batches depend on, by option; a state must have the same fingerprint.
    """

    def __init__(self, fingerprint: dict[str, Any]) -> None:
        self.fingerprint = fingerprint
        self.position = 0

    def batch(self, index: int) -> Any:
        """Return the argument of the data set's `__getitems__` for batch `index`."""
        return [index]

    def __len__(self) -> int:
        return ENDLESS  # without a length the loader reads a batch ahead, and its state is off by a batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.position += 1
            yield self.batch(self.position - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch, and the fingerprint."""
        return {"position": self.position, "fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: if the state belongs to another stream; the message names the differences.
        """
        check_same_batches(state["fingerprint"], self.fingerprint)
        self.position = state.get("round_start", 0) + state["position"]  # older checkpoints count in rounds
