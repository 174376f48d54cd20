"""Text as a modality: source -> vocabulary -> packed tokens -> lanes (parallel stretches of text).

A lane is read chunk by chunk: row b of a batch continues row b of the previous batch, so contexts carry a state. B
lanes of this process, T tokens of a lane in a batch, K furthest predicted step, N tokens of the text.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cpc.config.argument_rules import Count, Share
from cpc.data.batch import UNLABELLED, Batch
from cpc.data.modality import EVALUATION_SEED, Modality, Training
from cpc.data.store.fingerprints import Content
from cpc.data.streams.stream import ResumableIndex, naming
from cpc.data.text.corpus import TokenCorpus, entropy_nats, training_vocabulary
from cpc.data.text.lines import ALL, DEFAULT_SHARE, EMBEDDED
from cpc.data.text.lines import Text as Lines
from cpc.data.text.vocabulary import Tokens, encoder_vocabulary


class TrainingLanes:
    """Training batches for truncated back-propagation through time: B parallel lanes through one cyclic stream.

    Of L lanes on all processes, lane b starts at token b N / L. After N / L tokens it continues with the tokens of lane
    b + 1; the first token of the text follows its last. So no state is discarded and no token left out. `stream` has no
    leading `<eos>`, `chunk_tokens` is T, `num_ahead` K.
    """

    def __init__(
        self,
        stream: Int[np.ndarray, " N"],
        num_lanes: int,
        chunk_tokens: int,
        num_ahead: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        lanes = rank * num_lanes + np.arange(num_lanes)
        total = num_lanes * world_size
        if len(stream) < total * chunk_tokens:
            made = f"{len(stream)} tokens make {total} lanes of {len(stream) // total}"
            raise ValueError(f"{made}, shorter than chunk_tokens={chunk_tokens}: lower `batch_size` or `chunk_tokens`")
        self.stream, self.chunk_tokens, self.num_ahead, self._lanes = stream, chunk_tokens, num_ahead, lanes
        self._starts = lanes * len(stream) // total
        self.batches_per_epoch = len(stream) / (total * chunk_tokens)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the batch with the index that a `ResumableIndex` yields."""
        (index,) = indices
        return self[index]

    def __getitem__(self, index: int) -> Batch:
        """Return batch number `index`, which depends only on this index."""
        first = self._starts + index * self.chunk_tokens
        indices = first[:, None] + np.arange(self.chunk_tokens + self.num_ahead)
        tokens = torch.from_numpy(self.stream[indices % len(self.stream)].astype(np.int64))
        lanes = torch.from_numpy(self._lanes)
        num_valid, group_id = torch.full_like(lanes, self.chunk_tokens), torch.full_like(lanes, -1)
        return Batch(tokens[:, : self.chunk_tokens], num_valid, lanes, group_id, labels=tokens[:, 1:])


def held_out_lanes(
    stream: Int[np.ndarray, " N"],
    num_lanes: int,
    chunk_tokens: int,
    num_ahead: int = 1,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Batch]:
    """Yield a whole split in continuous batches; every token except the first is predicted.

    The stream begins with `<eos>` and is cut into as many parts as there are lanes on all processes; after its end a
    lane holds padding (`num_valid`) and labels -100. Every lane except the first starts without context.
    """
    num_inputs = len(stream) - 1
    total = num_lanes * world_size
    edges = np.arange(total + 1) * num_inputs // total
    lanes = rank * num_lanes + np.arange(num_lanes)
    starts, ends = edges[lanes], edges[lanes + 1]
    padded = np.concatenate([stream, np.full(chunk_tokens + num_ahead, UNLABELLED, stream.dtype)])
    for offset in range(0, int((ends - starts).max(initial=0)), chunk_tokens):
        first = np.minimum(starts + offset, num_inputs)
        tokens = torch.from_numpy(padded[first[:, None] + np.arange(chunk_tokens + num_ahead)].astype(np.int64))
        num_valid = torch.from_numpy(np.clip(ends - first, 0, chunk_tokens))
        x: Tensor = tokens[:, :chunk_tokens].clamp(min=0)
        yield Batch(x, num_valid, torch.from_numpy(lanes), torch.full((num_lanes,), -1), tokens[:, 1:])


