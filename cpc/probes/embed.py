"""`cpc embed`: features of files, written to one output per file, for use outside cpc."""

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file
from tqdm import tqdm

from cpc.checkpoint import load_pretrained, read_config
from cpc.config.argument_rules import Count, Device, OutFolder, checked
from cpc.data.probe_data import Precision
from cpc.data.store.atomic import write_atomically, write_json
from cpc.data.store.folders import name_a_few, refuse
from cpc.data.store.untrusted import reading
from cpc.data.tensors import find_device
from cpc.on_ray.spread import spread
from cpc.probes.store import Extraction, open_probe_data

Format = Literal["npy", "safetensors"]


@checked
def embed(
    model_folder: str | Path,
    paths: Sequence[str | Path],
    out: OutFolder,
    features: Literal["c", "z"] = "c",
    format: Format = "npy",
    *,
    skip_bad: bool = False,
    overwrite: bool = False,
    device: Device = "auto",
    precision: Precision = "float32",
    num_ray_workers: Count | None = None,
    trusted_packages: Sequence[str] = ("cpc",),
    progress: bool = True,
) -> list[Path]:
    """`cpc embed`: write the float32 features of each file, and a JSON file with the positions of its features.

    Features of audio are `[T, D]`; frame i is centred at sample `first_centre_samples + i * hop_samples`. Features of
    images are `[H, W, D]`. The shorter side of an image is resized to `load_size` pixels, and its central square of
    `image_size` pixels is encoded. Row i and column j are the patch of `patch_size` pixels that begins at `i * stride`
    and `j * stride` in this square.

    The features of a file in `paths` are written to `out/STEM.npy`. Files below a folder keep their relative paths. In
    `safetensors` the array is called `features`.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        paths: audio or image files, as the model encodes them, and folders to search.
        out: output folder.
        features: contexts `c` or latents `z`.
        format: `npy` or `safetensors`.
        skip_bad: leave out files that cannot be used, such as files too short for a frame, and warn how many.
        overwrite: replace existing outputs.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        precision: precision of the encoder's matrix products.
        num_ray_workers: number of worker processes in a Ray cluster; no cluster if not given. The cluster is at
            RAY_ADDRESS; if this variable is not set, a local cluster is started. A worker has a CPU, and a GPU unless
            `device` is cpu, or is auto and this machine has no GPU. When a bad file ends the command, other workers may
            still finish their files.
        trusted_packages: packages whose classes the model and its data may name.
        progress: show a progress bar.

    Returns:
        The files written.

    Raises:
        ValueError: before files are written, if a path is missing, two inputs have the same output, or outputs exist
            already. Without `skip_bad` also if a file is bad.
    """
    if num_ray_workers is not None and ":" in device:
        raise ValueError(f"`device`={device}: each Ray worker has its own GPU; write {device.partition(':')[0]}")
    if num_ray_workers is None or device == "auto":  # with another name the GPUs may be on other machines
        device = find_device(device)
    start = partial(_Embedding, model_folder, features, format, precision, tuple(trusted_packages))
    embedding = start(device if num_ray_workers is None else "cpu")
    targets = _targets(paths, Path(out), format, embedding.probe_data.find_files)
    existing = [str(target) for target in targets if target.exists() or target.with_suffix(".json").exists()]
    if not overwrite:
        advice = "set `overwrite` to replace them, or name another folder with `out`"
        refuse(f"of {len(targets)} outputs exist already", existing, advice)
    pairs = list(targets.items())
    errors: Generator[str | None, None, None] = (embedding(pair) for pair in pairs)
    if num_ray_workers is not None:
        num_gpus = 0 if device == "cpu" else 1
        errors = spread(partial(start, device), pairs, num_ray_workers, num_gpus=num_gpus, name=itemgetter(1))
    written, bad = [], []
    with closing(errors), tqdm(total=len(pairs), desc="embed", unit="file", disable=not progress) as bar:
        for target, error in zip(targets, errors, strict=True):
            bar.update()
            if error is None:
                written.append(target)
            elif skip_bad:
                bad.append(error)
            else:
                raise ValueError(f"{error}; set `skip_bad` to go on without such files")
    if bad:
        warnings.warn(f"left out {len(bad)} of {len(targets)} files:\n{name_a_few(bad)}", stacklevel=2)
    return written


def describe_result(written: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return the line that the command line prints."""
    return f"{len(written)} files written to {options['out']}"


class _Embedding:
    """A loaded model that writes the features of files."""

    def __init__(
        self, model_folder: Any, features: str, format: str, precision: Precision, trusted: tuple[str, ...], device: str
    ) -> None:
        config = read_config(model_folder)
        model = load_pretrained(model_folder, device=device, trusted_packages=trusted)
        extraction = Extraction(device=device, precision=precision)
        self.probe_data = open_probe_data(config, model, None, extraction, trusted_packages=trusted)
        self._extractor = self.probe_data.feature_extractor([features], model)
        self._sidecar = self._extractor.geometry(features) | {"model_sha256": config["sha256"]}
        self._format = format

    def __call__(self, pair: tuple[Path, Path]) -> str | None:
        """Write the features of the second path to the first, and return the error message; None for success."""
        target, path = pair
        try:
            with reading(path, "its features cannot be computed"):
                values = self._extractor.file_features(path)
            if not np.isfinite(values).all():
                raise ValueError(f"{path}: its features are not finite, because products of the model overflow")
        except ValueError as error:
            return str(error)
        target.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(target) as new:
            if self._format == "npy":
                with new.open("wb") as stream:
                    np.save(stream, values)
            else:
                save_file({"features": np.ascontiguousarray(values)}, new)
        write_json({**self._sidecar, "source": str(path)}, target.with_suffix(".json"))
        return None


def _targets(
    paths: Sequence[str | Path], out: Path, format: str, find_below: Callable[[Path], list[str]]
) -> dict[Path, Path]:
    sources: list[tuple[Path, Path]] = []
    for path in map(Path, paths):
        if path.is_dir():
            sources += [(Path(name), path / name) for name in find_below(path)]
        elif path.is_file():
            sources.append((Path(path.name), path))
        else:
            raise ValueError(f"there is no file or folder {path}")
    targets: dict[Path, Path] = {}
    for relative, file in sources:
        target = out / relative.with_suffix(f".{format}")
        if target in targets:
            raise ValueError(f"{targets[target]} and {file} would both be written to {target}: leave out or rename one")
        targets[target] = file
    return targets
