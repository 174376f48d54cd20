"""The record beside a made corpus: what it was made with, so that it is taken up again or refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REMEDY = "remove the folder, or name another one"


def is_made(out: Path, record_name: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a folder holds the corpus of these parameters, by its record; False if it is not there or empty.

    Raises:
        ValueError: if it holds anything else.
    """
    if not (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        return False
    record = out / record_name
    if not record.is_file():
        raise ValueError(f"{out} holds other files and no finished corpus (no {record_name} in it): {REMEDY}")
    try:
        made_with = json.loads(record.read_text(encoding="utf-8"))["parameters"]
        different = [
            f"{name} is {made_with.get(name)} there, {value} here"
            for name, value in parameters.items()
            if made_with.get(name) != value
        ]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{record} is no record of a made corpus: {REMEDY}") from error
    if different:
        raise ValueError(f"{out} holds a corpus made with other parameters ({'; '.join(different)}): {REMEDY}")
    return True