@dataclass(kw_only=True)
class Text(Modality):
    """Text in lanes; contexts are carried over between batches, and the model predicts the following tokens.

    A lane is a continuous stretch of text: each batch holds the next chunk of every lane. The number of batches in an
    epoch is the number of tokens divided by `batch_size` x `chunk_tokens` x devices.

    Args:
        source: a UTF-8 file, a folder of `*.txt` files, or `embedded`, prose that ships with Python
            (`cpc.data.text.lines` describes the splits).
        tokens: `words`: words and punctuation marks; `whitespace`: tokens that white space separates, for tokenised
            text; `subwords`: byte pairs. `model.encoder.init_args.num_tokens` sets the size of the vocabulary.
        lower_case: convert the text to lower case first.
        chunk_tokens: tokens of each lane in a batch; gradients flow within a chunk, contexts across chunks.
        batch_size: lanes per device, in training and on held-out text.
        eval_split: held-out split, on which the perplexity is measured; every evaluation reads all of it. `all`: every
            line of the source.
        valid_share: share of the lines that is held out as split `valid`, if no file name has the split `valid`.
        test_share: share of the lines that is held out as split `test`, if no file names a split.
        cache_dir: folder for the packed tokens; null: beside the text. The embedded prose is kept in memory.
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
        """Also raise an error if the context's state would grow with the text, or the loss has no full softmax."""
        super().check(model)
        context = model.context
        if not getattr(context, "has_bounded_state", True):  # a user's class may lack the attribute
            found = f"the context is a {type(context).__name__} without a window"
            raise ValueError(f"{found}, so its state would grow with every chunk of text: set `context.window`")
        model.loss_part.check_exact()  # the perplexity of held-out text needs the full softmax

    def open(self, encoder: Any, *, is_training: bool = False) -> TokenCorpus:
        """Return the corpus in the vocabulary of the encoder, or in a new vocabulary if the encoder is untrained."""
        shares = {"valid_share": self.valid_share, "test_share": self.test_share}
        text = Lines(self.source, skip_bad=self.skip_bad, is_whole=self.eval_split == ALL, **shares)
        if is_training:
            vocabulary = training_vocabulary(text, encoder.num_tokens, self.tokens, self.lower_case, self.cache_dir)
            encoder.vocabulary = vocabulary.description
        return TokenCorpus(text, encoder_vocabulary(encoder), self.cache_dir)

    def initialisation_batch(self, corpus: TokenCorpus) -> Tensor:
        """Return the first batch of the training text."""
        return TrainingLanes(corpus.stream(self.train_split)[1:], self.batch_size, self.chunk_tokens)[0].x

    def content(self, corpus: TokenCorpus, split: str) -> Content:
        """Return the content of blocks of 20 lines."""
        return corpus.text.content(split)

    def check_split(self, corpus: TokenCorpus, split: str, strategies: Sequence[str], own: str) -> None:
        """Raise an error if the text does not have the split."""
        corpus.stream(split)

    def training(self, corpus: TokenCorpus, model: Any, rank: int = 0, world_size: int = 1) -> Training:
        """Return endless lanes through the training text. If the loss has a sampler, pass the token counts to it."""
        stream, furthest = corpus.stream(self.train_split)[1:], model.steps[-1].k
        ranks = {"rank": rank, "world_size": world_size}
        with naming(self.train_split):
            lanes = TrainingLanes(stream, self.batch_size, self.chunk_tokens, furthest, **ranks)
        sampler, counts = model.loss_part.sampler, corpus.counts(self.train_split)
        if sampler is not None:
            # Counts are at least 1, since a token that the training text lacks, such as <unk>, may be in held-out text.
            sampler.follow(torch.from_numpy(counts.clip(min=1)))
            global_lanes = TrainingLanes(stream, self.batch_size * world_size, self.chunk_tokens, furthest)
            sampler.look_ahead(lambda batch: global_lanes[batch].labels, math.ceil(global_lanes.batches_per_epoch))
        batches = ResumableIndex(
            {
                "text and vocabulary": corpus.digest,
                "train_split": self.train_split,
                "batch_size": self.batch_size,
                "chunk_tokens": self.chunk_tokens,
                "world_size": world_size,
            }
            # With version 1 there is no such key, so that runs from before the key can be resumed.
            | ({} if corpus.text.segmentation == 1 else {"segmentation": corpus.text.segmentation})
        )
        return Training(lanes, batches, entropy_nats(counts))

    def held_out(self, corpus: TokenCorpus, model: Any, *, rank: int = 0, world_size: int = 1, **_: Any) -> "WholeText":
        """Return batches of the whole held-out split; `num_batches` and `seed` have no effect."""
        return WholeText(corpus, self, model.steps[0].k, model.steps[-1].k, rank, world_size)


class WholeText:
    """The batches of a whole split, the same in every evaluation. Each batch continues where the previous batch ended.

    The entropy of the tokens comes from their frequencies in the split. For n tokens of V kinds this entropy is on
    average about (V - 1) / 2n too low, so H - L is not too high.
    """

    is_continuous = True
    seed = EVALUATION_SEED

    def __init__(
        self, corpus: TokenCorpus, options: Text, nearest: int, furthest: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.split = options.eval_split
        self.stream = corpus.stream(self.split)
        self.class_entropy_nats: float | None = entropy_nats(corpus.counts(self.split))
        num_lanes, num_tokens = options.batch_size * world_size, len(self.stream) - 1
        if num_tokens < num_lanes:
            raise ValueError(f"split {self.split!r} has {num_tokens} tokens for {num_lanes} lanes: lower `batch_size`")
        self.num_batches = -(-num_tokens // (num_lanes * options.chunk_tokens))
        self.facts: dict[str, Any] = {
            "num_tokens": len(corpus.vocabulary),
            "token_entropy_nats": self.class_entropy_nats,
            "unknown_share": float((self.stream[1:] == corpus.vocabulary.unknown).mean()),
        }
        self._options, self._nearest, self._furthest = options, nearest, furthest
        self._ranks = {"rank": rank, "world_size": world_size}

    def sampler_for(self, strategy: str) -> tuple[str, bool]:
        """Return the same value for every strategy."""
        return "lanes", False

    def batches(self, strategy: str) -> Iterator[Batch]:
        """Yield all batches that have a token to predict; the last batch of the text may have no such token."""
        sizes = (self._options.batch_size, self._options.chunk_tokens)
        for batch in held_out_lanes(self.stream, *sizes, self._furthest, **self._ranks):
            positions = torch.arange(batch.x.shape[1])
            has_label = batch.labels[:, self._nearest - 1 :][:, : len(positions)] >= 0
            assert batch.num_valid is not None
            if (has_label & (positions < batch.num_valid[:, None])).any():
                yield batch
