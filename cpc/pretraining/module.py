"""The LightningModule: loss, optimiser, schedule, and the state that an exact resume needs."""

import math
import random
from collections.abc import Callable, Iterable
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn

from cpc.bounds import Bound, BoundTally
from cpc.checkpoint import describe
from cpc.data.batch import Batch
from cpc.evaluation import contrast_by_strategy, fixed_generators
from cpc.model import CPC

OnBatch = Callable[[Batch, Tensor, Tensor], None]


class Pretraining(pl.LightningModule):
    """Trains a `CPC` model; its arguments are the `model` section of a config.

    Args:
        encoder: g_enc.
        context: g_ar.
        predictor: W_k.
        negatives: strategy of training and of the held-out bound: `mixed`, `same_speaker`, `mixed_excluding`,
            `same_speaker_excluding` or `sequence_only`.
        num_negatives: drawn per row and step; null: every candidate of the batch.
        shared_across_steps: use the same draws for all steps.
        optimiser: `adam` or `adamw`.
        learning_rate: peak, after the warm-up.
        betas: Adam's decay rates.
        epsilon: Adam's.
        weight_decay: decoupled with `adamw`, an L2 penalty with `adam`.
        warmup_steps: optimiser steps of linear warm-up.
        schedule: after the warm-up: `constant`, or `cosine` down to zero at `trainer.max_steps`.
        extra_strategies: the held-out bound is measured with these as well.
        seed: of the draws of negatives.
    """

    def __init__(
        self,
        encoder: nn.Module,
        context: nn.Module,
        predictor: nn.Module,
        negatives: str = "mixed",
        num_negatives: int | None = None,
        shared_across_steps: bool = False,
        optimiser: Literal["adam", "adamw"] = "adam",
        learning_rate: float = 2e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        schedule: Literal["constant", "cosine"] = "constant",
        extra_strategies: tuple[str, ...] = ("mixed_excluding",),
        seed: int = 0,
    ) -> None:
        super().__init__()
        if learning_rate <= 0:
            raise ValueError(f"model.learning_rate={learning_rate} must be positive")
        if warmup_steps < 0:
            raise ValueError(f"model.warmup_steps={warmup_steps} must not be negative")
        self.model = CPC(encoder, context, predictor, negatives, num_negatives, shared_across_steps)
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.betas = tuple(betas)
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.warmup_steps = warmup_steps
        self.schedule = schedule
        self.strategies = tuple(dict.fromkeys((negatives, *extra_strategies)))
        self.draws = torch.Generator()
        self.draws_seed = seed
        self.tally = BoundTally()  # of training, since the last record
        self._restored_generators: dict[str, Any] | None = None

    def setup(self, stage: str) -> None:
        """Initialise the encoder from data, before the model is wrapped for several devices."""
        self.draws.manual_seed(self.draws_seed + self.global_rank)
        if stage == "fit" and not self.model.is_initialised:
            data = self.trainer.datamodule
            self.model.encoder.set_statistics(*data.corpus.statistics())
            self.model.initialise_from(data.initialisation_batch().x)

    def training_step(self, batch: Batch, batch_index: int) -> dict[str, Tensor]:
        """The contrastive loss; latents and contexts go to the online probe, detached."""
        latents, contexts, _ = self.model(batch.x)
        contrast = self.model.contrast(
            latents,
            contexts,
            num_valid=self.model.encoder.num_latents(batch.num_valid),
            sequence_id=batch.sequence_id,
            group_id=batch.group_id,
            generator=self.draws,
        )
        if not torch.isfinite(contrast.loss):
            raise FloatingPointError(
                f"the loss is {contrast.loss.item()} at step {self.global_step}: training stops here and the last good "
                "checkpoint stands; lower model.learning_rate, clip gradients (trainer.gradient_clip_val) or look for "
                f"broken audio in the files with ids {batch.sequence_id.tolist()}"
            )
        self.tally.update(contrast)
        return {"loss": contrast.loss, "latents": latents.detach(), "contexts": contexts.detach()}

    def take_training_bound(self) -> Bound:
        """The bound over the training batches since the last call, on all ranks."""
        tally, self.tally = self.tally, BoundTally()
        return self._gathered(tally).compute(self.model.negatives, "train")

    @torch.no_grad()
    def held_out_bounds(self, batches: Iterable[Batch], split: str, on_batch: OnBatch) -> list[Bound]:
        """Measure the bound on held-out batches, those of all ranks, with the training strategy first.

        Args:
            batches: this rank's batches.
            split: their name.
            on_batch: called with each batch, its latents and its contexts.
        """
        generators = fixed_generators(self.strategies)
        tallies = {strategy: BoundTally() for strategy in self.strategies}
        self.eval()
        for batch in batches:
            batch = self.transfer_batch_to_device(batch, self.device, 0)
            with self.trainer.precision_plugin.forward_context():
                contrasts, latents, contexts = contrast_by_strategy(self.model, batch, self.strategies, generators)
            for strategy, contrast in contrasts.items():
                tallies[strategy].update(contrast)
            on_batch(batch, latents, contexts)
        self.train()
        return [self._gathered(tally).compute(strategy, split) for strategy, tally in tallies.items()]

    def configure_optimizers(self) -> dict[str, Any]:
        """Adam with linear warm-up, then constant or cosine."""
        classes = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        optimiser = classes[self.optimiser](
            self.model.parameters(),
            lr=self.learning_rate,
            betas=self.betas,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
        )
        # Not trainer.estimated_stepping_batches: reading it makes Lightning drop the loader's state on resume.
        max_steps = self.trainer.max_steps
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: self._learning_rate_factor(step, max_steps)
        )
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add every generator, the architecture and the unfinished tally."""
        checkpoint["cpc"] = {
            "architecture": describe(self.model),
            "draws": self._of_all_ranks(self.draws.get_state()),
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": self._of_all_ranks(torch.get_rng_state()),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "tally": self.tally.sums,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse another architecture by name; keep the generators until training starts."""
        state = checkpoint.get("cpc")
        if state is None:
            raise ValueError("this checkpoint was not written by cpc pretrain")
        differences = list(_differences(state["architecture"], describe(self.model)))
        if differences:
            raise ValueError(
                f"the checkpoint holds another model than the config: {'; '.join(differences)}; continue with the "
                "config.yaml of its run folder"
            )
        self._restored_generators = state

    def on_train_batch_start(self, batch: Batch, batch_index: int) -> None:
        """After a resume, put every generator where it was: as late as possible, since set-up may draw from them."""
        if self._restored_generators is None:
            return
        state, self._restored_generators = self._restored_generators, None
        self.draws.set_state(state["draws"][self.global_rank])
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"][self.global_rank])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])
        self.tally.sums = list(state["tally"])

    def _learning_rate_factor(self, step: int, max_steps: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        progress = (step - self.warmup_steps) / max(1, max_steps - self.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    def _of_all_ranks(self, state: Tensor) -> list[Tensor]:
        if self.trainer.world_size == 1:
            return [state]
        return [of_rank.clone() for of_rank in self.all_gather(state).cpu()]  # a generator takes no views

    def _gathered(self, tally: BoundTally) -> BoundTally:
        """The batches of all ranks, in one tally."""
        if self.trainer.world_size == 1:
            return tally
        gathered = BoundTally()
        for batch in tally.sums:
            gathered.sums.extend(self.all_gather(batch.float()).cpu().double().unbind(0))
        return gathered


def _differences(found: Any, expected: Any, name: str = "model") -> Any:
    """Where two descriptions differ, in words."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            yield from _differences(found.get(key), expected.get(key), name if key == "init_args" else f"{name}.{key}")
    elif found != expected and not isinstance(found, tuple | list):
        yield f"{name} is {found!r} in the checkpoint, {expected!r} here"
    elif isinstance(found, tuple | list) and tuple(found) != tuple(expected or ()):
        yield f"{name} is {found!r} in the checkpoint, {expected!r} here"
