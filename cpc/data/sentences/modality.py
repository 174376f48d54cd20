"""Sentences as a modality: books -> vocabulary -> packed tokens -> windows of consecutive sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from cpc.config.argument_rules import Choices, Count, Share
from cpc.data.map_style import MapStyleCorpus, MapStyleModality
from cpc.data.sentences.books import Books
from cpc.data.sentences.corpus import SentenceCorpus
from cpc.data.sentences.probe_data import SentenceProbeData
from cpc.data.store.text_files import Encoding
from cpc.data.text.vocabulary import build_vocabulary, encoder_vocabulary


@dataclass(kw_only=True)
class Sentences(MapStyleModality):
    """Windows of consecutive sentences; the vector of a sentence predicts the vectors of the following sentences.

    Args:
        source: a folder, in which each `*.txt` file is a book (`cpc.data.sentences.books` describes its splits).
        encoding: encoding of the files: `UTF-8`, `latin-1` or `windows-1252`; a byte-order mark overrides it.
        max_tokens: largest number of tokens of a sentence; a longer sentence is cut into several sentences.
        window_sentences: consecutive sentences of an observation.
        passage_sentences: length of a passage of a book. A passage is a sequence: sequence_only negatives come from the
            passage, and the excluding strategies exclude the passage. For same_speaker negatives the book is the
            speaker.
        batch_size: windows per batch and device.
        sampler: `uniform` over all windows, or `same_speaker`, batches of `speakers_per_batch` books.
        speakers_per_batch: books in the batch of all devices together, for `same_speaker`.
        valid_share: share of the books that is held out as split `valid`, if no path names a split.
        test_share: share of the books that is held out as split `test`, if no path names a split.
        cache_dir: folder for packed tokens; null: `.cpc_cache` in the source.
    """

    name = "sentences"
    unit = "windows"
    size_option = "window_sentences"
    held_out_options: ClassVar[tuple[str, ...]] = (
        "batch_size",
        "window_sentences",
        "passage_sentences",
        "sampler",
        "speakers_per_batch",
        "valid_share",
        "test_share",
    )
    probe_options: ClassVar[tuple[str, ...]] = ("encoding",)

    source: str
    encoding: Encoding = "UTF-8"
    max_tokens: Count = 32
    window_sentences: Count = 6
    passage_sentences: Count = 60
    batch_size: Count = 64
    sampler: Literal["uniform", "same_speaker"] = "uniform"
    speakers_per_batch: Count = 1
    valid_share: Share = 0.1
    test_share: Share = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passage_sentences < self.window_sentences:
            least = f"`window_sentences`={self.window_sentences}, but a window must lie in one passage"
            raise ValueError(f"`passage_sentences`={self.passage_sentences} is less than {least}")

    @property
    def cache(self) -> Path:
        """Folder for packed tokens."""
        return Path(self.source) / ".cpc_cache" if self.cache_dir is None else Path(self.cache_dir)

    def books(self) -> Books:
        """Return the books of the source."""
        shares = {"valid_share": self.valid_share, "test_share": self.test_share}
        return Books(self.source, encoding=self.encoding, skip_bad=self.skip_bad, **shares)

    def check(self, model: Any) -> None:
        """Also raise an error if windows are too short for the model's predictions."""
        super().check(model)
        num = self.window_sentences
        self.check_reach(model, num, f"`window_sentences`={num}")

    def open(self, encoder: Any, *, is_training: bool = False) -> SentenceCorpus:
        """Return the corpus in the vocabulary of the encoder, or in a new vocabulary if the encoder is untrained."""
        if not is_training:
            return SentenceCorpus(self, encoder_vocabulary(encoder))
        books, split = self.books(), self.train_split
        Choices(tuple(dict.fromkeys(books.splits))).check(f"{self.source}: `train_split`", split)
        lines = books.split_books(split)
        vocabulary = build_vocabulary(lines, tokens="words", num_tokens=encoder.num_tokens, lower_case=True)
        encoder.vocabulary = vocabulary.description
        corpus = SentenceCorpus(self, vocabulary)
        corpus.books = books
        return corpus

    def standardise(self, encoder: Any, corpus: MapStyleCorpus) -> None:
        """Set nothing, since tokens have no statistics."""

    def probe_data(self, encoder: Any, corpus: Any, **where: Any) -> SentenceProbeData:  # noqa: D102
        return SentenceProbeData(corpus, self.encoding, **where)
