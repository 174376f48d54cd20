"""Synthetic corpora in folders, made atomically. A folder is reused if its record has the same parameters."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpc import __version__
from cpc.data.store.atomic import build_atomically, json_text
from cpc.data.store.untrusted import read_json

REMEDY = "remove the folder, or name another one"


def make_once(
    out: Path, record_name: str, parameters: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any]]
) -> bool:
    """Make a corpus and return True. If `out` already holds the corpus of these parameters, return False."""
    record = out / record_name
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        _check(out, record, parameters)
        return False
    with build_atomically(out.absolute(), lambda folder: (folder / record_name).is_file()) as unfinished:
        entries = dict(make(unfinished))
        versions = {"cpc": __version__, **entries.pop("versions", {}), "numpy": np.__version__}
        head = {"corpus": entries.pop("corpus"), "parameters": dict(parameters), "versions": versions}
        content = json_text(head | entries, indent=1)
        (unfinished / record_name).write_text(content + "\n", encoding="utf-8")
    return True


def _check(out: Path, record: Path, parameters: Mapping[str, Any]) -> None:
    if not record.is_file():
        raise ValueError(f"{out} holds other files, but not a finished corpus ({record.name} is missing): {REMEDY}")
    try:
        recorded = read_json(record)["parameters"]
        different = [
            f"{name} is {recorded.get(name)} in its record, {value} here"
            for name, value in parameters.items()
            if recorded.get(name) != value
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{record} is not the record of a made corpus: {REMEDY}") from error
    if different:
        raise ValueError(f"{out} holds a corpus made with other parameters ({'; '.join(different)}): {REMEDY}")
