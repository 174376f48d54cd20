"""Features of audio files, one output per file, for whoever wants them elsewhere.

T frames, D feature dim.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from safetensors.numpy import save_file
from tqdm import tqdm

from cpc.checkpoint import load_pretrained, read_config
from cpc.data.audio.files import read_blocks
from cpc.data.audio.headers import AUDIO_SUFFIXES
from cpc.data.store.atomic import write_atomically, write_json
from cpc.data.store.folders import find_files, name_a_few
from cpc.probes.features import Features, Precision

Format = Literal["npy", "safetensors"]


def embed(
    model_folder: str | Path,
    paths: Sequence[str | Path],
    out: str | Path,
    features: Literal["c", "z"] = "c",
    format: Format = "npy",
    *,
    skip_bad: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    precision: Precision = "float32",
    progress: bool = True,
) -> list[Path]:
    """Writes `[T, D]` float32 features of each audio file, with a JSON beside it that tells where frames lie in time.

    A file named directly becomes `out/STEM.npy`; the files below a folder keep their place in it. In `safetensors`
    the array is called `features`. Frame i is centred at sample `first_centre_samples + i * hop_samples`.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        paths: audio files, and folders to search; images for a model of images.
        out: folder to write to.
        features: contexts c or latents z.
        format: of the files.
        skip_bad: leave out files that cannot be read or are too short for a frame, and warn how many.
        overwrite: replace outputs that are there already.
        device: where networks run: cpu, cuda, cuda:1.
        precision: of the encoder's products; bfloat16 is faster on many processors that have it, slower on some.
        progress: show a progress bar.

    Returns:
        The files written.

    Raises:
        ValueError: before anything is written: on a model of something else than audio, a missing path, a folder
            without audio, two inputs with one output, or outputs that exist already. While writing: on a bad file,
            or one whose features are not finite, unless `skip_bad`.
    """
    if read_config(model_folder).get("modality") == "image":
        from cpc.probes.images.embed import embed_images

        return embed_images(
            model_folder,
            paths,
            out,
            features,
            format,
            skip_bad=skip_bad,
            overwrite=overwrite,
            device=device,
            precision=precision,
            progress=progress,
        )
    find_audio = partial(find_files, suffixes=AUDIO_SUFFIXES, kind="audio")
    targets = plan_outputs(paths, out, features, format, find_audio, overwrite=overwrite)
    model = load_pretrained(model_folder, device=device)
    if model.encoder.modality != "audio":
        raise ValueError(f"{model_folder} is a model of {model.encoder.modality}, not of audio or image")
    front_end = Features(features, model, precision=precision)
    sidecar = front_end.geometry() | {"model_sha256": read_config(model_folder)["sha256"]}

    def read(path: Path) -> np.ndarray:
        pieces = list(front_end.stream(read_blocks(path, front_end.sample_rate_hz)))
        if not pieces:
            raise ValueError(f"{path}: is too short for a single frame")
        return np.concatenate(pieces)

    return write_features(targets, read, sidecar, format, skip_bad=skip_bad, progress=progress)


def plan_outputs(
    paths: Sequence[str | Path],
    out: str | Path,
    features: str,
    format: str,
    find_below: Callable[[Path], list[str]],
    *,
    overwrite: bool,
) -> dict[Path, Path]:
    """Output -> the file whose features go there, after a check of all that can be known before.

    Args:
        paths: files, and folders to search.
        out: folder to write to.
        features: `c` or `z`.
        format: of `Format`.
        find_below: the files of a folder that are meant, relative to it; raises a ValueError if there is none.
        overwrite: whether outputs may be there already.

    Raises:
        ValueError: on unknown features or format, a missing path, two inputs with one output, or outputs that exist.
    """
    if features not in ("c", "z"):
        raise ValueError(f"features={features!r} is not one of c, z")
    if format not in get_args(Format):
        raise ValueError(f"format={format!r} is not one of {', '.join(get_args(Format))}")
    targets = _targets(paths, Path(out), format, find_below)
    existing = [str(target) for target in targets if target.exists() or target.with_suffix(".json").exists()]
    if existing and not overwrite:
        raise ValueError(
            f"{len(existing)} of {len(targets)} outputs exist already:\n{name_a_few(existing)}\nset `overwrite` to "
            "replace them, or name another folder with `out`"
        )
    return targets


def write_features(
    targets: Mapping[Path, Path],
    read: Callable[[Path], np.ndarray],
    sidecar: Mapping[str, Any],
    format: str,
    *,
    skip_bad: bool,
    progress: bool,
) -> list[Path]:
    """Write the features of each file, and beside them what a reader must know; the files written.

    Args:
        targets: as `plan_outputs` returns them.
        read: the features of a file; raises a ValueError that names it if it cannot be used.
        sidecar: what is true of all files.
        format: of `Format`.
        skip_bad: leave out files that cannot be used, and warn how many.
        progress: show a progress bar.
    """
    written, bad = [], []
    for target, path in tqdm(targets.items(), desc="embed", unit="file", disable=not progress):
        try:
            values = read(path)
            if not np.isfinite(values).all():
                raise ValueError(f"{path}: its features are not finite, the model's products overflow")
        except ValueError as error:
            if not skip_bad:
                raise ValueError(f"{error}; set `skip_bad` to go on without such files") from error
            bad.append(str(error))
            continue
        _write(target, values, {**sidecar, "source": str(path)}, format)
        written.append(target)
    if bad:
        warnings.warn(f"left out {len(bad)} of {len(targets)} files:\n{name_a_few(bad)}", stacklevel=3)
    return written


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
            raise ValueError(
                f"{targets[target]} and {file} would both be written to {target}: embed them into different folders, "
                "or name the folder above both"
            )
        targets[target] = file
    return targets


def _write(target: Path, values: np.ndarray, sidecar: dict[str, Any], format: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(target) as new:
        if format == "npy":
            with new.open("wb") as stream:
                np.save(stream, values)
        else:
            save_file({"features": np.ascontiguousarray(values)}, new)
    write_json(sidecar, target.with_suffix(".json"))
