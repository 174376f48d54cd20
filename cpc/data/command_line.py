"""The command line of `datasets/NAME/prepare.py`: each prepares one public corpus; its `card.md` says what to get."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def prepare_from_command_line(prepare: Callable[..., Any], describe: Callable[..., str], **published: Any) -> None:
    """Call a corpus's function with the arguments of the command line and print what there is to read.

    Args:
        prepare: its parameters become the options.
        describe: called with its result, and with `published`.
        published: `published`, the sizes of the splits as the authors report them, where they do.
    """
    import jsonargparse

    try:
        prepared = jsonargparse.auto_cli(prepare, allow_abbrev=False)
    except (ValueError, ImportError, OSError) as error:
        sys.exit(f"error: {error}")
    print(describe(prepared, **published))


def require_file(path: Path) -> None:
    """Raise a ValueError if a file of a corpus is not there."""
    if not path.is_file():
        raise ValueError(f"there is no {path}: the corpus's card says where it comes from")
