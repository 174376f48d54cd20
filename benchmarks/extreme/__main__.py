"""Table 3 of Rawat et al. 2019 (arXiv:1907.10747), rerun: precision@k of classifiers by sampler.

python -m benchmarks.extreme [--data FOLDER] [--samplers NAME ...] [--objective NAME] [--seeds N] [--option value ...]
python -m benchmarks.extreme --synthetic NUM_CLASSES   (a problem whose best possible precision is known)

FOLDER contains NAME_train.xc.txt and NAME_test.xc.txt in the text format of the extreme classification repository. The
model is a sparse linear encoder and a class table, both normalised, trained with the objective for the same number of
epochs with every sampler; each query has its own candidates, with replacement. `full` uses all classes, `exp` samples
from the softmax. P@k is in percent, the mean over seeds with its standard error; PSP@k is propensity-scored; `test
nats` is the full softmax's loss of single labels.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.extreme.kernel_tree import KernelTree
from benchmarks.extreme.kernels import Quadratic
from benchmarks.extreme.points import ExtremePoints, read_extreme
from benchmarks.extreme.precision import (
    PROPENSITY_PARAMETERS,
    inverse_propensities,
    precision_at,
    propensity_scored_precision_at,
    top_classes,
)
from benchmarks.extreme.reductions import REDUCTIONS, ClassExamples
from benchmarks.extreme.softmax import SoftmaxSampler
from benchmarks.extreme.sparse_batch import sparse_batch
from benchmarks.extreme.sparse_encoder import SparseEncoder
from benchmarks.extreme.word_classes import WordClasses
from benchmarks.machine import machine_state
from cpc.candidates import ClassTable
from cpc.candidates.kernels import RandomFourier
from cpc.candidates.samplers import LogUniform, QuerySampler, Sampler, TwoLevel, Uniform
from cpc.losses import OBJECTIVES, ClassTableLoss
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor

RANKS = (1, 3, 5)
TEST_ROWS = 512


class Recipe(NamedTuple):
    """The settings of training, which all samplers share."""

    objective: str
    correction: str | None
    reduction: str
    dim: int
    temperature: float
    num_sampled: int
    batch_size: int
    num_epochs: int
    learning_rate: float
    refresh_steps: int
    updates_between: bool
    num_frequencies: int
    nu: float


# Samplers by name; None: all classes.
Build = Callable[[int, Recipe], Sampler]
SAMPLERS: dict[str, Build | None] = {
    "full": None,
    "exp": lambda n, recipe: SoftmaxSampler(n, recipe.dim, recipe.temperature),
    "uniform": lambda n, recipe: Uniform(n, shared=False, replacement=True),
    "log_uniform": lambda n, recipe: LogUniform(n, shared=False, replacement=True),
    "quadratic": lambda n, recipe: KernelTree(n, Quadratic(recipe.dim, alpha=100 / recipe.temperature**2)),
    "rff": lambda n, recipe: KernelTree(n, RandomFourier(recipe.dim, recipe.num_frequencies, recipe.nu)),
    "two_level": lambda n, recipe: TwoLevel(n, recipe.dim, recipe.temperature, block_size=max(4, round(n**0.5 / 4))),
}


TABLE_3 = ("full", "exp", "uniform", "quadratic", "rff", "two_level")


class Classifier(torch.nn.Module):
    """A classifier of sparse points: a sparse linear encoder and a class table."""

    def __init__(self, points: ExtremePoints, name: str, recipe: Recipe) -> None:
        super().__init__()
        build, form = SAMPLERS[name], OBJECTIVES[recipe.objective].form
        self.encoder = SparseEncoder(points.num_features, recipe.dim, sparse_gradients=True)
        table = ClassTable(
            points.num_classes,
            recipe.dim,
            # Cosines cannot be low for nearly all of many classes, so a logistic loss needs a bias.
            has_bias=form == "logistic",
            is_normalised=True,
            temperature=recipe.temperature,
            has_sparse_gradients=build is not None,
        )
        if build is None:
            self.loss = ClassTableLoss(table, f"full_{form}")
        else:
            sampler = build(points.num_classes, recipe)
            # With replacement, excluding the target and discarding it differ; the paper excludes the target.
            follows = isinstance(sampler, QuerySampler)
            hits = "exclude" if "exclude" in OBJECTIVES[recipe.objective].hits else None
            self.loss = ClassTableLoss(
                table,
                recipe.objective,
                sampler,
                recipe.num_sampled,
                recipe.correction,
                hits,
                refresh_every=recipe.refresh_steps if follows else 1,
                updates_between=recipe.updates_between and follows,
            )

    @torch.no_grad()
    def test(self, points: ExtremePoints) -> tuple[np.ndarray, float]:
        """Return the classes ranked first for every point, and the full softmax's mean loss of the points' labels."""
        table = self.loss.table
        ranked, losses = [], []
        for start in range(0, len(points), TEST_ROWS):
            rows = slice(start, start + TEST_ROWS)
            queries = self.encoder(sparse_batch(points.features[rows]))
            scaled = table.normalised(queries) / table.temperature
            ranked.append(top_classes(scaled, table.vectors(), max(RANKS), table.bias))
            examples = REDUCTIONS["pick_all_labels"](points.labels[rows], np.random.default_rng(0))
            if len(examples.points):
                label_queries = queries[torch.from_numpy(examples.points)]
                losses.append(self.loss.exact(label_queries, torch.from_numpy(examples.classes)).loss_nats)
        return torch.cat(ranked).numpy(), float(torch.cat(losses).mean())


def train(points: ExtremePoints, name: str, recipe: Recipe, seed: int) -> tuple[Classifier, float]:
    """Train a classifier, and return it with the seconds of training."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # by default Adagrad's tensors cause a warning
    torch.manual_seed(seed)
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    classifier = Classifier(points, name, recipe)
    optimiser = torch.optim.Adagrad(classifier.parameters(), recipe.learning_rate)
    classifier.loss.watch(optimiser)
    began = time.perf_counter()
    for _ in range(recipe.num_epochs):
        examples = REDUCTIONS[recipe.reduction](points.labels, rng)
        for batch in np.array_split(rng.permutation(len(examples.points)), num_batches(examples, recipe)):
            queries = classifier.encoder(sparse_batch(points.features[examples.points[batch]]))
            loss = classifier.loss.row_losses(queries, torch.from_numpy(examples.classes[batch]), generator).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return classifier, time.perf_counter() - began


