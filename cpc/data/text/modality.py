"""Text as a modality: source -> vocabulary -> packed tokens -> lanes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cpc.config.argument_rules import Count, Share
from cpc.data.batch import Batch
from cpc.data.modality import EVALUATION_SEED, Modality, Training
from cpc.data.streams.continuous_batches import TrainingLanes, held_out_lanes
from cpc.data.streams.resumable_index import ResumableIndex
from cpc.data.streams.stream import naming
from cpc.data.text.corpus import TokenCorpus, entropy_nats, training_vocabulary
from cpc.data.text.lines import ALL, DEFAULT_SHARE, EMBEDDED
from cpc.data.text.lines import Text as Lines
from cpc.data.text.vocabulary import Tokens, Vocabulary


@dataclass(kw_only=True)
class Text(Modality):
    """Text in lanes, contexts carried on; the model predicts the tokens that follow.

    An epoch is the number of tokens over `batch_size` x `chunk_tokens` x the number of devices.

    Args:
        source: a UTF-8 file, a folder of `*.txt` files, or `embedded`, prose that ships with Python
            (`cpc.data.text.lines` says which file belongs to which split).
        tokens: `words`: words and punctuation marks; `whitespace`: what white space separates, of text that is
            tokenised already; `subwords`: byte pairs. As many as `model.encoder.init_args.num_tokens`.
        lower_case: put the text in lower case first.
        chunk_tokens: of each lane in a batch, through which gradients run; contexts are carried further.
        batch_size: lanes per device, in training and on held-out text.
        train_split: what is trained on.
        eval_split: the held-out part that the perplexity is measured on, read whole every time; `all`: every line.
        valid_share: of the lines, held out as split `valid` where no file is named so.
        test_share: likewise, as `test` where no file names a split.
        cache_dir: where the packed tokens go; null: beside the text. The embedded prose is kept in memory.
        skip_bad: go on without files that are not UTF-8, and say how many.
    """

    name = "text"
    unit = "chunks"
    predicts = "classes"
    is_continuous = True
    held_out_options: ClassVar[tuple[str, ...]] = ("batch_size", "chunk_tokens", "valid_share", "test_share")

    source: str = EMBEDDED
    tokens: Tokens = "words"
    lower_case: bool = False
    chunk_tokens: Count = 35
    batch_size: Count = 20
    valid_share: Share = DEFAULT_SHARE
    test_share: Share = DEFAULT_SHARE

    def check(self, model: Any) -> None:
        """Also refuse contexts whose state would grow with the text, and losses without a full softmax."""
        super().check(model)
        context = model.context
        if not getattr(context, "has_bounded_state", True):  # a context of one's own may leave it out, and is believed
            raise ValueError(
                f"the context is a {type(context).__name__} without a window, and contexts are carried on over all of "
                "the text: its state would grow with every chunk; set model.context.init_args.window"
            )
        model.loss_part.check_exact()  # held-out text is measured by the full softmax

    def open(self, encoder: Any, *, to_train: bool = False) -> TokenCorpus:
        """The source's tokens: in the vocabulary of a trained encoder, or in one made for an encoder to train."""
        text = Lines(
            self.source,
            valid_share=self.valid_share,
            test_share=self.test_share,
            skip_bad=self.skip_bad,
            is_whole=self.eval_split == ALL,
        )
        if to_train:
            vocabulary = training_vocabulary(text, encoder.num_tokens, self.tokens, self.lower_case, self.cache_dir)
            encoder.vocabulary = vocabulary.description
            return TokenCorpus(text, vocabulary, self.cache_dir)
        if encoder.vocabulary is None:
            raise ValueError(
                "the model holds no vocabulary, so it cannot read text: it was not trained by cpc pretrain"
            )
        try:
            vocabulary = Vocabulary(**encoder.vocabulary)
        except TypeError as error:
            raise ValueError(f"the vocabulary in the model's config.json cannot be read: {error}") from error
        return TokenCorpus(text, vocabulary, self.cache_dir)

    def initialisation_batch(self, corpus: TokenCorpus) -> Tensor:
        """The first tokens."""
        return TrainingLanes(corpus.stream(self.train_split)[1:], self.batch_size, self.chunk_tokens)[0].x

    def check_split(self, corpus: TokenCorpus, split: str, strategies: Sequence[str], own: str) -> None:
        """Refuse a split that is not there."""
        corpus.stream(split)

    def training(self, corpus: TokenCorpus, model: Any, rank: int = 0, world_size: int = 1) -> Training:
        """Lanes through the training text without end; a sampler of the loss learns the tokens' frequencies."""
        stream, furthest = corpus.stream(self.train_split)[1:], model.steps[-1].k
        ranks = {"rank": rank, "world_size": world_size}
        with naming(self.train_split):
            lanes = TrainingLanes(stream, self.batch_size, self.chunk_tokens, furthest, **ranks)
        sampler, counts = model.loss_part.sampler, corpus.counts(self.train_split)
        if sampler is not None:
            # a token that training text lacks, such as a character's <unk>, may still occur in held-out text
            sampler.follow(torch.from_numpy(counts.clip(min=1)))
            of_all = TrainingLanes(stream, self.batch_size * world_size, self.chunk_tokens, furthest)
            sampler.look_ahead(lambda batch: of_all[batch].labels, math.ceil(of_all.batches_per_epoch))
        order = ResumableIndex(
            {
                "text and vocabulary": corpus.digest,
                "train_split": self.train_split,
                "batch_size": self.batch_size,
                "chunk_tokens": self.chunk_tokens,
                "world_size": world_size,
            }
            # runs of the first segmentation name none
            | ({} if corpus.text.segmentation == 1 else {"segmentation": corpus.text.segmentation})
        )
        return Training(lanes, order, entropy_nats(counts))

    def held_out(
        self,
        corpus: TokenCorpus,
        model: Any,
        *,
        num_batches: int | None = None,
        seed: int = EVALUATION_SEED,
        rank: int = 0,
        world_size: int = 1,
    ) -> "WholeText":
        """All of the held-out split, from end to end: `num_batches` is not asked for, and nothing is drawn."""
        return WholeText(corpus, self, model.steps[0].k, model.steps[-1].k, rank, world_size)


