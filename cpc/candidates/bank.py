"""A bank of stored latents, in memory or on disk, whose latents serve as negatives.

n latents of the bank, D latent dim.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from safetensors.numpy import load_file
from torch import Tensor

from cpc.config.argument_rules import Choices, Range
from cpc.data.store.atomic import write_atomically, write_json
from cpc.data.store.untrusted import read_json, reading
from cpc.data.tensors import check_tensor

FORMAT_VERSION = 1
_CUT_OFF = "cannot be read; perhaps the copy was cut off"
_LATENTS, _SEQUENCES, _FACTS = "latents.npy", "sequence_id.npy", "bank.json"


class LatentBank:
    """Stored latents and the sequence of each, in memory or mapped from a file; a bank has no trained parameters.

    All latents of a bank should come from the encoder of the positives. Otherwise a critic can score a candidate by its
    encoder instead of by its content.

    Args:
        latents: z.
        sequence_id: id of the file of each latent, so that a row can skip the latents of its own file; -1 (the default)
            if unknown.
        facts: JSON values that describe the latents; saved in `bank.json`.

    Example:
        >>> bank = LatentBank(torch.randn(100, 8))
        >>> len(bank), bank.dim, [len(bank.latents[tile]) for tile in bank.tiles(64)]
        (100, 8, [64, 36])
    """

    def __init__(
        self,
        latents: Float[Tensor, "n D"],
        sequence_id: Int[Tensor, " n"] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        check_tensor("latents", latents, "floats", ("n", "D"))
        Range(1).check("the number of latents", len(latents))
        if sequence_id is not None:
            check_tensor("sequence_id", sequence_id, "integers", (len(latents),))
        self.latents = latents.detach()
        self.sequence_id = torch.full((len(latents),), -1) if sequence_id is None else sequence_id
        self.facts = dict(facts or {})

    @classmethod
    def load_embeddings(cls, folder: str | Path, out: str | Path | None = None) -> "LatentBank":
        """Build a bank from the output of `cpc embed --features z`.

        Each file is a sequence; ids follow the order of `facts["sources"]`.

        Args:
            folder: searched for embeddings, subfolders included.
            out: folder to write the bank to. The bank is then mapped from this folder and may be larger than memory.
                None: the bank stays in memory.

        Raises:
            ValueError: if there are no embeddings, they are not latents, they come from several models, or a file is
                broken; the message names the file.
        """
        files = sorted(path for path in Path(folder).rglob("*") if path.suffix in (".npy", ".safetensors"))
        if not files:
            raise ValueError(f"no embeddings below {folder}: write them with `cpc embed MODEL PATHS --features z`")
        described = [_read_facts(file.with_suffix(".json"), "dim") for file in files]
        for file, facts in zip(files, described, strict=True):
            for name, needed in {"features": "z", "model_sha256": described[0].get("model_sha256")}.items():
                if facts.get(name) != needed:
                    raise ValueError(f"{file} has {name} {facts.get(name)!r}, but a bank needs {needed!r}")
        shapes = [_read_latents(file).shape for file in files]
        ends = np.cumsum([shape[0] for shape in shapes])
        size = (int(ends[-1]), int(described[0]["dim"]))
        if out is None:
            latents = np.empty(size, np.float32)
            _copy_latents(files, ends, latents)
        else:
            Path(out).mkdir(parents=True, exist_ok=True)
            with write_atomically(Path(out) / _LATENTS) as new:
                mapped = np.lib.format.open_memmap(new, "w+", np.float32, size)
                _copy_latents(files, ends, mapped)
                mapped.flush()
            latents = np.load(Path(out) / _LATENTS, mmap_mode="c")
        sequence_id = torch.from_numpy(np.repeat(np.arange(len(files)), np.diff(ends, prepend=0)))
        facts = {
            "model_sha256": described[0].get("model_sha256"),
            "sources": [record.get("source") for record in described],
        }
        bank = cls(torch.from_numpy(latents), sequence_id, facts)
        if out is not None:
            bank._write_ids_and_facts(Path(out))
        return bank

    @classmethod
    def open(cls, folder: str | Path) -> "LatentBank":
        """Open a saved bank with its latents mapped from disk; a ValueError names a missing or broken file."""
        folder = Path(folder)
        facts = _read_facts(folder / _FACTS, "format_version", "num_latents")
        version, num_latents = facts.pop("format_version"), facts.pop("num_latents")
        Range(1, FORMAT_VERSION).check(f"{folder / _FACTS}: format_version", version)
        # The map is copy-on-write: torch needs writable memory, and the file must not change.
        arrays = []
        for file, content in ((folder / _LATENTS, "latents"), (folder / _SEQUENCES, "sequence ids")):
            with reading(file, _CUT_OFF):
                arrays.append(np.load(file, mmap_mode="c"))
            Choices((num_latents,)).check(f"{folder}: the number of {content}", len(arrays[-1]))
        latents, sequence_id = map(torch.from_numpy, arrays)
        return cls(latents, sequence_id, facts)

    def save(self, folder: str | Path) -> None:
        """Write the bank to a folder; `bank.json` is written last."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with write_atomically(folder / _LATENTS) as new, new.open("wb") as file:
            np.save(file, self.latents.cpu().numpy())
        self._write_ids_and_facts(folder)

    def __len__(self) -> int:
        """Return the number of latents."""
        return len(self.latents)

    @property
    def dim(self) -> int:
        """The dimension D of the latents."""
        return self.latents.shape[1]

    def tiles(self, size: int) -> Iterator[slice]:
        """Return slices of at most `size` latents that cover the bank."""
        return (slice(start, min(start + size, len(self))) for start in range(0, len(self), size))

    def num_of(self, sequence_id: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
        """Return the number of stored latents of each of these sequences; 0 for the id -1."""
        ids, counts = (values.to(sequence_id.device) for values in self._sequences)
        index = torch.searchsorted(ids, sequence_id.contiguous()).clamp(max=len(ids) - 1)
        return torch.where((ids[index] == sequence_id) & (sequence_id >= 0), counts[index], 0)

    @cached_property
    def _sequences(self) -> tuple[Int[Tensor, " S"], Int[Tensor, " S"]]:
        """The distinct ids in ascending order, and the number of latents of each."""
        ids, counts = self.sequence_id.unique(return_counts=True)
        return ids, counts

    def _write_ids_and_facts(self, folder: Path) -> None:
        with write_atomically(folder / _SEQUENCES) as new, new.open("wb") as file:
            np.save(file, self.sequence_id.cpu().numpy())
        write_json({"format_version": FORMAT_VERSION, "num_latents": len(self), **self.facts}, folder / _FACTS)


def _read_facts(path: Path, *required: str) -> dict[str, Any]:
    with reading(path, _CUT_OFF):
        facts = read_json(path)
    if not isinstance(facts, dict) or not facts.keys() >= {*required}:
        raise ValueError(f"{path} must hold {' and '.join(required)}: it was not written by cpc")
    return facts


def _read_latents(file: Path) -> Float[np.ndarray, "T D"]:
    """Return the latents of a file; latents of a grid are flattened to one axis."""
    with reading(file, _CUT_OFF):
        values = np.load(file, mmap_mode="r") if file.suffix == ".npy" else load_file(file)["features"]
    return rearrange(values, "... d -> (...) d")


def _copy_latents(files: list[Path], ends: Int[np.ndarray, " _"], out: Float[np.ndarray, "n D"]) -> None:
    start = 0
    for file, end in zip(files, ends.tolist(), strict=True):
        frames = _read_latents(file)
        if frames.shape[1] != out.shape[1] or not np.isfinite(frames).all():
            raise ValueError(f"{file}: latents [n, {frames.shape[1]}] must be finite [n, {out.shape[1]}]")
        out[start:end] = frames
        start = end