def num_batches(examples: ClassExamples, recipe: Recipe) -> int:
    return math.ceil(len(examples.points) / recipe.batch_size)


def measure(train_points: ExtremePoints, test_points: ExtremePoints, name: str, recipe: Recipe, seed: int) -> dict:
    """Return the figures of one run, in percent."""
    classifier, seconds = train(train_points, name, recipe, seed)
    ranked, test_nats = classifier.test(test_points)
    return precisions(ranked, train_points, test_points) | {"test_nats": test_nats, "seconds": seconds}


def precisions(ranked: np.ndarray, train_points: ExtremePoints, test_points: ExtremePoints) -> dict[str, float]:
    weights = inverse_propensities(train_points.labels, PROPENSITY_PARAMETERS["other"])
    labels = test_points.labels
    return {f"p@{k}": 100 * float(precision_at(k, ranked, labels).mean()) for k in RANKS} | {
        f"psp@{k}": 100 * propensity_scored_precision_at(k, ranked, labels, weights) for k in RANKS
    }


def frequency_baseline(train_points: ExtremePoints, test_points: ExtremePoints) -> dict[str, float]:
    """Return the precisions of ranking the most frequent classes first for every point."""
    num_of_class = np.bincount(train_points.labels.indices, minlength=train_points.num_classes)
    ranked = np.tile(np.argsort(-num_of_class, kind="stable")[: max(RANKS)], (len(test_points), 1))
    return precisions(ranked, train_points, test_points)


