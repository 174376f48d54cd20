"""The LightningModule: loss, optimiser, schedule, and the state that an exact resume needs."""

import math
import sys
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from cpc.bounds import Bound, BoundTally
from cpc.checkpoint import nonfinite_names
from cpc.config.argument_rules import Choices, Count, Natural, NonNegative, Positive, Seed, Share, check_values
from cpc.config.description import describe, without_removed
from cpc.contexts.context import time_constants
from cpc.data.batch import Batch
from cpc.data.modality import Modality
from cpc.data.tensors import fetch
from cpc.evaluation import held_out_bounds
from cpc.losses import Contrastive
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.objectives import FULL_SOFTMAX
from cpc.losses.output import ContrastiveOutput
from cpc.model import CPC
from cpc.predictors import Output
from cpc.pretraining.chunks import contrast_in_chunks
from cpc.pretraining.resume import differences, random_states, restore_random_states
from cpc.pretraining.step_graphs import NUM_WARM_UPS, StepGraphs, StepResult
from cpc.probes.online import OnlineProbe

_OPTIMISERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_ADAM_SETTINGS = ("optimiser", "learning_rate", "betas", "epsilon", "weight_decay")
_MODEL_SETTINGS = (*_ADAM_SETTINGS, "warmup_steps", "schedule", "frozen")
CompileMode = Literal["off", "default", "reduce-overhead"]
_TRAINER_SETTINGS = ("max_steps", "accumulate_grad_batches", "gradient_clip_val", "precision")
_NOT_FINITE = (
    "training stops, but earlier checkpoints are good. Lower model.learning_rate, clip gradients "
    "(trainer.gradient_clip_val)"
)
_UNDECAYED = {"weight_decay": 0.0}


