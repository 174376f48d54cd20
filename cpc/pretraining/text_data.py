"""Text for training: source -> vocabulary -> packed tokens -> lanes that resume exactly."""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.batch import Batch
from cpc.data.streams.lanes import LaneOrder, TrainingLanes
from cpc.data.streams.stream import naming
from cpc.data.text.corpus import TokenCorpus, entropy_nats
from cpc.data.text.lines import DEFAULT_SHARE, EMBEDDED
from cpc.data.text.vocabulary import Tokens
from cpc.evaluation import HeldOutText, TextProtocol
from cpc.model import CPC
from cpc.pretraining.data import PretrainingData, require_positive
from cpc.probes.online import OnlineProbe


class TextData(PretrainingData):
    """Text in lanes, contexts carried on; its arguments are the `data` section of a config with `modality: text`.

    An epoch is the number of tokens over `batch_size` x `chunk_tokens` x the number of devices.

    Args:
        source: a UTF-8 file, a folder of `*.txt` files, or `embedded`, prose that Python brings along
            (`cpc.data.text.lines` says how files are told to splits).
        tokens: `words`: words and punctuation marks; `whitespace`: what stands between white space, of text that is
            tokenised already; `subwords`: byte pairs. As many as `model.encoder.init_args.num_tokens`.
        lower_case: put the text in lower case first.
        chunk_tokens: of each lane in a batch, through which gradients run; contexts are carried further.
        batch_size: lanes per device, in training and on held-out text.
        train_split: what is trained on.
        eval_split: the held-out part for the perplexity, read whole every time.
        valid_share: of the lines, held out as split `valid` where no file is named so.
        test_share: likewise, as `test` where no file names a split.
        cache_dir: where the packed tokens go; null: beside the text. The embedded prose is kept in memory.
        skip_bad: go on without files that are not UTF-8, and say how many.
    """

    modality = "text"
    unit = "chunks"
    predicts = "classes"
    is_continuous = True

    def __init__(
        self,
        source: str = EMBEDDED,
        tokens: Tokens = "words",
        lower_case: bool = False,
        chunk_tokens: int = 35,
        batch_size: int = 20,
        train_split: str = "train",
        eval_split: str = "valid",
        valid_share: float = DEFAULT_SHARE,
        test_share: float = DEFAULT_SHARE,
        cache_dir: str | None = None,
        skip_bad: bool = False,
    ) -> None:
        super().__init__(batch_size, train_split, eval_split, num_workers=0)
        require_positive(chunk_tokens=chunk_tokens)
        self._source = source
        self.tokens: Tokens = tokens
        self.lower_case = lower_case
        self.chunk_tokens = chunk_tokens
        self.valid_share = valid_share
        self.test_share = test_share
        self.cache_dir = cache_dir
        self.skip_bad = skip_bad

    @property
    def source(self) -> str:
        """The file, the folder, or `embedded`."""
        return self._source

    @property
    def protocol(self) -> TextProtocol:
        """Held-out text is read as training's is."""
        return TextProtocol(
            split=self.eval_split,
            batch_size=self.batch_size,
            chunk_tokens=self.chunk_tokens,
            valid_share=self.valid_share,
            test_share=self.test_share,
        )

    def class_names(self, task: str) -> list[str]:
        """Text has none.

        Raises:
            ValueError: whatever the task.
        """
        raise ValueError(f"there is no online probe of text, of {task!r} or anything: leave trainer.callbacks out")

    def initialisation_batch(self) -> Tensor:
        """The first tokens."""
        return self._lanes[0].x

    @cached_property
    def class_entropy_nats(self) -> float:
        """Of the tokens trained on."""
        return entropy_nats(self.corpus.counts(self.train_split))

    def setup(self, stage: str) -> None:
        """Read the text, check that model and options fit it, and tell the model what its tokens are."""
        if self.corpus is not None:
            return
        model: CPC = self.trainer.lightning_module.model  # type: ignore[assignment]
        self._check_parts(model)
        check_context(model.context)
        model.loss_part.check_exact()  # held-out text is measured by the full softmax
        for probe in self.trainer.callbacks:
            if isinstance(probe, OnlineProbe):
                self.class_names(probe.task)
        self.corpus = TokenCorpus(
            self.protocol.text(self.source, skip_bad=self.skip_bad),
            tokens=self.tokens,
            num_tokens=model.encoder.num_tokens,
            lower_case=self.lower_case,
            cache_dir=self.cache_dir,
        )
        model.encoder.vocabulary = self.corpus.vocabulary.description
        ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        stream, furthest = self.corpus.stream(self.train_split)[1:], model.steps[-1].k
        with naming(self.train_split):
            self._lanes = TrainingLanes(stream, self.batch_size, self.chunk_tokens, furthest, **ranks)
        sampler = model.loss_part.sampler
        if sampler is not None:
            # a token that training text lacks, such as a character's <unk>, may still be met held out
            sampler.follow(torch.from_numpy(self.corpus.counts(self.train_split).clip(min=1)))
            of_all = TrainingLanes(stream, self.batch_size * self.trainer.world_size, self.chunk_tokens, furthest)
            sampler.look_ahead(lambda batch: of_all[batch].labels, math.ceil(of_all.batches_per_epoch))
        self.batches = LaneOrder(
            {
                "text and vocabulary": self.corpus.digest,
                "train_split": self.train_split,
                "batch_size": self.batch_size,
                "chunk_tokens": self.chunk_tokens,
                "world_size": self.trainer.world_size,
            }
        )
        self.held_out = HeldOutText(self.corpus, self.protocol, furthest, **ranks)

    def train_dataloader(self) -> StatefulDataLoader:
        """Batches without end, which `trainer.max_steps` cuts: a resumed run takes the next one."""
        return StatefulDataLoader(
            self._lanes,
            batch_sampler=self.batches,
            collate_fn=_only,
            generator=torch.Generator(),  # so that the loader draws nothing from the global one
        )


def check_context(context: Any) -> None:
    """Refuse a context whose state, which every chunk hands on to the next, would grow with the text.

    Raises:
        ValueError: naming the option.
    """
    if not getattr(context, "has_bounded_state", True):  # a context of one's own may leave it out, and is believed
        raise ValueError(
            f"the context is a {type(context).__name__} without a window, and contexts are carried on over all of the "
            "text: its state would grow with every chunk; set model.context.init_args.window"
        )


def _only(batches: list[Batch]) -> Batch:
    return batches[0]
