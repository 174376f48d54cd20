"""Real corpora that lie beside the checkout."""

from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
Prepare = Callable[..., str]  # the fixture `prepare`


def real(corpus: str) -> Path:
    """The folder of the corpus; without it the test is skipped."""
    folder = REPOSITORY.parent / "shared" / "data" / corpus
    if not folder.is_dir():
        pytest.skip(f"no {corpus} beside the checkout (../shared/data/{corpus})")
    return folder
