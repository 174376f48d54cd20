"""The interface of a modality: training, evaluation and probes reach observations only through it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from cpc.config.argument_rules import Count, check_fields, plain
from cpc.data.batch import Batch
from cpc.data.probe_data import ProbeData
from cpc.data.store.fingerprints import Content, count_copies, fingerprint_record

EVALUATION_SEED = 0


@dataclass(kw_only=True)
class Modality(ABC):
    """A source of observations, with the options for opening, cutting, batching and holding out.

    The `data` section of a config names a subclass by its class path and sets its fields; a run saves both with its
    model. A subclass is a dataclass with keyword-only fields, `Args:` in its docstring, and the methods below. A field
    that breaks the rule of its annotation (`cpc.config.argument_rules`) is a ValueError.

    Args:
        train_split: split to train on.
        eval_split: held-out split, on which the bound is measured.
        batch_size: observations per batch and device.
        cache_dir: folder for packed data; null: beside the source.
        skip_bad: leave out files that cannot be used, and print how many.

    Attributes:
        name: name of the modality, equal to `encoder.modality` of its encoders.
        unit: noun for the observations of a batch, in the plural.
        source_option: the field that names the source.
        held_out_options: fields that determine the held-out batches, together with the split.
        probe_options: fields that `cpc probe` offers as options, besides the source.
        online_labels: where the labels of the online probe come from, for messages.
        local_options: fields that depend on the machine; they are not saved with a model.
        predicts: target of the loss: `latents`, or `classes` of the following symbols.
        are_rows_known: True if the sequences and lengths of batches are known without reading observations.
        is_whole: True if probes encode each observation as a whole, without padding, so that contexts may read ahead.
        is_continuous: True if each batch continues where the previous one ended, so that contexts are carried over.
        num_workers: loader processes; 0 loads in the training process.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    source_option: ClassVar[str] = "source"
    held_out_options: ClassVar[tuple[str, ...]] = ("batch_size",)
    probe_options: ClassVar[tuple[str, ...]] = ()
    online_labels: ClassVar[str] = "labels"
    local_options: ClassVar[tuple[str, ...]] = ("cache_dir", "cache_gb", "skip_bad", "num_workers")
    predicts: ClassVar[Literal["latents", "classes"]] = "latents"
    are_rows_known: ClassVar[bool] = False
    is_whole: ClassVar[bool] = False
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
        """Every field by its name; nested options are dictionaries."""
        return plain(asdict(self))

    @property
    def saved_settings(self) -> dict[str, Any]:
        """The settings that a run saves with its model, in the form of `cpc.config.description.build`."""
        cls = type(self)
        fields = {name: value for name, value in self.options.items() if name not in self.local_options}
        return {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": fields}

    @property
    def held_out_protocol(self) -> dict[str, Any]:
        """The split and the options of its batches; two bounds are comparable if these are equal."""
        return {"split": self.eval_split} | {name: getattr(self, name) for name in self.held_out_options}

    def of_all_ranks(self, num_ranks: int) -> "Modality":
        """Return a copy for a single process. Its batch is as large as the batches of all ranks together."""
        return replace(self, batch_size=num_ranks * self.batch_size)

    def check(self, model: Any) -> None:
        """Raise a ValueError if encoder, loss or predictor do not fit the modality; the source is not opened."""
        loss = model.loss_part
        self.check_encoder(model.encoder)
        if loss.predicts != self.predicts:
            legal = "Contrastive" if self.predicts == "latents" else "ClassTableLoss"
            found = f"model.loss is {type(loss).__name__}, which predicts {loss.predicts}"
            raise ValueError(f"{found}, but for data of {self.name} it must predict {self.predicts}, as {legal} does")
        if getattr(model.context, "reads_ahead", False) and not self.is_whole:
            found = f"model.context is {type(model.context).__name__}, which reads ahead"
            raise ValueError(f"{found}, but {self.name} are not encoded as a whole: choose a causal context, as GRU")
        if self.is_continuous and getattr(model.predictor, "reads_past_contexts", False):  # a user's class may lack it
            found = f"model.predictor is {type(model.predictor).__name__}, which reads past contexts"
            kept = f"batches of {self.name} keep only the state of the context: choose cpc.predictors.Bilinear"
            raise ValueError(f"{found}, but {kept}")

    def check_encoder(self, encoder: Any) -> None:
        """Raise a ValueError that names both modalities if the encoder is of another one."""
        if encoder.modality != self.name:
            found = f"model.encoder is {type(encoder).__name__}, which encodes {encoder.modality}"
            raise ValueError(f"{found}, but data is {type(self).__name__}, which reads {self.name}")

    @abstractmethod
    def open(self, encoder: Any, *, is_training: bool = False) -> Any:
        """Open the source for an encoder, and return the corpus; a source that does not fit is a ValueError.

        With `is_training` the encoder is untrained and gets its settings from the corpus, such as a vocabulary.
        """

    def online_tasks(self, corpus: Any) -> Mapping[str, Sequence[str]]:
        """Return the tasks of the online probe with their classes, which are empty without labels; by default none."""
        return {}

    def class_names(self, corpus: Any, task: str) -> list[str]:
        """Return the classes of a task of the online probe; a task without classes is a ValueError."""
        tasks = self.online_tasks(corpus)
        if not tasks.get(task):
            known = ", ".join(name for name, classes in tasks.items() if classes) or "none"
            advice = f": add {self.online_labels}" if tasks else ""
            found = f"data of {self.name} have no task {task!r} for an online probe"
            raise ValueError(f"{found}; their tasks are {known}{advice}")
        return list(tasks[task])

    def prepare(self, corpus: Any, *, is_training: bool = False) -> None:  # noqa: B027 - not all corpora are decoded
        """Decode the corpus, or open its pack, after `check_split` and before batches; by default nothing is done."""

    def standardise(self, encoder: Any, corpus: Any) -> None:  # noqa: B027 - not all observations have statistics
        """Set the encoder's input statistics to those of the training split; by default nothing is set."""

    @abstractmethod
    def initialisation_batch(self, corpus: Any) -> Tensor:
        """Return observations for the data-dependent initialisation; every rank gets the same."""

    def content(self, corpus: Any, split: str) -> Content | None:
        """Return numbers that depend on the content of each file of a split; None, the default, if not at hand."""
        return None

    def trained_on(self, corpus: Any) -> dict[str, Any] | None:
        """Return the record of the files of the training split (`cpc.data.store.fingerprints`), if `content` is."""
        return fingerprint_record(self.content(corpus, self.train_split))

    def held_out_copies(self, corpus: Any, trained_on: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return how many held-out files are in a record of training files (`count_copies`); None if unknown."""
        content = self.content(corpus, self.eval_split)
        return None if content is None else count_copies(content, trained_on, corpus.nouns[1])

    def probe_data(self, encoder: Any, corpus: Any, **where: Any) -> ProbeData:
        """Return the features, tasks and baselines for probes and embeddings; by default none, a ValueError.

        `corpus` is None if only files outside a corpus are read; `where` are other arguments of `ProbeData`.
        """
        raise ValueError(f"this is a model of {self.name}, whose features cannot be probed or embedded")

    @abstractmethod
    def check_split(self, corpus: Any, split: str, strategies: Sequence[str], own: str) -> None:
        """Raise a ValueError that names a split which cannot be used, before anything is decoded.

        `strategies` are those whose losses will be computed; the options of batches apply only to `own`, of training.
        """

    def unread_speakers(self, strategies: Sequence[str], own: str) -> str:
        """Return a warning if no batch for these strategies depends on `speakers_per_batch`, else ""."""
        return ""

    def measurable(self, corpus: Any, split: str, strategies: Sequence[str]) -> tuple[str, ...]:
        """Return the strategies without the extra ones that the split has no negatives for; by default all."""
        return tuple(strategies)

    def held_out_files(self, held_out: "HeldOutBatches") -> dict[str, Any]:
        """Return properties of the held-out files that a resumed run compares; by default none."""
        return {}

    @abstractmethod
    def training(self, corpus: Any, model: Any, rank: int = 0, world_size: int = 1) -> "Training":
        """Return the endless stream of training batches of this process."""

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
        """Return the held-out batches of this process, at most `num_batches` (None: the number in training)."""


class Training(NamedTuple):
    """The training batches of a process."""

    dataset: Any  # data set whose `__getitems__` returns the `Batch` for an index that `batches` yields
    batches: Any  # an endless stream of indices; a resumed run continues from its `state_dict`
    class_entropy_nats: float | None = None  # entropy of the predicted classes; None if latents are predicted


@runtime_checkable
class HeldOutBatches(Protocol):
    """The held-out batches of a process."""

    split: str  # the held-out split
    num_batches: int  # number of batches of one evaluation
    seed: int  # seed of the batches and of sampled negatives
    facts: dict[str, Any]  # other facts about the split, for reports
    is_continuous: bool  # True if each batch continues where the previous one ended
    class_entropy_nats: float | None  # entropy of the predicted classes; None if latents are predicted

    def sampler_for(self, strategy: str) -> tuple[str, bool]:
        """Return the sampler of a strategy's batches. Strategies with the same sampler share batches."""
        ...

    def batches(self, strategy: str) -> Iterator[Batch]:
        """Yield the batches on which a strategy is evaluated."""
        ...
