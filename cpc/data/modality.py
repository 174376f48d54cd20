"""The one interface between a kind of observation and everything that trains on it, measures it or probes it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from cpc.config.argument_rules import Count, check_fields
from cpc.data.batch import Batch
from cpc.data.probe_data import ProbeData

EVALUATION_SEED = 0


@dataclass(kw_only=True)
class Modality(ABC):
    """A source of observations, with the options by which it is opened, cut, batched and held out.

    A config's `data` section names a subclass by its class path and gives its fields. A run notes both beside its
    model; `cpc evaluate`, `cpc probe` and `cpc embed` take them up. A subclass is a dataclass with keyword-only fields,
    `Args:` in its docstring, and the methods below.

    Args:
        train_split: what is trained on.
        eval_split: the held-out part that the bound is measured on.
        batch_size: observations per batch and device.
        cache_dir: where packed data go; null: beside the source.
        skip_bad: go on without files that cannot be used, and say how many.

    Attributes:
        name: what encoders of such observations call it (`encoder.modality`).
        unit: what a batch is made of, in the plural.
        source_option: the field that names the source.
        held_out_options: fields that say how held-out batches are made, beside the split.
        probe_options: fields that `cpc probe` offers, beside the source.
        local_options: fields that belong to a machine, and are not noted beside a model.
        predicts: what a loss can ask the model to find: `latents`, or `classes` of what follows.
        is_continuous: each batch goes on where the one before it ended, so that contexts are carried on.
        num_workers: loader processes; 0 loads in the training process.

    Raises:
        ValueError: if a field breaks the rule of its annotation (`cpc.config.argument_rules`).
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    source_option: ClassVar[str] = "source"
    held_out_options: ClassVar[tuple[str, ...]] = ("batch_size",)
    probe_options: ClassVar[tuple[str, ...]] = ()
    local_options: ClassVar[tuple[str, ...]] = ("cache_dir", "skip_bad", "num_workers")
    predicts: ClassVar[Literal["latents", "classes"]] = "latents"
    is_continuous: ClassVar[bool] = False
    num_workers: ClassVar[int] = 0

    train_split: str = "train"
    eval_split: str = "valid"
    batch_size: Count = 8
    cache_dir: str | None = None
    skip_bad: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("train_split", "eval_split"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"`{name}`={getattr(self, name)!r} must name a split")

    @property
    def options(self) -> dict[str, Any]:
        """Every field, by name; of options that have options, a dictionary."""
        return asdict(self)

    @property
    def saved_settings(self) -> dict[str, Any]:
        """What a run notes beside its model, as `cpc.config.description.build` takes it."""
        kind = type(self)
        kept = {name: value for name, value in self.options.items() if name not in self.local_options}
        return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": kept}

    @property
    def held_out_protocol(self) -> dict[str, Any]:
        """What makes two measured bounds comparable: the split, and how its batches are made."""
        return {"split": self.eval_split} | {name: getattr(self, name) for name in self.held_out_options}

    def of_all_ranks(self, num_ranks: int) -> "Modality":
        """These data as one process sees them whose batch is that of all ranks."""
        return replace(self, batch_size=num_ranks * self.batch_size)

    def check(self, model: Any) -> None:
        """Refuse a model of other observations, or one that cannot be trained on these; the source is not opened yet.

        Raises:
            ValueError: naming the option.
        """
        loss = model.loss_part
        self.check_encoder(model.encoder)
        if loss.predicts != self.predicts:
            raise ValueError(
                f"model.loss is {type(loss).__name__}, which predicts {loss.predicts}, but data of {self.name} are "
                f"predicted as {self.predicts}: choose "
                + ("Contrastive" if self.predicts == "latents" else "ClassTableLoss, as configs/text do")
            )
        if self.is_continuous and getattr(model.predictor, "reads_past_contexts", False):  # one's own may leave it out
            raise ValueError(
                f"model.predictor is {type(model.predictor).__name__}, which reads past contexts, but batches of "
                f"{self.name} go on where the last one ended, and only the state of the context is carried on: choose "
                "cpc.predictors.Bilinear"
            )

    def check_encoder(self, encoder: Any) -> None:
        """Refuse an encoder of other observations.

        Raises:
            ValueError: naming both.
        """
        if encoder.modality != self.name:
            raise ValueError(
                f"model.encoder is {type(encoder).__name__}, which encodes {encoder.modality}, but data is "
                f"{type(self).__name__}, of {self.name}: choose another encoder, or other data"
            )

    @abstractmethod
    def open(self, encoder: Any, *, to_train: bool = False) -> Any:
        """Open the source for an encoder: the corpus.

        Args:
            encoder: whose geometry the observations are cut for.
            to_train: the encoder is new, and takes from the corpus what it must know of it (a vocabulary).

        Raises:
            ValueError: if the source cannot be read or does not fit the encoder.
        """

    def class_names(self, corpus: Any, task: str) -> list[str]:
        """The classes of a task of the online probe; by default there is none.

        Raises:
            ValueError: naming the option, if the data have none.
        """
        raise ValueError(
            f"data of {self.name} have no task {task!r} for an online probe: leave the probe out with "
            "--trainer.callbacks null"
        )

    def standardise(self, encoder: Any, corpus: Any) -> None:  # noqa: B027 - not all observations have statistics
        """Give the encoder the statistics of the training split; by default there are none."""

    @abstractmethod
    def initialisation_batch(self, corpus: Any) -> Tensor:
        """Observations for the data-dependent initialisation: the same on every rank."""

    def readouts(self, encoder: Any, corpus: Any, **where: Any) -> ProbeData:
        """Features, tasks and baselines for probes and embeddings; by default there are none.

        Args:
            encoder: of the model.
            corpus: opened; None: only files outside a corpus are read.
            where: as `ProbeData` takes it.

        Raises:
            ValueError: if there are none.
        """
        raise ValueError(f"this is a model of {self.name}, whose features can be neither probed nor embedded")

    def pictures(self, model: Any, *, split: str, among: str, num_images: int, seed: int) -> dict[str, Any]:
        """What `cpc picture` draws: matplotlib's figures by name; by default there are none.

        Args:
            model: in eval mode.
            split: whose observations are shown.
            among: the split where neighbours are looked for.
            num_images: of each split, at most, drawn at random.
            seed: of all that is drawn.

        Raises:
            ValueError: if there are none, or a split cannot serve.
        """
        raise ValueError(f"this is a model of {self.name}, of which no pictures are drawn")

    @abstractmethod
    def check_split(self, corpus: Any, split: str, strategies: Sequence[str], own: str) -> None:
        """Refuse a split that cannot serve, before anything is decoded.

        Args:
            corpus: opened.
            split: to train or to measure on.
            strategies: whose losses are asked for.
            own: that of training, for whose batches the options speak.

        Raises:
            ValueError: naming the split.
        """

    @abstractmethod
    def training(self, corpus: Any, model: Any, rank: int = 0, world_size: int = 1) -> "Training":
        """The endless stream of training batches of this process."""

    @abstractmethod
    def held_out(
        self,
        corpus: Any,
        model: Any,
        *,
        num_batches: int | None = None,
        seed: int = EVALUATION_SEED,
        rank: int = 0,
        world_size: int = 1,
    ) -> "HeldOutBatches":
        """The held-out batches of this process, the same at every evaluation.

        Args:
            corpus: opened.
            model: to measure.
            num_batches: at most so many; None: as training measures.
            seed: of the batches.
            rank: this process.
            world_size: processes that share the evaluation.
        """


class Training(NamedTuple):
    """The training batches of a process.

    Attributes:
        dataset: `dataset.__getitems__(drawn)` is the `Batch` of what `batches` has drawn.
        batches: an endless stream of draws with `state_dict`, from which a resumed run takes the next one.
        class_entropy_nats: of the classes predicted; None where latents are.
    """

    dataset: Any
    batches: Any
    class_entropy_nats: float | None = None


@runtime_checkable
class HeldOutBatches(Protocol):
    """The held-out batches of a process.

    Attributes:
        split: the part of the data.
        num_batches: of one evaluation.
        seed: of the batches, and of the negatives drawn.
        facts: what else a report says of the split.
    """

    split: str
    num_batches: int
    seed: int
    facts: dict[str, Any]

    @property
    def is_continuous(self) -> bool:
        """Whether each batch goes on where the one before it ended."""
        ...

    @property
    def class_entropy_nats(self) -> float | None:
        """Of the classes predicted; None where latents are."""
        ...

    def sampler_for(self, strategy: str) -> tuple[str, bool]:
        """What decides which batches a strategy is measured on: equal values share batches."""
        ...

    def batches(self, strategy: str) -> Iterator[Batch]:
        """The batches that a strategy is measured on."""
        ...