class WholeText:
    """The batches of a whole split, the same at every evaluation; each goes on where the one before it ended.

    Attributes:
        class_entropy_nats: of the split's tokens, from their frequencies in it: on average low, by about (V - 1) / 2n
            for V tokens that occur, so that what H - L certifies is not too much.
        num_batches: on all processes.

    Raises:
        ValueError: if there is no such split, or it has fewer tokens than lanes.
    """

    is_continuous = True
    seed = EVALUATION_SEED

    def __init__(
        self, corpus: TokenCorpus, options: Text, nearest: int, furthest: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.split = options.eval_split
        self.stream = corpus.stream(self.split)
        self.class_entropy_nats = entropy_nats(corpus.counts(self.split))
        num_lanes, num_tokens = options.batch_size * world_size, len(self.stream) - 1
        if num_tokens < num_lanes:
            raise ValueError(
                f"split {self.split!r} has {num_tokens} tokens for {num_lanes} lanes: lower `batch_size`, or hold "
                "more out"
            )
        self.num_batches = -(-num_tokens // (num_lanes * options.chunk_tokens))
        self.facts: dict[str, Any] = {
            "num_tokens": len(corpus.vocabulary),
            "token_entropy_nats": self.class_entropy_nats,
            "unknown_share": float((self.stream[1:] == corpus.vocabulary.unknown).mean()),
        }
        self._options, self._nearest, self._furthest = options, nearest, furthest
        self._ranks = {"rank": rank, "world_size": world_size}

    def sampler_for(self, strategy: str) -> tuple[str, bool]:
        """One way for every strategy."""
        return "lanes", False

    def batches(self, strategy: str) -> Iterator[Batch]:
        """From the first to the last that has a token to predict: nothing may follow the end of a text."""
        sizes = (self._options.batch_size, self._options.chunk_tokens)
        for batch in held_out_lanes(self.stream, *sizes, self._furthest, **self._ranks):
            places = torch.arange(batch.x.shape[1])
            is_known = batch.labels[:, self._nearest - 1 :][:, : len(places)] >= 0
            assert batch.num_valid is not None
            if (is_known & (places < batch.num_valid[:, None])).any():
                yield batch
