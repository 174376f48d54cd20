"""`cpc probe`, for models of audio and of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from cpc.checkpoint import read_config
from cpc.probes.comparison import Extraction
from cpc.probes.features import Precision
from cpc.probes.linear import ProbeProtocol
from cpc.probes.targets import Pool


def probe(
    model_folder: str | Path,
    data: str | Path,
    task: Sequence[str],
    *,
    features: Sequence[Literal["c", "z", "mfcc", "logmel", "z_grid", "c_grid"]] | None = None,
    baselines: Sequence[Literal["majority", "random", "supervised", "pixels", "hog", "fine_tuned", "neighbours"]]
    | None = None,
    label_shares: Sequence[float] | None = None,
    alignments: str | Path | None = None,
    pool: Pool | None = None,
    hidden: Literal[0, 1] = 0,
    hidden_dim: int | None = None,
    num_seeds: int = 3,
    train_split: str = "train",
    test_split: str | None = None,
    train_minutes: float | None = None,
    supervised_seconds: float = 75.0,
    device: str = "cpu",
    precision: Precision = "float32",
    skip_bad: bool = False,
    cache_dir: str | Path | None = None,
    max_ram_gb: float = 2.0,
    scratch_dir: str | Path | None = None,
    dtype: Literal["float32", "float16"] | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Probe a model for one or several tasks, beside its baselines and its held-out bound; print and write a report.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        data: manifest CSV, or the folder that holds it; for images a folder, npz or NAME:ROOT.
        task: phones, speaker, or label columns of the manifest; class for images.
        features: what to probe; if not given, c z mfcc, and for images z z_grid c (means over the grid, or all of it).
        baselines: none with an empty list; if not given, majority random supervised, and for images pixels too.
        label_shares: images: also a curve over these shares of the labels, such as 0.01 0.02 0.05 0.1 0.2 0.5 1.
        alignments: for phones; alignments.csv beside the manifest if not given.
        pool: every frame, or a file's mean; by task if not given.
        hidden: hidden layers: 0 is the linear probe.
        hidden_dim: width of the hidden layer of `hidden` 1; 512 if not given.
        num_seeds: probes trained for each result.
        train_split: where probes are trained.
        test_split: where they are tested; valid for speaker, else test, if not given.
        train_minutes: train on that much audio of the split, drawn at random.
        supervised_seconds: budget of the supervised baseline, per task.
        device: where networks run: cpu, cuda, cuda:1.
        precision: of the encoder's products; bfloat16 is faster on many processors that have it, slower on some.
        skip_bad: leave out files that cannot be used, and count them.
        cache_dir: of packed data; .cpc_cache beside the manifest if not given.
        max_ram_gb: features that take more at a time go to a temporary file; images: refused.
        scratch_dir: folder of that file; the system's if not given.
        dtype: of features kept; float32 if not given.
        out: JSON file; probe.json in the model's folder if not given.

    Returns:
        What is written, see `probe_report` and `probe_images`.

    Raises:
        ValueError: on a model of something else, and on options of the other modality.
    """
    modality = read_config(model_folder).get("modality", "audio")
    if modality not in ("audio", "image"):
        raise ValueError(f"{model_folder} is a model of {modality}: probes are for models of audio and image")
    of_audio = {
        "alignments": alignments,
        "pool": pool,
        "train_minutes": train_minutes,
        "scratch_dir": scratch_dir,
        "dtype": dtype,
    }
    foreign = of_audio if modality == "image" else {"label_shares": label_shares}
    given = [f"`{name}`" for name, value in foreign.items() if value is not None]
    if given:
        raise ValueError(f"{', '.join(given)}: {model_folder} is a model of {modality}, where this says nothing")
    shared: dict[str, Any] = {
        "train_split": train_split,
        "protocol": ProbeProtocol(hidden=hidden, hidden_dim=hidden_dim, num_seeds=num_seeds),
        "extraction": Extraction(
            device=device,
            precision=precision,
            max_ram_bytes=round(1e9 * max_ram_gb),
            scratch_dir=scratch_dir,
            dtype=dtype or "float32",
            cache_dir=cache_dir,
            skip_bad=skip_bad,
        ),
        "out": Path(model_folder) / "probe.json" if out is None else Path(out),
    }
    if features is not None:
        shared["features"] = tuple(features)
    if baselines is not None:
        shared["baselines"] = tuple(baselines)
    if modality == "image":
        from cpc.probes.images.network import NetworkProtocol
        from cpc.probes.images.report import format_image_report, probe_images

        if list(task) != ["class"]:
            raise ValueError(f"`task` {' '.join(task)}: images are probed for their class: `task` class")
        report = probe_images(
            model_folder,
            data,
            test_split=test_split or "test",
            label_shares=label_shares,
            network=NetworkProtocol(seconds=supervised_seconds, precision=precision),
            **shared,
        )
        print(format_image_report(report))
    else:
        from cpc.probes.report import format_report, probe_report
        from cpc.probes.supervised import SupervisedProtocol

        report = probe_report(
            model_folder,
            data,
            task,
            test_split=test_split,
            alignments=alignments,
            pool=pool,
            train_minutes=train_minutes,
            supervised=SupervisedProtocol(seconds=supervised_seconds, precision=precision),
            **shared,
        )
        print(format_report(report))
    print(f"written to {shared['out']}")
    return report
