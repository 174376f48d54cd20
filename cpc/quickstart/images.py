"""The image quickstart: photographs and handwritten digits of installed packages, probed for their classes."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpc.data.batch import Batch
from cpc.data.synthetic.photographs import write_image_corpora
from cpc.encoders.patch_grid import PatchGrid
from cpc.pages.charts import probe_chart
from cpc.pages.palette import BLUE, VERMILION
from cpc.probes import report
from cpc.quickstart.page import ACCURACY, CEILING
from cpc.quickstart.recipe import Config, ProbeResults, Recipe, Run, Study, accuracies
from cpc.quickstart.time_budget import Precision

LATENT_DIM, CONTEXT_DIM = 256, 256
SUPERVISED_SECONDS = 30.0  # for each corpus
PROBED_FEATURES = ("z", "c")  # probed as means over the grid; the results `cpc` and `random` are of the first
RECIPE_CHOSEN_ON = (
    "The recipes of both corpora were chosen on their valid splits, which are not used for training or for reported "
    "results. The probe's rate was chosen on frames of synthesised speech."
)
TASKS = {"photographs": BLUE, "digits": VERMILION}
REPRESENTATIONS = {
    "majority": "majority",
    "random": "random",
    "pixels": "pixels",
    "hog": "HOG",
    "cpc": "CPC",
    "supervised": "supervised",
}
HEADING = """<h1>cpc quickstart: what contrastive pretraining learnt from images</h1>
<p>This page has the accuracy of a linear probe that predicts image classes from the pretrained features, with
baselines. It also has the information of contexts about the patches of later rows, during training and at its end.</p>
"""
PROBE_CAPTION = (
    "Photographs: the class is the photograph that a crop was cut from. Crops of the test split lie in blocks of the "
    "photograph that training does not use. Crops of a block overlap, so intervals resample blocks. "
    "Digits: handwritten; test and training digits are by different writers."
)
WHICH_ARE_BOUNDS = """<p><b>Which curves are bounds.</b> With candidates from the query's own image (<code>mixed</code>)
the context contains some of them and can rule them out, so such a curve is not a bound on I(z; c).
<code>mixed_excluding</code> takes its candidates only from other images. In a grid of H rows, the latents k rows ahead
lie in only H - k rows, and the row of a candidate can be guessed. To get a lower bound, subtract log(H / (H - k)) from
this curve: 0.34 nats for k = 2 of 7 rows, 1.95 nats for k = 6. The bound holds if images are independent; crops of
one photograph are not.</p>
"""
BASELINES = """<p><b>Baselines.</b> <i>Majority</i> always answers the most frequent class. <i>Random</i> is the same
architecture, initialised from data, never trained, and probed like CPC. It shows the contribution of the architecture.
<i>Pixels</i> are the images themselves, <i>HOG</i> hand-made histograms of oriented gradients. <i>Supervised</i> is the
same encoder trained on the labels, for as many steps as fit in half a minute on this machine, at most twenty passes;
the number of steps is given with its accuracy. <i>CPC</i> is the model pretrained here, without labels; its features
are the mean of the latents z over the grid.</p>
"""


@dataclass(frozen=True)
class Images:
    """A corpus of images and the settings of its model (docs/results/images.md).

    Attributes:
        image_size: side of the images in pixels.
        patch_size: side of the patches in pixels.
        stride: distance between neighbouring patches in pixels.
        augmentation: augmentation of every patch.
        flip: mirror half of the training images.
        seconds: time for training steps.
        batch_size: images per step.
    """

    image_size: int
    patch_size: int
    stride: int
    augmentation: str
    flip: bool
    seconds: float
    batch_size: int = 32

    @property
    def grid(self) -> PatchGrid:
        """The grid of the patches."""
        return PatchGrid(self.patch_size, self.stride)

    def config(self, source: Path, seed: int, precision: Precision) -> Config:
        """Return the config of `cpc pretrain`.

        Steps k whose rows overlap with the query's row are skipped, because the context has seen part of their pixels.
        """
        trunk = {"class_path": "cpc.encoders.TinyTrunk", "init_args": {"dim": LATENT_DIM, "num_channels": 1}}
        patches = {"trunk": trunk, "patch_size": self.patch_size, "stride": self.stride}
        context = {"width": CONTEXT_DIM, "directions": ["down"]}
        loss = {"negatives": "mixed", "skip_steps": self.grid.overlapping_rows, "compute": precision.loss}
        return {
            "record_every_steps": 20,
            "eval_every_steps": 200,
            "checkpoint_every_steps": 1000,
            "model": {
                "encoder": {"class_path": "cpc.encoders.PatchEncoder", "init_args": patches},
                "context": {"class_path": "cpc.contexts.PixelCNN", "init_args": context},
                "predictor": {"class_path": "cpc.predictors.Bilinear", "init_args": {"num_steps": 5}},
                "loss": {"class_path": "cpc.losses.Contrastive", "init_args": loss},
                "learning_rate": 2e-3,
                "betas": [0.9, 0.98],
                "warmup_steps": 100,
                "schedule": "cosine",
            },
            "data": {
                "class_path": "cpc.data.Images",
                "init_args": {
                    "source": str(source),
                    "image_size": self.image_size,
                    "augmentation": self.augmentation,
                    "flip": self.flip,
                    "batch_size": self.batch_size,
                    "eval_batches": 4,
                    "seed": seed,
                },
            },
        }

    def study(self, name: str) -> Study:
        """Return the study of the corpus with this name."""
        shape = (self.batch_size, 1, self.image_size, self.image_size)
        return Study(
            self.config,
            noise=lambda: Batch.of(torch.randn(shape)),
            seconds=self.seconds,
            probe=partial(probe, name, self.grid.side(self.image_size)),
        )


CORPORA = {
    "photographs": Images(64, patch_size=16, stride=8, augmentation="v1", flip=True, seconds=180.0),
    "digits": Images(32, patch_size=8, stride=4, augmentation="none", flip=False, seconds=90.0),
}


def make(corpus: Path, seed: int) -> tuple[dict[str, Path], dict[str, Any]]:
    """Cut crops from the photographs and enlarge the digits."""
    facts = {"recipe_chosen_on": RECIPE_CHOSEN_ON, "latent_dim": LATENT_DIM, "context_dim": CONTEXT_DIM}
    return write_image_corpora(corpus, seed=seed), facts


def probe(name: str, num_rows: int, run: Run) -> ProbeResults:
    """Probe the classes of test images."""
    probed = report.probe(
        run.folder,
        run.source,
        "class",
        features=PROBED_FEATURES,
        baselines=("majority", "random", "pixels", "hog", "supervised"),
        supervised_seconds=SUPERVISED_SECONDS,
        held_out=run.measured["bounds"],
        extraction=run.extraction,
    )
    results, protocol = probed["tasks"]["class"]["results"], probed["tasks"]["class"]["protocol"]
    own = {
        "readout": PROBED_FEATURES[0],
        "other_readouts": {other: round(results[other]["accuracy_percent"], 2) for other in ("cpc_c", "random_c")},
        "num_classes": len(protocol["classes"]),
        "num_train_images": protocol["num_train"],
        "num_test_images": protocol["num_test"],
        "num_rows": num_rows,
        "seconds": probed["seconds"],
    }
    return ProbeResults(accuracies(name, results, {name: name for name in REPRESENTATIONS}), own)


RECIPE = Recipe(
    extras={"skimage": "image", "plotly.offline": "dashboard"},
    making="images",
    make=make,
    studies={name: images.study(name) for name, images in CORPORA.items()},
    heading=HEADING,
    facts={},
    run_facts={
        "num_classes": "{} classes",
        "num_train_images": "{} training images",
        "num_test_images": "{} test images",
        "num_rows": "{0} x {0} patches of each",
        "other_readouts": "other features cpc_c {0[cpc_c]:.1f} %, random_c {0[random_c]:.1f} %",
    },
    comparison=partial(probe_chart, tasks=TASKS, representations=REPRESENTATIONS, caption=PROBE_CAPTION),
    how_to_read=[CEILING, WHICH_ARE_BOUNDS, ACCURACY, BASELINES],
)
