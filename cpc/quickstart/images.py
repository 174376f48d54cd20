"""The quickstart of images: of embedded photographs and of digits a model, its bound, its probes, its pictures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cpc.checkpoint import build
from cpc.data.images.patch_grid import PatchGrid
from cpc.data.made.photographs import CORPORA, write_image_corpora
from cpc.data.store.atomic import write_json
from cpc.data.store.records import read_records
from cpc.evaluation import evaluate
from cpc.model import CPC
from cpc.pretraining.command import pretrain
from cpc.probes.clock import Clock
from cpc.probes.comparison import Extraction
from cpc.probes.images.network import NetworkProtocol
from cpc.probes.images.pictures import write_pictures
from cpc.probes.images.report import NAME_OF, RANDOM_NAME_OF, format_image_report, probe_images
from cpc.probes.linear import ProbeProtocol
from cpc.quickstart.budget import Pace, Precision, measure_pace, require_extras, require_new
from cpc.quickstart.image_page import write_image_page

LATENT_DIM, CONTEXT_DIM, NUM_STEPS = 256, 256, 5
SUPERVISED_SECONDS = 30.0  # of each corpus
PROBE = ProbeProtocol(num_seeds=1)
NUM_PICTURED = 300  # images of each split, in pictures
EXTRAS = {"skimage": "image", "plotly.offline": "dashboard"}  # what is imported, and what brings it
BASELINES = ("majority", "random", "pixels", "hog", "supervised")


@dataclass(frozen=True)
class Recipe:
    """How a corpus is learnt and judged.

    Attributes:
        image_size: side of its images.
        patch_size: of these patches.
        stride: from one to the next.
        batch_size: images per step.
        learning_rate: Adam's peak.
        augmentation: of every patch.
        flip: mirror half of the training images.
        directions: in which rows are predicted.
        readout: what stands for `cpc`, and of untrained models for `random`.
        others: what is read besides.
        seconds: of bare training steps; loading, recording and held-out evaluations come on top.
    """

    image_size: int
    patch_size: int
    stride: int
    batch_size: int
    learning_rate: float
    augmentation: str
    flip: bool
    directions: tuple[str, ...]
    readout: str
    others: tuple[str, ...]
    seconds: float

    def parts(self, compute: str) -> dict[str, Any]:
        """Encoder, context, predictor and loss, as a config describes them."""
        trunk = {"class_path": "cpc.encoders.TinyTrunk", "init_args": {"dim": LATENT_DIM, "num_channels": 1}}
        patches = {"trunk": trunk, "patch_size": self.patch_size, "stride": self.stride}
        context = {"width": CONTEXT_DIM, "directions": list(self.directions)}
        loss = {"negatives": "mixed", "skip_steps": self.grid.overlapping_rows, "compute": compute}
        return {
            "encoder": {"class_path": "cpc.encoders.PatchEncoder", "init_args": patches},
            "context": {"class_path": "cpc.contexts.PixelCNN", "init_args": context},
            "predictor": {"class_path": "cpc.predictors.Bilinear", "init_args": {"num_steps": NUM_STEPS}},
            "loss": {"class_path": "cpc.losses.Contrastive", "init_args": loss},
        }

    def model(self, compute: str) -> CPC:
        """What is trained."""
        return CPC(*(build(part) for part in self.parts(compute).values()))

    @property
    def grid(self) -> PatchGrid:
        """Where patches lie; rows that overlap with a row are skipped, since they would be told, not predicted."""
        return PatchGrid(self.patch_size, self.stride)


RECIPE_CHOSEN_ON = (
    "The recipes of both corpora were chosen on their valid splits, which nothing was trained on and these figures are "
    "not of; the probe's rate on frames of synthesised speech."
)
RECIPES = {  # docs/results.md, "Images"
    "photographs": Recipe(
        image_size=64,
        patch_size=16,
        stride=8,
        batch_size=32,
        learning_rate=2e-3,
        augmentation="v1",
        flip=True,
        directions=("down",),
        readout="z",
        others=("c",),
        seconds=180.0,
    ),
    "digits": Recipe(
        image_size=32,
        patch_size=8,
        stride=4,
        batch_size=32,
        learning_rate=2e-3,
        augmentation="none",
        flip=False,
        directions=("down",),
        readout="z",
        others=("c",),
        seconds=90.0,
    ),
}


def image_quickstart(out: Path, corpus: Path, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
    """Run everything and write `report.json` and `report.html` into `out`, and a run with its pictures for each corpus.

    Args:
        out: a new folder for runs and reports.
        corpus: folder of the embedded images; made if it is not there.
        seed: of corpora, models and batches.
        steps: optimiser steps of each model; None: as many as this machine does in the recipe's seconds.

    Returns:
        The content of report.json: for `photographs` and `digits` accuracies in percent, under `NAME_interval` their
        95 % intervals, under `runs` what else is known of each; seconds per stage.

    Raises:
        ValueError: if `out` already holds a quickstart, or the extras are not installed.
    """
    require_new(out, RECIPES)
    require_extras(EXTRAS)
    out.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    with clock("images"):
        sources = write_image_corpora(corpus, seed=seed)
    report: dict[str, Any] = {name: {} for name in CORPORA}
    report["runs"] = {}
    records, pictures = {}, {}
    for name, recipe in RECIPES.items():
        run = out / name
        with clock("pretrain"):
            pace = measure_pace(recipe.model, (recipe.batch_size, 1, recipe.image_size, recipe.image_size))
            num_steps = steps or pace.num_steps(recipe.seconds)
            print(f"pretraining on {name}: {num_steps} steps in {pace}", flush=True)
            pretrain(_config(recipe, run, sources[name], seed, num_steps, pace.precision))
        with clock("bound"):
            measured = evaluate(run, sources[name])
        with clock("probes"):
            probed = _probe(recipe, run, sources[name], measured, pace.precision)
            print(format_image_report(probed))
        with clock("pictures"):
            pictures[name] = write_pictures(run, sources[name], run, num_images=NUM_PICTURED, seed=seed)
        records[name] = read_records(run / "bound.jsonl")
        report |= _accuracies(name, recipe, probed)
        report["runs"][name] = _run_record(recipe, probed, measured, num_steps, pace)
    report |= {
        "seconds": dict(clock.seconds),
        "recipe_chosen_on": RECIPE_CHOSEN_ON,
        "latent_dim": LATENT_DIM,
        "context_dim": CONTEXT_DIM,
        "num_threads": torch.get_num_threads(),
    }
    write_json(report, out / "report.json")
    with clock("page"):
        write_image_page(out / "report.html", report, records, pictures)
    report["seconds"] = clock.seconds | {"total": clock.total}
    write_json(report, out / "report.json")
    print(f"{clock.total:.0f} seconds; {out / 'report.html'} shows it, {out / 'report.json'} holds it")
    return report


def _config(recipe: Recipe, run: Path, source: Path, seed: int, steps: int, precision: Precision) -> dict[str, Any]:
    """The config of `cpc pretrain`."""
    return {
        "modality": "image",
        "seed_everything": seed,
        "run_dir": str(run),
        "record_every_steps": 20,
        "eval_every_steps": 200,
        "checkpoint_every_steps": 1000,
        "model": {
            **recipe.parts(precision.loss),
            "learning_rate": recipe.learning_rate,
            "betas": [0.9, 0.98],
            "warmup_steps": 100,
            "schedule": "cosine",
        },
        "data": {
            "source": str(source),
            "image_size": recipe.image_size,
            "augmentation": recipe.augmentation,
            "flip": recipe.flip,
            "batch_size": recipe.batch_size,
            "eval_batches": 4,
            "seed": seed,
        },
        "trainer": {"max_steps": steps, "precision": precision.trainer, "accelerator": "cpu", "gradient_clip_val": 1.0},
    }


def _probe(recipe: Recipe, run: Path, source: Path, measured: dict[str, Any], precision: Precision) -> dict[str, Any]:
    return probe_images(
        run,
        source,
        features=(recipe.readout, *recipe.others),
        baselines=BASELINES,
        protocol=PROBE,
        network=NetworkProtocol(seconds=SUPERVISED_SECONDS, precision=precision.probes),
        held_out=measured["bounds"],
        extraction=Extraction(precision=precision.probes),
        out=run / "probe.json",
    )


def _accuracies(corpus: str, recipe: Recipe, probed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Percent by representation, intervals, and the steps of the network trained for the labels."""
    results = probed["tasks"]["class"]["results"]
    names = {name: name for name in ("majority", "pixels", "hog", "supervised")}
    names |= {"random": RANDOM_NAME_OF[recipe.readout], "cpc": NAME_OF[recipe.readout]}
    order = ("majority", "random", "pixels", "hog", "cpc", "supervised")
    return {
        corpus: {name: round(results[names[name]]["accuracy_percent"], 2) for name in order},
        f"{corpus}_interval": {name: results[names[name]]["accuracy_interval_percent"] for name in order},
        f"{corpus}_num_steps": {"supervised": results["supervised"]["num_network_steps"]},
    }


def _run_record(
    recipe: Recipe, probed: dict[str, Any], measured: dict[str, Any], steps: int, pace: Pace
) -> dict[str, Any]:
    task, trained_with = probed["tasks"]["class"], measured["bounds"][0]
    others = [name for readout in recipe.others for name in (NAME_OF[readout], RANDOM_NAME_OF[readout])]
    return {
        "readout": recipe.readout,
        "other_readouts": {name: round(task["results"][name]["accuracy_percent"], 2) for name in others},
        "num_classes": len(task["protocol"]["classes"]),
        "num_train_images": task["protocol"]["num_train_images"],
        "num_test_images": task["protocol"]["num_test_images"],
        "num_train_steps": steps,
        **pace.record(),
        "num_rows": recipe.grid.side(recipe.image_size),
        "steps": trained_with["steps"],
        "directions": trained_with["directions"],
        "mi_bound_nats": trained_with["mi_bound_nats"],
        "mi_ceiling_nats": trained_with["mi_ceiling_nats"],
        "negatives": trained_with["strategy"],
        "reading": trained_with["reading"],
        "bounds": measured["bounds"],
        "seconds": probed["seconds"],
    }
