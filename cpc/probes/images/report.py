"""The whole comparison for images: a model's features, its baselines, the labels that it saves, and the bound."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc import __version__
from cpc.bounds.bound import record_table
from cpc.checkpoint import build, load_pretrained, read_config
from cpc.data.images.corpus import ImageCorpus
from cpc.data.store.atomic import write_atomically, write_json
from cpc.evaluation import recorded_data
from cpc.model import CPC
from cpc.probes.baselines import answer_by_frequency
from cpc.probes.clock import Clock
from cpc.probes.comparison import Extraction
from cpc.probes.images.curve import picture_label_efficiency
from cpc.probes.images.efficiency import label_efficiency
from cpc.probes.images.features import READOUTS, check_hog, hog, learnt_features, pixels
from cpc.probes.images.memory import bytes_per_image, check_memory
from cpc.probes.images.neighbours import answer_by_neighbours
from cpc.probes.images.network import NetworkProtocol, train_network
from cpc.probes.images.task import ImageTask, check_share
from cpc.probes.linear import ProbeProtocol, fit_probe
from cpc.probes.results import Answers, ProbeResult, as_json, results_table

SCHEMA = 1
CURVE_NAME = "label_efficiency.png"
BASELINES = ("majority", "random", "pixels", "hog", "supervised", "fine_tuned", "neighbours")
DEFAULT_BASELINES = ("majority", "random", "pixels", "supervised")
# Results are called after what is read: the mean over z, as in van den Oord et al. 2018, stands for CPC.
NAME_OF = {"z": "cpc", "z_grid": "cpc_grid", "c": "cpc_c", "c_grid": "cpc_c_grid"}
RANDOM_NAME_OF = {"z": "random", "z_grid": "random_grid", "c": "random_c", "c_grid": "random_c_grid"}


def probe_images(
    model_folder: str | Path,
    source: str | Path,
    *,
    features: Sequence[str] = ("z", "z_grid", "c"),
    baselines: Sequence[str] = DEFAULT_BASELINES,
    train_split: str = "train",
    test_split: str = "test",
    label_shares: Sequence[float] | None = None,
    protocol: ProbeProtocol | None = None,
    network: NetworkProtocol | None = None,
    num_random_models: int = 3,
    held_out: Sequence[Mapping[str, Any]] | None = None,
    extraction: Extraction | None = None,
    trusted_packages: tuple[str, ...] = ("cpc",),
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Probe a model of images for their classes, beside its baselines and its held-out bound.

    Args:
        model_folder: as `cpc.load_pretrained` takes it.
        source: the images, as `cpc.data.read_image_source` takes it.
        features: of `z`, `c` (means over the grid), `z_grid`, `c_grid` (everything).
        baselines: of `majority`, `random` (the same architecture untrained, read in the same ways), `pixels`, `hog`,
            `supervised` (the same encoder trained for the classes), `fine_tuned` (that, from the model's weights) and
            `neighbours` (k nearest neighbours by the first of the features).
        train_split: where probes are trained; data initialisation of untrained models is done there too.
        test_split: where they are tested.
        label_shares: draw a curve over these shares of the labels; None: none.
        protocol: how probes are trained.
        network: how networks are.
        num_random_models: untrained models whose answers are averaged.
        held_out: lines of `bound.jsonl` of this checkpoint; those kept in its config.json unless given.
        extraction: how features are computed and kept.
        trusted_packages: packages whose classes the model may name.
        out: file to write the report to; a curve is drawn beside it, as `label_efficiency.png`.

    Returns:
        The content of `probe.json`: `tasks["class"]["results"]` holds a record of `ProbeResult` for each of the names
        above and `cpc`, `cpc_grid`, ...; `bound` the held-out records; `label_efficiency` the curve.

    Raises:
        ValueError: before anything is computed, on unknown names, shares that are none, splits that cannot serve,
            features that take more than `extraction.max_ram_bytes`, or if `hog` cannot be had.
    """
    _check_names("features", features, READOUTS)
    _check_names("baselines", baselines, BASELINES)
    for share in label_shares or ():
        check_share(share)
    extraction, protocol = extraction or Extraction(), protocol or ProbeProtocol()
    if extraction.scratch_dir is not None or extraction.dtype != "float32":
        raise ValueError("scratch_dir and dtype say nothing of images, whose features stay in memory, grids in float16")
    network = network or NetworkProtocol(precision=extraction.precision)
    config = read_config(model_folder)
    model = load_pretrained(model_folder, device=extraction.device, trusted_packages=trusted_packages)
    corpus = _corpus(config, model, source, extraction)
    if "hog" in baselines:
        check_hog(corpus.image_size)
    is_labelled = corpus.table.labels >= 0
    check_memory(
        bytes_per_image(model, corpus.image_size),
        sum(int(is_labelled[corpus.table.rows(split)].sum()) for split in (train_split, test_split)),
        features,
        baselines,
        are_kept=label_shares is not None,
        max_ram_bytes=extraction.max_ram_bytes,
    )
    task = ImageTask(corpus, train_split, test_split, extraction.device)
    clock = Clock()
    results: dict[str, ProbeResult] = {}
    read: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def bar_title(name: str) -> str | None:
        return f"probe {name}" if extraction.progress else None

    def extract(of: CPC) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        parts = [
            learnt_features(
                of,
                part.images,
                features,
                device=extraction.device,
                precision=extraction.precision,
                progress=extraction.progress,
            )
            for part in (task.train, task.test)
        ]
        return {readout: (parts[0][readout], parts[1][readout]) for readout in features}

    def untrained(seed: int) -> CPC:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: CPC = build(config["architecture"], trusted_packages=trusted_packages)
        made.encoder.set_statistics(model.encoder.pixel_mean, model.encoder.pixel_std)
        made.initialise_from(corpus.initialisation_images(train_split, seed))
        return made.to(extraction.device).eval()

    with clock("cpc"):
        read = extract(model)
        for readout, parts in read.items():
            results[NAME_OF[readout]] = task.probe(*parts, protocol, title=bar_title(NAME_OF[readout]))
    if "neighbours" in baselines:
        with clock("neighbours"):
            results["neighbours"] = _of_neighbours(task, *read[features[0]])
    if label_shares is None:
        read = {}  # the room is for the baselines
    if "random" in baselines:
        with clock("random"):
            models = (extract(untrained(seed)) for seed in range(num_random_models))
            results |= _of_untrained(task, models, protocol, bar_title("random"))
    for name, describe in (("pixels", pixels), ("hog", hog)):
        if name in baselines:
            with clock(name):
                train, test = (describe(part.images, progress=extraction.progress) for part in (task.train, task.test))
                results[name] = task.probe(train, test, protocol, title=bar_title(name))
    networks = {"supervised": lambda: untrained(network.seed).encoder, "fine_tuned": lambda: model.encoder}
    for name, encoder in networks.items():
        if name in baselines:
            with clock(name):
                answers, num_steps = train_network(
                    encoder(),
                    task,
                    network,
                    is_pretrained=name == "fine_tuned",
                    device=extraction.device,
                    title=bar_title(name),
                )
                results[name] = replace(task.judge([answers], len(task.train)), num_network_steps=num_steps)
    if "majority" in baselines:
        nothing = [np.broadcast_to(np.float32(0), (len(part), 1)) for part in (task.train, task.test)]
        examples = task.train.examples(nothing[0]), task.test.examples(nothing[1])
        results["majority"] = task.judge([answer_by_frequency(*examples, len(task.classes))], len(task.train))
    curve = None
    if label_shares is not None:
        with clock("label efficiency"):
            curve = label_efficiency(
                task,
                {NAME_OF[readout]: values for readout, values in read.items()},
                {name: encoder() for name, encoder in networks.items() if name in baselines},
                shares=label_shares,
                probe=protocol,
                network=network,
                device=extraction.device,
                progress=extraction.progress,
            )
    report = as_json(
        {
            "schema": SCHEMA,
            "model": {
                "folder": str(model_folder),
                "sha256": config["sha256"],
                "step": config["provenance"].get("step"),
            },
            "bound": list(config["provenance"].get("held_out", []) if held_out is None else held_out),
            "tasks": {
                "class": {
                    "protocol": {
                        "task": "class",
                        "train_split": train_split,
                        "test_split": test_split,
                        "classes": task.classes,
                        "num_train_images": len(task.train),
                        "num_test_images": len(task.test),
                    },
                    "results": {name: result.record() for name, result in results.items()},
                }
            },
            "label_efficiency": curve,
            "protocol": {
                "probe": protocol.record(),
                "standardisation": "mean and deviation of each feature over the training images",
                "num_random_models": num_random_models,
                "network": network.record(),
                "image_size": corpus.image_size,
                "load_size": corpus.load_size,
                "device": extraction.device,
                "precision": extraction.precision,
            },
            "data": {"source": str(source), "num_images": len(corpus.table)},
            "versions": {"cpc": __version__, "torch": torch.__version__, "numpy": np.__version__},
            "seconds": clock.seconds,
        }
    )
    if out is not None:
        write_json(report, out)
        if curve is not None:
            title = f"label efficiency: {len(task.classes)} classes, {len(task.test)} test images"
            with write_atomically(Path(out).with_name(CURVE_NAME)) as new:
                picture_label_efficiency(curve, title).savefig(new, format="png")
    return report


