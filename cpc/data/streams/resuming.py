"""What a stream of batches without end needs to be resumed: a length, and proof that it is the same stream."""

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
        f"{name} {saved.get(name)!r} -> {here.get(name)!r}"
        for name in here | saved
        if saved.get(name) != here.get(name)
    ]
    if changes:
        raise ValueError(
            f"the run cannot be resumed with other batches than it began with: {', '.join(changes)}; restore these "
            "options and files, or start a new run"
        )
