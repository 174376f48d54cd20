"""Making a corpus in a folder: at once or not at all, with a record of what it was made with, so it is found again."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpc import __version__
from cpc.data.store.atomic import json_text
from cpc.data.store.atomic_folder import build_atomically
from cpc.data.store.untrusted import read_json

REMEDY = "remove the folder, or name another one"


def make_once(
    out: Path, record_name: str, parameters: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any]]
) -> bool:
    """Make a corpus, unless `out` holds that of these parameters: then False.

    Args:
        out: the folder; it appears when the corpus is complete, so that an interrupted run leaves nothing there.
        record_name: JSON file in it.
        parameters: what decides the corpus.
        make: writes the corpus to a folder, and returns what the record holds besides: `corpus`, what it is, and more
            `versions` than those of cpc and numpy.

    Raises:
        ValueError: if `out` holds anything else.
    """
    record = out / record_name
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        _check(out, record, parameters)
        return False
    with build_atomically(out.absolute(), lambda folder: (folder / record_name).is_file()) as unfinished:
        found = dict(make(unfinished))
        versions = {"cpc": __version__, **found.pop("versions", {}), "numpy": np.__version__}
        head = {"corpus": found.pop("corpus"), "parameters": dict(parameters), "versions": versions}
        content = json_text(head | found, indent=1)
        (unfinished / record_name).write_text(content + "\n", encoding="utf-8")
    return True


def _check(out: Path, record: Path, parameters: Mapping[str, Any]) -> None:
    if not record.is_file():
        raise ValueError(f"{out} holds other files and no finished corpus (no {record.name} in it): {REMEDY}")
    try:
        made_with = read_json(record)["parameters"]
        different = [
            f"{name} is {made_with.get(name)} there, {value} here"
            for name, value in parameters.items()
            if made_with.get(name) != value
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{record} is not the record of a made corpus: {REMEDY}") from error
    if different:
        raise ValueError(f"{out} holds a corpus made with other parameters ({'; '.join(different)}): {REMEDY}")