class Pretraining(pl.LightningModule):
    """The training of a `CPC` model; its arguments are the `model` section of a config.

    Args:
        encoder: g_enc.
        context: g_ar.
        predictor: W_k.
        loss: `cpc.losses.Contrastive` predicts latents among the latents of the batch, `cpc.losses.ClassTableLoss`
            predicts classes among the classes of a table, such as the tokens of text.
        optimiser: `adam` or `adamw`.
        learning_rate: peak rate, after the warm-up.
        betas: decay rates of Adam.
        epsilon: epsilon of Adam.
        weight_decay: weight decay, decoupled with `adamw`, an L2 penalty with `adam`. Time constants, such as the steps
            and frequencies of `cpc.contexts.StateSpace`, have none.
        warmup_steps: optimiser steps of linear warm-up.
        schedule: after the warm-up: `constant`, or `cosine` down to zero at `trainer.max_steps`.
        extra_strategies: further strategies of the held-out bound. Same-speaker strategies are measured on batches of
            few speakers, all others on uniform batches.
        num_chunks: number of chunks in which a batch is encoded, before the loss contrasts the whole batch. The loss
            stays the same, activations take 1 / num_chunks of the memory, and the forward pass is done twice.
        frozen: parts whose weights are not trained, such as `encoder` or `encoder.layers.0`.
        seed: seed of the negatives.
    """

    compile_mode: CompileMode = "off"  # the option `--compile` of the run

    def __init__(
        self,
        encoder: nn.Module,
        context: nn.Module,
        predictor: nn.Module,
        loss: Loss | None = None,
        optimiser: Literal["adam", "adamw"] = "adam",
        learning_rate: Positive = 2e-4,
        betas: tuple[Share, Share] = (0.9, 0.999),
        epsilon: NonNegative = 1e-8,
        weight_decay: NonNegative = 0.0,
        warmup_steps: Natural = 0,
        schedule: Literal["constant", "cosine"] = "constant",
        extra_strategies: tuple[str, ...] = ("mixed_excluding",),
        num_chunks: Count = 1,
        frozen: tuple[str, ...] = (),
        seed: Seed = 0,
    ) -> None:
        check_values(Pretraining.__init__, locals(), "model.")
        super().__init__()
        self.model = CPC(encoder, context, predictor, loss)
        if self.model.loss_part.has_sparse_gradients:
            raise ValueError(f"optimiser={optimiser!r} does not support a table with has_sparse_gradients=True")
        _freeze(self.model, frozen)
        self._architecture = describe(self.model)  # before the data complete its settings
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.betas = tuple(betas)
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.warmup_steps = warmup_steps
        self.schedule = schedule
        self.strategies: tuple[str, ...] = self.model.loss_part.held_out_strategies(tuple(extra_strategies))
        self.num_chunks = num_chunks
        self.frozen = tuple(frozen)
        self.generator = torch.Generator()  # generator of the negatives
        self._draws = self.generator  # on a GPU if a CUDA graph draws; `generator` then seeds it at each step
        self._graphs: StepGraphs | None = None
        self._compiled: Callable[[Tensor, Any], Output] | None = None
        self.seed = seed
        self.tally = BoundTally(self.model.steps)  # training batches since the last record
        self.context_state: tuple[Tensor, ...] | None = None  # after the last batch, if batches are continuous
        # Whether the loss of the last step is finite, the step, its loss and sequence ids; None after the check.
        self._unchecked: tuple[Callable[[], Tensor], int, ContrastiveOutput, Tensor | None] | None = None
        self._restored: dict[str, Any] | None = None  # this rank's state in a checkpoint
        self._settings_changed = False  # seconds since the checkpoint

    @property
    def data(self) -> Modality:
        """The modality of the training data."""
        return self.trainer.datamodule.modality

    def setup(self, stage: str) -> None:
        """Initialise the encoder from data, before the model is wrapped for several devices."""
        if self.num_chunks > 1 and self.data.is_continuous:
            raise ValueError(f"model.num_chunks={self.num_chunks} does not work with {self.data.name}")
        self._check_compile_mode()
        self.generator.manual_seed(self.seed + (0 if self.model.loss_part.uses_all_ranks else self.global_rank))
        if stage == "fit" and not self.model.is_initialised:
            self.model.initialise_from(self.data.initialisation_batch(self.trainer.datamodule.corpus))
        if self.compile_mode == "default":
            self._compiled = torch.compile(self.model.forward, fullgraph=True, dynamic=False)

    def _check_compile_mode(self) -> None:
        is_graph, is_compiled = self.compile_mode == "reduce-overhead", self.compile_mode != "off"
        is_parallel = isinstance(self.trainer.strategy, ParallelStrategy)  # on one device too, with hooks on gradients
        for applies, problem, other in (
            (is_compiled and self.num_chunks > 1, f"with model.num_chunks={self.num_chunks}", "off"),
            (is_graph and self.trainer.strategy.root_device.type != "cuda", "without a GPU", "default"),
            (is_graph and is_parallel, "with a trainer.strategy for several devices", "default, or the strategy auto"),
            (is_graph and self.trainer.precision == "16-mixed", "with trainer.precision=16-mixed", "default"),
            (is_graph and self.data.is_continuous, f"with {self.data.name}, whose contexts continue", "default"),
            (is_graph and not isinstance(self.model.loss_part, Contrastive), "with this model.loss", "default"),
        ):
            if applies:
                raise ValueError(f"`compile`={self.compile_mode} does not work {problem}: choose {other}")

    def training_step(self, batch: Batch, batch_index: int) -> dict[str, Tensor]:
        """Return the contrastive loss, with detached latents and contexts for callbacks."""
        self.model.loss_part.set_step(batch_index)
        if self._draws is not self.generator:
            self._draws.manual_seed(int(torch.randint(2**63 - 1, (), generator=self.generator)))
        latents, contexts, contrast = (self._graphs or self._compute_step)(batch)
        self.require_finite_loss()  # check the previous step while a GPU computes this step
        detached = contrast._replace(loss=contrast.loss.detach())
        self._unchecked = (fetch(detached.loss.isfinite()), self.global_step, detached, batch.sequence_id)
        self.tally.update(contrast)
        return {"loss": contrast.loss, "latents": latents, "contexts": contexts}

    def _compute_step(self, batch: Batch) -> StepResult:
        if self.num_chunks > 1:
            output, contrast = contrast_in_chunks(self.model, batch, self.num_chunks, self.generator)
        else:
            output = self._encode(batch.x)
            if self.data.is_continuous:
                self.context_state = tuple(each.detach() for each in output.state)
            contrast = self.model.contrast(output, batch, self._draws)
        return StepResult(output.latents.detach(), output.contexts.detach(), contrast)

    def _encode(self, x: Tensor) -> Output:
        if self._compiled is None:
            return self.model(x, self.context_state)
        try:
            return self._compiled(x, self.context_state)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"`compile`=default: torch cannot compile this model ({reason}); choose off") from error

    def take_training_bound(self) -> Bound:
        """Return the bound over the training batches of all ranks since the last call."""
        self.require_finite_loss()
        tally, self.tally = self.tally, BoundTally(self.model.steps)
        bound = self._gather_tally(tally).compute(self.model.loss_part.training_strategies[0], "train")
        entropy = self.trainer.datamodule.training.class_entropy_nats
        return bound.against_entropy(entropy) if bound.strategy == FULL_SOFTMAX else bound

    def evaluate(self) -> tuple[list[Bound], list[dict[str, Any]]]:
        """Return the bounds, with the training strategy first, and the records of the online probes.

        Both are measured on the held-out batches of all ranks.
        """
        probes = [callback for callback in self.trainer.callbacks if isinstance(callback, OnlineProbe)]

        def test_probes(batch: Batch, latents: Tensor, contexts: Tensor) -> None:
            for probe in probes:
                probe.add_held_out(batch, latents, contexts)

        protocols = [EvalProtocol(name, self.model.loss_part.num_negatives) for name in self.strategies]
        options: dict[str, Any] = {"forward_context": self.trainer.precision_plugin.forward_context}
        options |= {"gather": self._gather_tally, "on_batch": test_probes}
        bounds = list(held_out_bounds(self.model, self.trainer.datamodule.held_out, protocols, **options).values())
        return bounds, [probe.held_out_record(self.trainer, self.global_step, bounds[0]) for probe in probes]

    def require_finite_loss(self) -> None:
        """Raise FloatingPointError if the loss of the last step is not finite, unless it was checked before."""
        unchecked, self._unchecked = self._unchecked, None
        if unchecked is None or bool(unchecked[0]()):
            return
        _, step, contrast, sequence_id = unchecked
        is_broken = (~torch.isfinite(contrast.loss_nats)).any(1).tolist()
        steps = ", ".join(each.name for each, bad in zip(self.model.steps, is_broken, strict=True) if bad)
        ids = None if sequence_id is None else sequence_id.tolist()
        raise FloatingPointError(
            f"the loss is {contrast.loss.item()} at training step {step}, from the predictions k = {steps}: "
            f"{_NOT_FINITE}, or look for broken data among the {self.data.unit} with the sequence ids {ids}"
        )

    def require_finite(self) -> None:
        """Raise FloatingPointError if the last loss, a weight or a statistic is not finite, before measuring or saving.

        The loss of a step belongs to the weights before the step, so it does not show a broken gradient.
        """
        self.require_finite_loss()
        broken = nonfinite_names(self.model)
        if broken:
            names = f"{', '.join(broken[:3])} {'is' if len(broken) == 1 else 'are'}"
            raise FloatingPointError(f"{names} not finite after step {self.global_step}: {_NOT_FINITE}")

    def configure_optimizers(self) -> dict[str, Any]:
        """Return Adam with a linear warm-up, followed by a constant or cosine schedule."""
        optimiser = _OPTIMISERS[self.optimiser](
            parameter_groups(self.model),
            lr=self.learning_rate,
            betas=self.betas,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            # On a CPU `fused` takes 40 % of the default's time, on a GPU it is one launch. float16 scales gradients,
            # which a fused optimiser would undo only after they are clipped.
            fused=self.trainer.precision in ("32-true", "bf16-mixed") or None,
        )
        self.model.loss_part.watch(optimiser)
        # trainer.estimated_stepping_batches is not used, because reading it makes Lightning drop the loader's state on
        # resume.
        schedule = LambdaLR(optimiser, lambda step: self._learning_rate_factor(step, self.trainer.max_steps))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip gradients, also those of a fused optimiser, which Lightning refuses in bfloat16 as if it scaled them."""
        algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
        Precision.clip_gradients(self.trainer.precision_plugin, optimizer, gradient_clip_val or 0.0, algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the architecture, the settings, and every rank's generators and unfinished tally."""
        encoder, rank_state = self.model.encoder, {"draws": self.generator.get_state(), "tally": self.tally.sums}
        rank_state |= {"context_state": self.context_state}
        checkpoint["cpc"] = {
            "architecture": self._architecture,
            "from_data": {name: getattr(encoder, name) for name in getattr(encoder, "from_data", ())},
            "settings": self._settings(),
            "num_workers": self.data.num_workers,
            "ranks": self.gather_from_ranks(rank_state | random_states(self.device)),
        }

    def take_from_data(self, settings: dict[str, Any]) -> None:
        """Set what the encoder took from the data before a run stopped, unless the config says it."""
        encoder = self.model.encoder
        for name in getattr(encoder, "from_data", ()):
            setattr(encoder, name, getattr(encoder, name) or settings.get(name))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the run can continue, print changed settings, and keep the state of this rank."""
        state = checkpoint["cpc"]
        mismatches = list(differences(without_removed(state["architecture"]), self._architecture))
        if mismatches:
            raise ValueError(f"the models of checkpoint and config differ: {'; '.join(mismatches)}")
        Choices((state["num_workers"],)).check("`num_workers`", self.data.num_workers)
        # The model is converted before loading. Lightning converts it only afterwards, and float64 weights would be
        # loaded as float32.
        self.to(next(each.dtype for each in checkpoint["state_dict"].values() if each.is_floating_point()))
        num_ranks = self.trainer.world_size
        if len(state["ranks"]) != num_ranks and self.data.is_continuous:
            raise ValueError(f"{num_ranks} `trainer.devices` cannot continue contexts of {len(state['ranks'])}")
        changes = list(differences(state["settings"], self._settings(), name=""))
        self._settings_changed = bool(changes)
        if changes and self.global_rank == 0:
            print(f"continuing with other settings: {'; '.join(changes)}", file=sys.stderr)
        self._restored = self._rank_state(state["ranks"])

    def _rank_state(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return this rank's generators, if the checkpoint has this rank, and its share of the tally."""
        num_ranks = self.trainer.world_size
        if len(ranks) == num_ranks:
            return ranks[self.global_rank]
        draws = ranks[0]["draws"] if self.model.loss_part.uses_all_ranks else self.generator.get_state()
        own = ranks[self.global_rank] if self.global_rank < len(ranks) else {"draws": draws}
        batches = zip(*(each["tally"] for each in ranks), strict=True)
        return own | {"tally": [torch.cat(batch, 2).chunk(num_ranks, 2)[self.global_rank] for batch in batches]}

    def on_train_start(self) -> None:
        """Apply changed settings after a resume, since the optimiser's state restores the earlier ones."""
        if self.compile_mode == "reduce-overhead":
            self._draws = torch.Generator(self.device)
            self._graphs = StepGraphs(self._compute_step, self.model, self._draws)
        if not self._settings_changed:
            return
        optimiser, schedule = self.optimizers(use_pl_optimizer=False), self.lr_schedulers()
        rate = self.learning_rate * self._learning_rate_factor(schedule.last_epoch, self.trainer.max_steps)
        for group in optimiser.param_groups:
            own = {} if group is optimiser.param_groups[0] else _UNDECAYED
            group.update(optimiser.defaults | {"lr": rate, "initial_lr": self.learning_rate} | own)
        schedule.base_lrs = [self.learning_rate] * len(optimiser.param_groups)

    def on_train_end(self) -> None:
        """Print how many steps no CUDA graph could replay."""
        if self._graphs is not None and (num := self._graphs.num_steps - self._graphs.num_replayed) > NUM_WARM_UPS:
            why = "lengths of windows, or which share a file or speaker, differed from those of the steps before"
            print(f"{num} of {self._graphs.num_steps} steps ran without a CUDA graph: {why}", file=sys.stderr)

    def on_train_batch_start(self, batch: Batch, batch_index: int) -> None:
        """Restore the random generators after a resume, as late as possible, since the set-up may draw from them."""
        if self._restored is None:
            return
        state, self._restored = self._restored, None
        self.generator.set_state(state["draws"])
        if "torch" in state:  # a rank that is not in the checkpoint has none
            restore_random_states(state, self.device)
        if state.get("context_state") is not None:
            self.context_state = tuple(each.to(self.device) for each in state["context_state"])
        self.tally.sums = list(state["tally"])

    def _settings(self) -> dict[str, Any]:
        """Return the settings that may change when a run continues, and that affect its results."""
        return {
            **{f"model.{name}": getattr(self, name) for name in _MODEL_SETTINGS},
            "model.extra_strategies": self.strategies[1:],
            "model.num_chunks": self.num_chunks,  # changes rounding and dropout
            "compile": self.compile_mode,  # also changes negatives, if a GPU draws them
            **{f"data.{name}": value for name, value in self.data.options.items()},
            **{f"trainer.{name}": getattr(self.trainer, name) for name in _TRAINER_SETTINGS},
        }

    def _learning_rate_factor(self, step: int, max_steps: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        progress = (step - self.warmup_steps) / max(1, max_steps - self.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    def gather_from_ranks(self, value: Any) -> list[Any]:
        """Return the values of all ranks; every rank must call this."""
        values = [value] * self.trainer.world_size
        if self.trainer.world_size > 1:
            torch.distributed.all_gather_object(values, value)
        return values

    def _gather_tally(self, tally: BoundTally) -> BoundTally:
        """Return the tally of all ranks. Batches of one step are joined into one batch, as in a single process."""
        gathered = BoundTally(tally.steps)
        batches = zip_longest(*self.gather_from_ranks(tally.sums))  # text may end earlier on some ranks
        gathered.sums = [torch.cat([part for part in parts if part is not None], 2) for parts in batches]
        return gathered


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return a group of the parameters, followed by one of the time constants, without weight decay, if there are any.

    Weight decay would move a step towards 1 and a frequency towards 0, whatever the data need.
    """
    exempt = time_constants(model)
    groups: dict[bool, list[nn.Parameter]] = {False: []}
    for name, parameter in model.named_parameters():
        groups.setdefault(name in exempt, []).append(parameter)
    return [{"params": parameters} | (_UNDECAYED if is_exempt else {}) for is_exempt, parameters in groups.items()]


def _freeze(model: CPC, names: tuple[str, ...]) -> None:
    """Freeze the weights of these parts."""
    for name in names:
        part = dict(model.named_modules()).get(name) if name else None  # without a name: the model
        if part is None:
            parts = ", ".join(child for child, _ in model.named_children())
            raise ValueError(f"model.frozen names {name!r}, but the model has {parts} and their submodules")
        part.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"model.frozen={list(names)} leaves no weights to train")
