"""Features of a corpus, extracted once and kept in memory, or in temporary files if they are too large.

R vectors of all observations, D feature dim.
"""

import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from cpc.config.argument_rules import Device, NonNegative, check_fields
from cpc.config.description import build
from cpc.data.probe_data import FeatureExtractor, Precision, ProbeData
from cpc.data.store.folders import map_in_order
from cpc.data.tensors import find_device
from cpc.evaluation import recorded_data
from cpc.model import CPC


@dataclass(frozen=True)
class Extraction:
    """Settings of feature extraction and storage.

    Attributes:
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        precision: precision of the encoder's matrix products.
        max_ram_gb: features above this size go to temporary files in TMPDIR, which vanish with the process.
        dtype: type of stored features; float32, or float16 for grids, if not given. `float16` has three decimal digits.
        cache_dir: folder of packed data; .cpc_cache next to the data if not given.
        skip_bad: leave out files that cannot be used, and count them.
        progress: show progress bars.

    """

    device: Device = "auto"
    precision: Precision = "float32"
    max_ram_gb: NonNegative = 2.0
    dtype: Literal["float32", "float16"] | None = None
    cache_dir: str | Path | None = None
    skip_bad: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "device", find_device(self.device))

    def record(self) -> dict[str, Any]:
        """Return the settings that `probe.json` records."""
        return {"device": self.device, "precision": self.precision, "dtype": self.dtype}


class FeatureStore:
    """Vectors of many observations, one observation after the other.

    `values` holds the `[R, D]` vectors by feature, in memory or memory-mapped. `num_vectors[i]` of them belong to the
    observation `rows[i]`; `num_empty` counts observations that are too short for a vector or were left out.
    """

    def __init__(
        self, extractor: FeatureExtractor, rows: np.ndarray, num_vectors: np.ndarray, values: Mapping[str, Any]
    ) -> None:
        self.extractor = extractor
        self.values = values
        self.num_vectors = int(num_vectors.sum())
        self.num_empty = int((num_vectors == 0).sum())
        ends = np.cumsum(num_vectors).tolist()
        self.rows: list[int] = rows.tolist()
        self._spans = dict(zip(self.rows, map(slice, [0, *ends[:-1]], ends), strict=True))

    @classmethod
    def extract(
        cls, extractor: FeatureExtractor, rows: np.ndarray, name: Callable[[int], str], extraction: Extraction
    ) -> "FeatureStore":
        """Extract the features of every observation, which must be finite; `name` returns its name for messages."""
        title = " ".join(extractor.dims)
        num_vectors = extractor.num_vectors(rows)
        if not num_vectors.any():
            raise ValueError(f"{len(rows)} observations, such as {name(int(rows[0]))}, are too short for {title}")
        chosen = {name: extraction.dtype or extractor.dtypes.get(name, "float32") for name in extractor.dims}
        dtypes = {name: np.dtype(dtype) for name, dtype in chosen.items()}
        shapes = {feature: (int(num_vectors.sum()), dim) for feature, dim in extractor.dims.items()}
        num_bytes = sum(num * dim * dtypes[feature].itemsize for feature, (num, dim) in shapes.items())
        is_large = num_bytes > round(1e9 * extraction.max_ram_gb)
        folder = _scratch(num_bytes) if is_large else None
        values = {feature: _allocate(shape, dtypes[feature], folder) for feature, shape in shapes.items()}
        store = cls(extractor, rows, num_vectors, values)
        num_threads, num_workers = torch.get_num_threads(), extractor.num_workers

        def extract_group(group: np.ndarray) -> int:
            if num_workers > 1:
                torch.set_num_threads(1)  # of this worker
            num_filled = dict.fromkeys(group.tolist(), 0)
            for row, vectors_of in extractor.read(group):
                start = store.span(row).start + num_filled[row]
                for feature, vectors in vectors_of.items():
                    with np.errstate(over="ignore"):
                        vectors = vectors.astype(dtypes[feature], copy=False)
                    if not np.isfinite(vectors).all():
                        raise ValueError(f"{name(row)}: features {feature!r} are not finite in {dtypes[feature]}")
                    values[feature][start : start + len(vectors)] = vectors
                num_filled[row] += len(vectors)
            assert num_filled == {row: store.span(row).stop - store.span(row).start for row in num_filled}
            return len(group)

        groups = extractor.groups(rows[num_vectors > 0]) if extractor.dims else []  # sparse features have no dims
        try:
            with tqdm(total=sum(map(len, groups)), desc=f"features {title}", disable=not extraction.progress) as bar:
                for num_done in map_in_order(extract_group, groups, num_workers):
                    bar.update(num_done)
        finally:
            torch.set_num_threads(num_threads)
        store.values = dict(values) | dict(extractor.sparse(rows))
        return store

    def span(self, row: int) -> slice:
        """Return the slice of the vectors of an observation."""
        return self._spans[row]

    def replaced(self, values: Mapping[str, Any]) -> "FeatureStore":
        """Return the store with other vectors of the same observations."""
        store = copy(self)
        store.values = values
        return store


