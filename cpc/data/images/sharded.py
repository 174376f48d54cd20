"""Images in shards: the squares of a pack, and their table, in a folder or behind a URL."""

import json
from pathlib import Path

import numpy as np

from cpc.data.images.table import FolderImages, ImageTable
from cpc.data.store.atomic import json_text
from cpc.data.store.shards import Shards

TABLE_NAME = "images.json"
_COLUMNS = {"names": str, "splits": str, "labels": int, "classes": str, "sequences": int}


class ShardedImages(FolderImages):
    """Images that are squares of one size in shards, instead of files."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.folder)
        self.shards = shards


def write_table(table: ImageTable) -> bytes:
    """Return a table's columns as JSON."""
    columns = {name: getattr(table, name) for name in _COLUMNS}
    lists = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    return json_text({"format": 1, **lists}).encode()


def read_sharded_images(source: str | Path, cache_dir: str | Path | None, cache_gb: float) -> ImageTable:
    """Read the table of a sharded source, equal to the table that the shards were written from.

    Raises:
        ValueError: if the source holds no images or is damaged; also the errors of `Shards`.
    """
    shards = Shards(source, cache_dir, cache_gb)
    path = shards.folder / TABLE_NAME
    if not path.is_file():
        raise ValueError(f"{shards.source} holds no images: name a folder that `cpc data shard` made from images")
    try:
        entries = json.loads(path.read_bytes())
        columns = {name: entries[name] for name in _COLUMNS}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a table of images; is it damaged? {error!r}") from error
    for name, kind in _COLUMNS.items():
        if not isinstance(columns[name], list) or not all(type(value) is kind for value in columns[name]):
            raise ValueError(f"{path} is damaged: its {name} must be a list of {kind.__name__}")
    try:
        columns |= {name: np.array(columns[name], np.int64) for name in ("labels", "sequences")}
        return ImageTable(**columns, origin=ShardedImages(shards))
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
