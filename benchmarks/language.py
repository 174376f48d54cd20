"""Figures 1 to 3 of Rawat et al. 2019 (arXiv:1907.10747), rerun: held-out perplexity of Penn Treebank by sampler.

python -m benchmarks.language --data DIR [--out DIR] [--epochs E] [--only NAME ...] [--option=value ...]

An LSTM of 200 units, m = 100 candidates sampled for every token, `importance` (their Eq. 5), embeddings normalised to
length 1 with temperature 0.09 (tau = 11.1, 1 / sqrt(tau) = 0.3); the same seed, batches and steps for all. Each variant
is configs/text/ptb.yaml with another table, objective and sampler; more options go to `cpc pretrain`. Variants that an
earlier call finished are not run again, and an interrupted variant continues from its last checkpoint.

The proposals of quadratic and random Fourier features are computed for all classes, without their trees: with 10,000
classes and 700 tokens a batch, one matrix product is faster than 70,000 descents. The curves need matplotlib.

An epoch is 1328 steps: five minutes of one thread with the full softmax, four with log-uniform candidates, up to twenty
with random Fourier features of D = 1024; docs/results/text.md has each variant's perplexity.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.ablations import keep_options, train
from benchmarks.extreme.kernels import Quadratic
from benchmarks.extreme.softmax import SoftmaxSampler
from cpc.candidates.kernels import KernelMap, RandomFourier
from cpc.data.store.atomic import read_records
from cpc.losses import ClassTableLoss, RowLosses
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor

BASE = Path(__file__).parents[1] / "configs" / "text" / "ptb.yaml"
NUM_CLASSES, DIM, NUM_SAMPLED, TEMPERATURE = 10_000, 200, 100, 0.09
STEPS_PER_EPOCH = 1328
REFRESH_EVERY = 20  # steps between refreshes of samplers whose refresh goes through the whole table


class Dense(SoftmaxSampler):
    """A sampler with q(i) proportional to a kernel of query and class, computed for all classes.

    Args:
        num_classes: n.
        kernel: K; for random features, phi(h) . phi(c).
        floor: added to every class's mass, as a share of the mean mass; a negative sum of features counts as zero.
    """

    has_temperature = False  # the kernel's nu or alpha replaces the temperature

    def __init__(self, num_classes: int, kernel: KernelMap, floor: float = 0.1) -> None:
        super().__init__(num_classes, kernel.dim)
        self.kernel = kernel
        self.floor = floor
        self.register_buffer("features", torch.zeros(num_classes, kernel.num_features), persistent=False)
        self.register_load_state_dict_post_hook(lambda dense, _: dense._update_features())

    def refresh(self, embeddings: Tensor) -> None:
        """Compute the features of all classes."""
        super().refresh(embeddings)
        self._update_features()

    def _update_features(self) -> None:
        if isinstance(self.kernel, RandomFourier):
            self.features = self.kernel(self.embeddings)

    def _scores(self, queries: Tensor) -> Tensor:
        if isinstance(self.kernel, RandomFourier):
            mass = (self.kernel(queries) @ self.features.T).clamp_(min=0)
        else:
            assert isinstance(self.kernel, Quadratic)
            mass = self.kernel.alpha * (queries @ self.embeddings.T) ** 2 + self.kernel.beta
        return (mass + self.floor * mass.mean(1, keepdim=True) + 1e-12).log_()


class AbsoluteSoftmax(ClassTableLoss):
    """A loss with p(i) proportional to exp |h . c_i / temperature|, full or sampled with `importance`, by autograd.

    Blanc and Rendle 2018 train this model because a quadratic proposal fits it.
    """

    def row_losses(
        self, queries: Tensor, targets: Tensor, generator: torch.Generator | None = None, weight: Tensor | None = None
    ) -> RowLosses:
        """Return the losses of rows against sampled candidates."""
        if self.sampler is None:
            return self.exact(queries, targets)
        assert self.num_sampled is not None and self.hits is not None  # noqa: PT018
        self._refresh()
        h = self.table.normalised(queries)
        samples = self.sampler.sample(h.detach(), self.num_sampled, targets, self.hits, generator)
        candidates = self._absolute(torch.einsum("md,mnd->mn", h, self.table.vectors(samples.ids)))
        positives = self._absolute((h * self.table.vectors(targets)).sum(1))
        scores = torch.cat([positives[:, None], candidates - samples.log_count_sampled], 1)
        return _row_losses(scores, torch.zeros_like(targets), 1 + (samples.log_count_sampled < torch.inf).sum(1))

    def exact(self, queries: Tensor, targets: Tensor, weight: Tensor | None = None) -> RowLosses:
        """Return the losses of rows against all classes."""
        scores = self._absolute(self.table.normalised(queries) @ self.table.vectors().T)
        return _row_losses(scores, targets, torch.full_like(targets, self.table.num_classes))

    def _absolute(self, products: Tensor) -> Tensor:
        return (products / self.table.temperature).abs()


def _row_losses(scores: Tensor, targets: Tensor, num_candidates: Tensor) -> RowLosses:
    loss_nats = torch.nn.functional.cross_entropy(scores, targets, reduction="none")
    is_best = (scores.argmax(1) == targets).float()
    return RowLosses(loss_nats.mean(), loss_nats.detach(), num_candidates, is_best)


def sampler(path: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": path, "init_args": init_args}


def class_loss_config(
    proposal: dict[str, Any] | None, class_path: str = "cpc.losses.ClassTableLoss", refresh_every: int = 1, **table: Any
) -> dict[str, Any]:
    """Return `model.loss` of a config, with candidates from a proposal; None: all classes."""
    # Every option is given, because a missing option would be taken from the base config.
    plain = {"num_classes": NUM_CLASSES, "dim": DIM, "has_bias": False, "is_normalised": True}
    classes: dict[str, Any] = {
        "table": sampler("cpc.candidates.ClassTable", **plain | {"temperature": TEMPERATURE} | table),
        "objective": "full_softmax",
        "correction": None,
        "sampler": proposal,
        "num_sampled": None,
        "refresh_every": refresh_every,
    }
    if proposal is not None:
        classes |= {"objective": "sampled_softmax", "correction": "importance", "num_sampled": NUM_SAMPLED}
    return {"class_path": class_path, "init_args": classes}


def dense(kernel: str, **init_args: Any) -> dict[str, Any]:
    inner = sampler(kernel, dim=DIM, **init_args)
    return sampler("benchmarks.language.Dense", num_classes=NUM_CLASSES, kernel=inner)


def static(name: str) -> dict[str, Any]:
    return sampler(f"cpc.candidates.samplers.{name}", num_classes=NUM_CLASSES, shared=False, replacement=True)


def variants() -> dict[str, dict[str, Any]]:
    """Return `model.loss` of each variant by name."""
    absolute = "benchmarks.language.AbsoluteSoftmax"
    quadratic = dense("benchmarks.extreme.kernels.Quadratic", alpha=100.0)
    frequencies = {
        f"rff_nu_{nu:g}_d_{num}": dense("cpc.candidates.kernels.RandomFourier", num_frequencies=num, nu=nu)
        for nu, num in ((4.0, 1024), (1.0, 1024), (11.1, 1024), (4.0, 128), (4.0, 512))
    }
    query_options = {"num_classes": NUM_CLASSES, "dim": DIM, "temperature": TEMPERATURE}
    return {
        "full": class_loss_config(None),
        "full_unnormalised": class_loss_config(None, is_normalised=False, temperature=1.0),
        "full_absolute": class_loss_config(None, absolute),
        "exp": class_loss_config(sampler("benchmarks.extreme.softmax.SoftmaxSampler", **query_options)),
        "uniform": class_loss_config(static("Uniform")),
        "log_uniform": class_loss_config(static("LogUniform")),
        "quadratic": class_loss_config(quadratic),
        "quadratic_absolute": class_loss_config(quadratic, absolute),
        **{name: class_loss_config(proposal, refresh_every=REFRESH_EVERY) for name, proposal in frequencies.items()},
        "two_level": class_loss_config(
            sampler("cpc.candidates.samplers.TwoLevel", **query_options), refresh_every=REFRESH_EVERY
        ),
    }


def run(folder: Path, classes: dict[str, Any], options: list[str]) -> dict[str, Any]:
    """Train one variant unless an earlier call did, and return its perplexity on the valid split by epoch."""
    keep_options(folder, BASE, [json.dumps(classes, sort_keys=True), *options])
    config = folder / "classes.yaml"
    config.write_text(json.dumps({"model": {"loss": classes}}))
    train(folder, ["--config", str(BASE), f"--config={config}", *options])
    held_out = [record for record in read_records(folder / "bound.jsonl") if record["split"] == "valid"]
    return {
        "steps": [record["step"] for record in held_out],
        "perplexity": [record["perplexity"][0] for record in held_out],
        "trained_seconds": read_records(folder / "health.jsonl")[-1]["trained_seconds"],
    }


def table(found: dict[str, dict[str, Any]]) -> str:
    full = found.get("full", {}).get("perplexity", [math.nan])[-1]
    lines = [f"{'':20} {'perplexity':>11} {'best':>9} {'over full':>10} {'seconds':>9}"]
    for name, result in found.items():
        last = result["perplexity"][-1]
        lines.append(
            f"{name:20} {last:>11.2f} {min(result['perplexity']):>9.2f} {100 * (last / full - 1):>9.1f} % "
            f"{result['trained_seconds']:>9.0f}"
        )
    return "\n".join(lines)


def plot(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Plot the curves into a PNG with two panels: the samplers, and random Fourier features by nu and D."""
    from matplotlib.figure import Figure

    features = [name for name in found if name.startswith("rff")]
    best = min(features, key=lambda name: found[name]["perplexity"][-1], default=None)
    halves = {
        "samplers": [name for name in found if name not in features or name == best],
        "random Fourier features": [name for name in ("full", "exp", "uniform", *features) if name in found],
    }
    figure = Figure(figsize=(12, 5), layout="constrained")
    for axes, (title, names) in zip(figure.subplots(1, 2, sharey=True), halves.items(), strict=True):
        for name in names:
            axes.plot(
                found[name]["steps"], found[name]["perplexity"], label=name, marker="." if name in features else ""
            )
        axes.set(title=title, xlabel="step", yscale="log")
        axes.legend(fontsize="small")
        axes.grid(which="both", alpha=0.3)
    figure.axes[0].set_ylabel("perplexity, validation")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of Penn Treebank's three files")
    parser.add_argument("--out", type=Path, default=Path("runs/language"))
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--steps", type=int, help="instead of epochs")
    parser.add_argument("--only", nargs="+", choices=list(variants()), help="these variants")
    arguments, options = parser.parse_known_args()
    keep_freed_memory()
    prepare_processor()
    steps = arguments.steps or round(arguments.epochs * STEPS_PER_EPOCH)
    every = min(STEPS_PER_EPOCH, steps)
    shared_options = [
        f"--data.source={arguments.data}",
        f"--trainer.max_steps={steps}",
        f"--eval_every_steps={every}",
        f"--checkpoint_every_steps={every}",
    ]
    found = {
        name: run(arguments.out / name, classes, [*shared_options, *options])
        for name, classes in variants().items()
        if arguments.only is None or name in arguments.only
    }
    print(table(found))
    plot(found, arguments.out / "perplexity.png")
    (arguments.out / "perplexity.json").write_text(json.dumps(found))
    last = {name: result["perplexity"][-1] for name, result in found.items()}
    seconds = {name: result["trained_seconds"] for name, result in found.items()}
    print(json.dumps({"perplexity": last, "trained_seconds": seconds, "steps": steps}))


if __name__ == "__main__":
    main()