def as_tensor(rows: Any) -> Tensor:
    """Return rows of stored features as a tensor; sparse features become CSR, which probes do not standardise."""
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(rows)
    with warnings.catch_warnings(action="ignore"):  # ignore torch's warning that CSR is in beta
        indptr, indices, data = map(torch.from_numpy, (rows.indptr, rows.indices, rows.data))
        return torch.sparse_csr_tensor(indptr, indices, data, size=rows.shape, check_invariants=False)


def _scratch(num_bytes: int) -> Path:
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        found = f"{num_bytes / 1e9:.1f} GB of features do not fit in {folder}, where {free / 1e9:.1f} GB are free"
        raise OSError(f"{found}: name another disk in TMPDIR, set `dtype` to float16, or probe fewer `features`")
    return folder


def _allocate(shape: tuple[int, int], dtype: np.dtype, folder: Path | None) -> np.ndarray:
    if folder is None:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(dir=folder, prefix="cpc-features-") as file:  # has no name, so a kill frees it too
        return np.memmap(file, dtype, "w+", shape=shape)


def open_probe_data(
    config: Mapping[str, Any],
    model: CPC,
    source: str | Path | None,
    extraction: Extraction | None = None,
    train_split: str | None = "train",
    *,
    trusted_packages: tuple[str, ...] = ("cpc",),
    data_options: Mapping[str, Any] | None = None,
) -> ProbeData:
    """Open another source of the data that a model was trained on, for probes; None to read only single files.

    `config` is the model's config.json, and `data_options` are fields of the data that differ from the run's.
    Call `prepare` of the result before features are computed.
    """
    extraction = extraction or Extraction()
    cache_dir = None if extraction.cache_dir is None else str(extraction.cache_dir)
    options = {"cache_dir": cache_dir, "skip_bad": extraction.skip_bad, **(data_options or {})}
    data = recorded_data(config, source or "unknown", trusted_packages=trusted_packages, **options)
    data.check_encoder(model.encoder)
    where = {"train_split": train_split, "device": extraction.device, "precision": extraction.precision}
    outside = data.probe_data(model.encoder, None, **where)  # refuses data that cannot be probed before they are opened
    return outside if source is None else data.probe_data(model.encoder, data.open(model.encoder), **where)


def build_untrained(
    config: Mapping[str, Any], probe_data: ProbeData, trusted_packages: tuple[str, ...], seed: int
) -> CPC:
    """Build the architecture of a config.json with untrained weights, initialised as in training, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: CPC = build(config["architecture"], trusted_packages=trusted_packages)
    probe_data.initialise(model, seed)
    return model.to(probe_data.device).eval()


def check_names(option: str, names: Sequence[str], legal: Sequence[str]) -> None:
    """Raise ValueError if an option names a value that is not legal, or is a text instead of a list."""
    if isinstance(names, str) or not set(names) <= set(legal):
        raise ValueError(f"{option}={names!r} must be among {', '.join(legal)}")
