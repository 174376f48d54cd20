"""A pool of stored latents, as many as a disk holds: to draw from, or to score against one by one.

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

from cpc.data.store.atomic import write_atomically, write_json
from cpc.data.store.untrusted import read_json, reading
from cpc.data.tensors import check_tensor

FORMAT_VERSION = 1
_CUT_OFF = "cannot be read, a copy that was cut off"
_LATENTS, _SEQUENCES, _FACTS = "latents.npy", "sequence_id.npy", "bank.json"


class LatentBank:
    """Stored latents and the sequence that each comes from, in memory or mapped from a file; nothing here is trained.

    All of a bank should come from one encoder, that of the positives: a critic may tell latents of another encoder
    from those of its own instead of whose latent it is.

    Args:
        latents: z.
        sequence_id: the file of each, so that a row can be kept from its own; -1 for none, which is the default.
        facts: what is known of them, kept in `bank.json`: JSON values.

    Raises:
        ValueError: if there is no latent, or the lengths differ.

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
        if len(latents) == 0:
            raise ValueError("a bank needs at least one latent, and latents holds none")
        if sequence_id is not None:
            check_tensor("sequence_id", sequence_id, "integers", (len(latents),))
        self.latents = latents.detach()
        self.sequence_id = torch.full((len(latents),), -1) if sequence_id is None else sequence_id
        self.facts = dict(facts or {})

    @classmethod
    def load_embeddings(cls, folder: str | Path, out: str | Path | None = None) -> "LatentBank":
        """Gather the output of `cpc embed --features z`; sequences are its files, in the order of `facts["sources"]`.

        Args:
            folder: searched with everything below it.
            out: a folder to write the bank to, which is then mapped from there and may be larger than the memory;
                None: kept in memory.

        Raises:
            ValueError: if there are no embeddings, they hold something other than latents, come from several models, or
                a file is broken; it is named.
        """
        files = sorted(path for path in Path(folder).rglob("*") if path.suffix in (".npy", ".safetensors"))
        if not files:
            raise ValueError(f"no embeddings below {folder}: write them with `cpc embed MODEL PATHS --features z`")
        described = [_described(file) for file in files]
        for file, facts in zip(files, described, strict=True):
            if facts.get("features") != "z":
                raise ValueError(f"{file} holds features {facts.get('features')!r}, a bank latents: embed --features z")
            if facts.get("model_sha256") != described[0].get("model_sha256"):
                raise ValueError(f"{file} and {files[0]} are of different models: embed everything with one")
        shapes = [_frames(file).shape for file in files]
        ends = np.cumsum([shape[0] for shape in shapes])
        size = (int(ends[-1]), int(described[0]["dim"]))
        if out is None:
            latents = np.empty(size, np.float32)
            _gather(files, ends, latents)
        else:
            Path(out).mkdir(parents=True, exist_ok=True)
            with write_atomically(Path(out) / _LATENTS) as new:
                mapped = np.lib.format.open_memmap(new, "w+", np.float32, size)
                _gather(files, ends, mapped)
                mapped.flush()
            latents = np.load(Path(out) / _LATENTS, mmap_mode="c")
        sequence_id = torch.from_numpy(np.repeat(np.arange(len(files)), np.diff(ends, prepend=0)))
        facts = {
            "model_sha256": described[0].get("model_sha256"),
            "sources": [each.get("source") for each in described],
        }
        bank = cls(torch.from_numpy(latents), sequence_id, facts)
        if out is not None:
            bank._describe(Path(out))
        return bank

    @classmethod
    def open(cls, folder: str | Path) -> "LatentBank":
        """A bank that was saved, its latents mapped: what is read comes from the disk, and memory may be taken back.

        Raises:
            ValueError: if there is none, a file of it is missing or broken (it is named), or a later version wrote it.
        """
        folder = Path(folder)
        if not (folder / _FACTS).exists():
            raise ValueError(f"{folder} holds no bank: {_FACTS} is looked for there")
        facts = _read_json(folder / _FACTS)
        missing = {"format_version", "num_latents"} - facts.keys()
        if missing:
            raise ValueError(f"{folder / _FACTS} lacks {', '.join(sorted(missing))}: it was not written by LatentBank")
        version, num_latents = facts.pop("format_version"), facts.pop("num_latents")
        if version > FORMAT_VERSION:
            raise ValueError(f"{folder / _FACTS} has format_version {version}, this cpc reads up to {FORMAT_VERSION}")
        # copy on write: torch wants memory that may be written to, and the file must stay as it is
        latents, sequence_id = (_mapped(folder / name) for name in (_LATENTS, _SEQUENCES))
        if not len(latents) == len(sequence_id) == num_latents:
            raise ValueError(
                f"{folder} holds {len(latents)} latents and {len(sequence_id)} sequence ids, but {_FACTS} says "
                f"{num_latents}: files of two banks, or a copy that was cut off"
            )
        return cls(torch.from_numpy(latents), torch.from_numpy(sequence_id), facts)

    def save(self, folder: str | Path) -> None:
        """Write the bank to a folder; `bank.json` comes last."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with write_atomically(folder / _LATENTS) as new, new.open("wb") as file:
            np.save(file, self.latents.cpu().numpy())
        self._describe(folder)

    def __len__(self) -> int:
        """How many latents there are."""
        return len(self.latents)

    @property
    def dim(self) -> int:
        """Their width D."""
        return self.latents.shape[1]

    def tiles(self, size: int) -> Iterator[slice]:
        """The places of all latents, so many at a time."""
        return (slice(start, min(start + size, len(self))) for start in range(0, len(self), size))

    def num_of(self, sequence_id: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
        """How many latents of each of these sequences there are; 0 for -1."""
        ids, counts = (each.to(sequence_id.device) for each in self._sequences)
        place = torch.searchsorted(ids, sequence_id.contiguous()).clamp(max=len(ids) - 1)
        return torch.where((ids[place] == sequence_id) & (sequence_id >= 0), counts[place], 0)

    @cached_property
    def _sequences(self) -> tuple[Int[Tensor, " S"], Int[Tensor, " S"]]:
        """The ids that there are in ascending order, and how many latents each has."""
        ids, counts = self.sequence_id.unique(return_counts=True)
        return ids, counts

    def _describe(self, folder: Path) -> None:
        with write_atomically(folder / _SEQUENCES) as new, new.open("wb") as file:
            np.save(file, self.sequence_id.cpu().numpy())
        write_json({"format_version": FORMAT_VERSION, "num_latents": len(self), **self.facts}, folder / _FACTS)


def _described(file: Path) -> dict[str, Any]:
    path = file.with_suffix(".json")
    if not path.exists():
        raise ValueError(f"{file} has no {path.name} beside it that says what it holds: was it written by `cpc embed`?")
    facts = _read_json(path)
    if "dim" not in facts:
        raise ValueError(f"{path} does not say the dim: it was not written by `cpc embed`")
    return facts


def _read_json(path: Path) -> dict[str, Any]:
    with reading(path, _CUT_OFF):
        facts = read_json(path)
    if not isinstance(facts, dict):
        raise ValueError(f"{path} holds no JSON object: it was not written by cpc")
    return facts


def _mapped(path: Path) -> np.ndarray:
    """An array that may be written to without a change to its file."""
    with reading(path, _CUT_OFF):
        return np.load(path, mmap_mode="c")


def _frames(file: Path) -> Float[np.ndarray, "T D"]:
    """The latents of a file, those of a grid in rows."""
    with reading(file, _CUT_OFF):
        values = np.load(file, mmap_mode="r") if file.suffix == ".npy" else load_file(file)["features"]
    return rearrange(values, "... d -> (...) d")


def _gather(files: list[Path], ends: Int[np.ndarray, " _"], into: Float[np.ndarray, "n D"]) -> None:
    start = 0
    for file, end in zip(files, ends.tolist(), strict=True):
        frames = _frames(file)
        if frames.shape[1] != into.shape[1]:
            raise ValueError(f"{file} holds {frames.shape[1]} channels, the others {into.shape[1]}")
        if not np.isfinite(frames).all():
            raise ValueError(f"{file} holds values that are not finite: a broken file, or a model that diverged")
        into[start:end] = frames
        start = end