def format_image_report(report: Mapping[str, Any]) -> str:
    """The report as a table for people."""
    task = report["tasks"]["class"]
    protocol = task["protocol"]
    lines = [
        f"class: {len(protocol['classes'])} classes, split {protocol['train_split']} "
        f"({protocol['num_train_images']} images) -> {protocol['test_split']} ({protocol['num_test_images']})",
        *results_table(task["results"]),
    ]
    curve = report["label_efficiency"]
    if curve is not None:
        lines += ["", "accuracy in percent by number of labels", "  " + f"{'':14}" + _row(curve["num_labels"], "d")]
        lines += [f"  {name:14}" + _row(values, ".1f") for name, values in curve["accuracy_percent"].items()]
    return "\n".join([*lines, "", *record_table(report["bound"])])


def _row(values: Sequence[float | int], form: str) -> str:
    return "".join(f"{value:>8{form}}" for value in values)


def _corpus(config: Mapping[str, Any], model: CPC, source: str | Path, extraction: Extraction) -> ImageCorpus:
    """Images as the model was trained on them."""
    data = recorded_data(config, source, cache_dir=extraction.cache_dir, skip_bad=extraction.skip_bad)
    return data.open(model.encoder)


def _of_neighbours(task: ImageTask, train: np.ndarray, test: np.ndarray) -> ProbeResult:
    answers = answer_by_neighbours(train, task.train.labels, test, task.test.labels, len(task.classes))
    return task.judge([answers], len(task.train))


def _of_untrained(
    task: ImageTask,
    read: Iterator[dict[str, tuple[np.ndarray, np.ndarray]]],
    protocol: ProbeProtocol,
    title: str | None,
) -> dict[str, ProbeResult]:
    """Answers of probes on several untrained models, one probe each, averaged."""
    answers: dict[str, list[Answers]] = defaultdict(list)
    for of_model in read:
        for readout in list(of_model):  # given up one by one: the next model's take their room
            answers[readout].append(_answer(task, protocol, *of_model.pop(readout), title))
    return {RANDOM_NAME_OF[readout]: task.judge(of_models, len(task.train)) for readout, of_models in answers.items()}


def _answer(
    task: ImageTask, protocol: ProbeProtocol, train: np.ndarray, test: np.ndarray, title: str | None
) -> Answers:
    """Of one probe."""
    probe = fit_probe(task.train.examples(train), len(task.classes), protocol, device=task.device, title=title)
    return probe.answer(task.test.examples(test))


def _check_names(option: str, given: Sequence[str], legal: Sequence[str]) -> None:
    unknown = [name for name in given if name not in legal]
    if unknown or isinstance(given, str):
        raise ValueError(f"{option}={given!r}: legal are {', '.join(legal)}")