def summarise(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean and standard error of every figure; a single run has no error."""
    return {
        key: {"mean": float(np.mean([run[key] for run in runs]))}
        | ({"standard_error": float(np.std([run[key] for run in runs], ddof=1) / len(runs) ** 0.5)} if runs[1:] else {})
        for key in runs[0]
    }


def line(name: str, figures: dict[str, dict[str, float]]) -> str:
    def cell(key: str) -> str:
        figure = figures.get(key, {})
        error = f" +- {figure['standard_error']:4.2f}" if "standard_error" in figure else ""
        return f"{figure['mean']:6.2f}{error}" if figure else ""

    keys = [*(f"p@{k}" for k in RANKS), *(f"psp@{k}" for k in RANKS), "test_nats", "seconds"]
    return f"{name:12}" + " ".join(f"{cell(key):>14}" for key in keys)


def read_folder(folder: Path) -> tuple[ExtremePoints, ExtremePoints]:
    """Return the training and test points of a folder.

    Raises:
        ValueError: unless the folder contains one file of each.
    """
    found = {split: sorted(folder.glob(f"*_{split}.xc.txt")) for split in ("train", "test")}
    for split, paths in found.items():
        if len(paths) != 1:
            raise ValueError(f"{folder} must hold one file NAME_{split}.xc.txt, but has {len(paths)}: give --data")
    return read_extreme(found["train"][0]), read_extreme(found["test"][0])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/multilabel/bibtex"))
    parser.add_argument("--synthetic", type=int, metavar="NUM_CLASSES", help="draw a problem instead of reading one")
    parser.add_argument("--synthetic-points", type=int, default=50_000)
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=TABLE_3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--objective", choices=[name for name in OBJECTIVES if "full" not in name], default="sampled_softmax"
    )
    parser.add_argument("--correction", help="default: importance where the objective accepts it, as in the paper")
    parser.add_argument("--reduction", choices=REDUCTIONS, default="pick_all_labels")
    for name, default in (
        ("dim", 64),
        ("num-sampled", 5),
        ("batch-size", 64),
        ("num-epochs", 4),
        ("refresh-steps", 10),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--updates-between",
        action="store_true",
        help="update the sampled classes of a sampler at every step between refreshes",
    )
    parser.add_argument("--temperature", type=float, default=0.15, help="1 / tau")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="Adagrad's")
    parser.add_argument("--num-frequencies", type=int, default=200, help="number of random Fourier features")
    parser.add_argument("--nu", type=float, default=4.0, help="nu of their kernel")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    prepare_processor()
    if options.correction is None and "importance" in OBJECTIVES[options.objective].corrections:
        options.correction = "importance"
    recipe = Recipe(**{field: getattr(options, field) for field in Recipe._fields})
    if options.synthetic:
        problem = WordClasses(options.synthetic, num_features=1000, noise=0.5, labels_per_point=3, exponent=1.0)
        rng = np.random.default_rng(1)
        train_points, test_points = problem.draw(options.synthetic_points, rng), problem.draw(2000, rng)
    else:
        train_points, test_points = read_folder(options.data)
    state = machine_state(allocator_keeps_memory=True)
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    print(f"{len(train_points)} and {len(test_points)} points, {train_points.num_features} features, ", end="")
    print(f"{train_points.num_classes} classes, {train_points.labels.nnz / len(train_points):.2f} labels a point")
    print(recipe)
    print(
        f"{'':12}" + " ".join(f"{f'{name}@{k}':>14}" for name in ("P", "PSP") for k in RANKS),
        f"{'test nats':>14} {'s':>14}",
    )
    figures: dict[str, Any] = {}
    if options.synthetic:
        best = {f"p@{k}": 100 * problem.optimal_precision_at(k, test_points.features) for k in RANKS}
        figures["best possible"] = {key: {"mean": float(each.mean())} for key, each in best.items()}
        print(line("best possible", figures["best possible"]))
    figures["by frequency"] = summarise([frequency_baseline(train_points, test_points)])
    print(line("by frequency", figures["by frequency"]), flush=True)
    for name in options.samplers:
        runs = [measure(train_points, test_points, name, recipe, seed) for seed in range(options.seeds)]
        figures[name] = summarise(runs)
        print(line(name, figures[name]), flush=True)
    print(json.dumps({"figures": figures, "recipe": recipe._asdict(), "seeds": options.seeds, "machine": state}))


if __name__ == "__main__":
    main()
