"""A linear probe that is trained during pretraining. B windows or images, n labelled ones, D feature dim, Y classes."""

from typing import Any, Literal

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor

from cpc.bounds import Bound
from cpc.config.argument_rules import Positive, Range, checked
from cpc.contexts.grid import is_grid
from cpc.data.batch import Batch
from cpc.data.store.atomic import finite
from cpc.data.tensors import move
from cpc.model import CPC

SCHEMA = 1
_SLOWEST_RATE = 0.01
_TENSORS = ("weight", "bias", "mean", "variance")


class OnlineProbe(pl.Callback):
    """A linear softmax on detached features, trained on every training batch and tested on the held-out batches.

    Features are standardised by running statistics. The probe has its own optimiser and does not draw random numbers,
    so training of the model is bit for bit the same with and without the probe.

    Args:
        task: a task of the data with at least two classes. Audio has `speaker` and `phones` (needs `data.alignments`),
            for every frame; images have `class`, from the mean over their patches. Labels come from `Batch.group_id` if
            the classes are the groups of the data, such as speakers, and from `Batch.labels` otherwise.
        features: contexts `c` or latents `z`.
        learning_rate: learning rate of Adam.
    """

    @checked
    def __init__(
        self, task: str = "speaker", features: Literal["c", "z"] = "c", learning_rate: Positive = 1e-3
    ) -> None:
        super().__init__()
        self.task = task
        self.features = features
        self.learning_rate = learning_rate
        self._saved: dict[str, Any] | None = None
        self._optimiser: torch.optim.Adam | None = None

    @property
    def state_key(self) -> str:
        """Key of the probe in a checkpoint, different for each task and features."""
        return self._generate_state_key(task=self.task, features=self.features)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the classes from the data."""
        if stage != "fit":
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.classes: list[str] = data.class_names(self.task)
        self._labels_are_groups: bool = data.is_group_task(self.task)
        Range(2).check(f"OnlineProbe: the number of classes of task {self.task!r}", len(self.classes))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Allocate the probe, or restore it from the checkpoint."""
        model: CPC = pl_module.model  # type: ignore[assignment]
        self._encoder = model.encoder
        dim = model.context.dim if self.features == "c" else model.encoder.dim
        device = pl_module.device
        # The problem is convex, so weights can start at zero, which does not use the random generators of training.
        self.weight = torch.zeros(len(self.classes), dim, device=device, requires_grad=True)
        self.bias = torch.zeros(len(self.classes), device=device, requires_grad=True)
        self.mean = torch.zeros(dim, device=device)
        self.variance = torch.ones(dim, device=device)
        self.num_batches = 0
        self._optimiser = torch.optim.Adam([self.weight, self.bias], lr=self.learning_rate)
        if self._saved is not None:
            self._restore(self._saved)
            self._saved = None
        self._clear()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_index: int
    ) -> None:
        """Take one step on the labelled frames of the batch, if there are any."""
        x = outputs["latents" if self.features == "z" else "contexts"].detach()
        x, labels = self._labelled(batch, x)
        sums = torch.cat([x.new_full((1,), len(x)), x.sum(0), x.square().sum(0)]).double()
        sums = _sum_over_ranks(trainer, sums)
        num_examples, total, squares = sums.split([1, len(self.mean), len(self.mean)])
        # With several ranks the count is read from the device, and the host waits for a GPU.
        if len(x) == 0 if trainer.world_size == 1 else bool(num_examples == 0):
            return
        assert self._optimiser is not None
        self.num_batches += 1
        rate = max(1 / self.num_batches, _SLOWEST_RATE)
        mean = total / num_examples
        self.mean.lerp_(mean.float(), rate)
        self.variance.lerp_((squares / num_examples - mean.square()).clamp(min=0).float(), rate)
        with torch.enable_grad():
            loss = F.cross_entropy(self._scores(x), labels, reduction="sum") / num_examples.float()
            gradients = torch.autograd.grad(loss.sum(), [self.weight, self.bias])
        self.weight.grad, self.bias.grad = (_sum_over_ranks(trainer, gradient) for gradient in gradients)
        self._optimiser.step()

    @torch.no_grad()
    def add_held_out(self, batch: Batch, latents: Float[Tensor, "B ... D"], contexts: Float[Tensor, "B ... C"]) -> None:
        """Test the probe on a held-out batch; `held_out_record` returns the result."""
        x, labels = self._labelled(batch, latents if self.features == "z" else contexts)
        scores = self._scores(x)
        self._totals[0] += (scores.argmax(1) == labels).sum()
        self._totals[1] += F.cross_entropy(scores, labels, reduction="sum").double()
        self._totals[2:] += torch.bincount(labels, minlength=len(self.classes))

    def held_out_record(self, trainer: pl.Trainer, step: int, bound: Bound) -> dict[str, Any]:
        """Return a line of `probe.jsonl`, with log N - L; measures are None if no held-out frame is labelled."""
        totals = _sum_over_ranks(trainer, self._totals)
        num_examples = int(totals[2:].sum())
        accuracy, cross_entropy, *_ = (totals / max(1, num_examples)).tolist()
        shares = totals[2:] / max(1, num_examples)
        entropy = -torch.special.xlogy(shares, shares).sum().item()
        self._clear()
        measures = {
            "accuracy": accuracy,
            "majority_accuracy": shares.max().item(),
            "label_entropy_nats": entropy,
            "cross_entropy_nats": cross_entropy,
            "label_information_nats": entropy - cross_entropy,
        }
        return {
            "schema": SCHEMA,
            "step": step,
            "task": self.task,
            "features": self.features,
            **(measures if num_examples else dict.fromkeys(measures)),
            "num_examples": num_examples,
            "split": bound.split,
            "strategy": bound.strategy,
            "steps": bound.steps,
            "directions": bound.directions,
            "reading": bound.reading,
            "mi_bound_nats": finite(bound.mi_bound_nats),
        }

    def state_dict(self) -> dict[str, Any]:  # noqa: D102 - of probe and optimiser; a resumed run continues bit for bit
        if self._optimiser is None:
            return self._saved or {}
        tensors = {name: getattr(self, name).detach() for name in _TENSORS}
        others = {"num_batches": self.num_batches, "classes": self.classes}
        return tensors | others | {"optimiser": self._optimiser.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts and the device is known."""
        self._saved = state_dict or None

    def _restore(self, state: dict[str, Any]) -> None:
        if state["classes"] != self.classes or state["weight"].shape != self.weight.shape:
            old, new = list(state["weight"].shape), list(self.weight.shape)
            raise ValueError(
                f"OnlineProbe: the checkpoint's probe of {self.task!r} has {old} classes and features, but data and "
                f"model now have {new}, or other classes: continue with the data of the first start"
            )
        with torch.no_grad():
            for name in _TENSORS:
                getattr(self, name).copy_(state[name])
        self.num_batches = state["num_batches"]
        assert self._optimiser is not None
        self._optimiser.load_state_dict(state["optimiser"])

    def _labelled(self, batch: Batch, x: Float[Tensor, "B ... D"]) -> tuple[Float[Tensor, "n D"], Int[Tensor, " n"]]:
        """Return the labelled frames without padding, and their labels; for a grid, the mean over its patches."""
        labels = (rearrange(batch.group_id, "b -> b 1") if self._labels_are_groups else batch.labels).cpu()
        num_valid = None if batch.num_valid is None else self._encoder.num_latents(batch.num_valid.cpu())
        if is_grid(x):
            x, num_valid = reduce(x.float(), "b h w d -> b 1 d", "mean"), None
        if labels.shape[1] == 0:
            return x.new_zeros(0, x.shape[2]).float(), labels.new_zeros(0).to(x.device)
        labels = labels.expand(-1, x.shape[1])
        is_labelled = labels >= 0
        if num_valid is not None:
            is_labelled &= torch.arange(x.shape[1]) < rearrange(num_valid, "b -> b 1")
        index = move(is_labelled.flatten().nonzero()[:, 0], x.device)  # a mask as index would make a GPU wait
        return x.flatten(0, 1)[index].float(), move(labels[is_labelled], x.device)

    def _scores(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n Y"]:
        return F.linear((x - self.mean) * self.variance.clamp(min=1e-12).rsqrt(), self.weight, self.bias)

    def _clear(self) -> None:
        # of the held-out batches: correct answers, cross-entropy, and the count of each label
        self._totals = torch.zeros(2 + len(self.classes), dtype=torch.float64, device=self.weight.device)


def _sum_over_ranks(trainer: pl.Trainer, x: Tensor) -> Tensor:
    return x if trainer.world_size == 1 else trainer.strategy.reduce(x, reduce_op="sum")
