"""Helpers of the scripts of public image corpora (`datasets/NAME/prepare.py`): arrays with splits and labels."""

from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.images.sources import read_image_source
from cpc.data.images.table import ImageTable
from cpc.data.store.atomic import write_atomically


def describe(table: ImageTable, published: dict[str, int] | None = None) -> str:
    """Return a table of each split's images and labelled images, with the `published` number if it differs."""
    lines = [f"{len(table)} images in {table.origin.root}", f"{'split':12}{'images':>8}{'labelled':>10}"]
    splits = np.array(table.splits)
    for split in dict.fromkeys([*(published or {}), *table.splits]):
        is_here = splits == split
        line = f"{split:12}{is_here.sum():8}{(table.labels[is_here] >= 0).sum():10}"
        if published and published.get(split) != is_here.sum():
            line += f"   (published: {published.get(split, 0)})"
        lines.append(line)
    return "\n".join([*lines, f"{len(table.classes)} classes: {', '.join(table.classes)}"])


def write_arrays(out: Path, splits: dict[str, dict[str, Any]]) -> ImageTable:
    """Write the arrays of each split to `SPLIT.npz`, and read them as a source."""
    out.mkdir(parents=True, exist_ok=True)
    for split, arrays in splits.items():
        with write_atomically(out / f"{split}.npz") as new, new.open("wb") as stream:
            np.savez(stream, **arrays)
    return read_image_source(out, valid_share=0.0)
