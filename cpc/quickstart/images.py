"""The image quickstart: photographs and handwritten digits of installed packages, probed for their classes."""

from functools import partial
from pathlib import Path
from typing import Any

from cpc.data.synthetic.photographs import write_image_corpora
from cpc.encoders.patch_grid import PatchGrid
from cpc.quickstart.recipe import BASELINES, CEILING, Config, Recipe, Study, heading, part, pretraining

BATCH_SIZE = 32
CHOSEN_ON = (
    "The recipes of both corpora were chosen on their valid splits, which are not used for training or for reported "
    "results. The probe's rate was chosen on frames of synthesised speech."
)
CAPTION = (
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


def make(corpus: Path, seed: int) -> tuple[dict[str, Path], dict[str, Any]]:
    """Cut crops from the photographs and enlarge the digits."""
    return write_image_corpora(corpus, seed=seed), {}


def config(image_size: int, grid: PatchGrid, data: Config, source: Path, seed: int) -> Config:
    """Return the config of `cpc pretrain` (docs/results/images.md).

    Steps k whose rows overlap with the query's row are skipped, because the context has seen part of their pixels.
    """
    trunk = part("encoders.TinyTrunk", dim=256, num_channels=1)
    sampling: Config = {"image_size": image_size, "batch_size": BATCH_SIZE, "eval_batches": 4, "seed": seed}
    skipped: Config = {"skip_steps": grid.overlapping_rows}
    return pretraining(
        (20, 200, 1000),
        part("data.Images", source=str(source), **sampling, **data),
        encoder=part("encoders.PatchEncoder", trunk=trunk, patch_size=grid.patch_size, stride=grid.stride),
        context=part("contexts.PixelCNN", width=256, directions=["down"]),
        predictor=part("predictors.Bilinear", num_steps=5),
        loss=part("losses.Contrastive", negatives="mixed", **skipped),
        betas=[0.9, 0.98],
        warmup_steps=100,
    )


def study(name: str, num_steps: int, image_size: int, grid: PatchGrid, **data: Any) -> Study:
    """Return the study of a corpus of images."""
    return Study(
        config=partial(config, image_size, grid, data),
        num_steps=num_steps,
        tasks={name: "class"},
        probe={
            "features": ("z", "c"),  # means over the grid; the results `cpc` and `random` are of the first
            "baselines": ("majority", "random", "pixels", "hog", "supervised"),
            "supervised_seconds": 30.0,
        },
    )


RECIPE = Recipe(
    extras={"skimage": "image"},
    making="images",
    make=make,
    chosen_on=CHOSEN_ON,
    studies={
        "photographs": study("photographs", 650, 64, PatchGrid(16, 8), augmentation="v1", flip=True),
        "digits": study("digits", 550, 32, PatchGrid(8, 4), augmentation="none", flip=False),
    },
    heading=heading("what contrastive pretraining learnt from images", "image classes"),
    how_to_read=[CEILING, WHICH_ARE_BOUNDS, BASELINES],
    representations=("majority", "random", "pixels", "hog", "cpc", "supervised"),
    caption=CAPTION,
)
