"""Labelled sentences' features, tasks and baselines: latents and contexts of single sentences, words, bags of words.

B sentences of a batch, D feature dim.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array, hstack
from sklearn.preprocessing import StandardScaler

from cpc.data.probe_data import FeatureExtractor, Labels, Precision, ProbeData
from cpc.data.sentences.bags import SparseRows
from cpc.data.sentences.books import Books
from cpc.data.sentences.corpus import SentenceCorpus
from cpc.data.sentences.labelled import WHOLE, LabelledSentences, read_labelled
from cpc.data.sentences.splitting import read_sentences
from cpc.data.sentences.windows import stacked
from cpc.data.sentences.word_vectors import WordVectors, expand, learn_vectors
from cpc.data.store.folders import find_files
from cpc.data.store.text_files import Encoding
from cpc.data.text.vocabulary import encoder_vocabulary

_BATCH_SENTENCES = 256
NUM_FOLDS = 10
EXPANDED = "_expanded"


class LearntSentences(FeatureExtractor):
    """What a model says about single sentences.

    `z` is the latent, `c` the context of the sentence alone, `words` the mean of its words' embeddings. `z_expanded`
    and `words_expanded` are those of a model with more words (`expand`). `z_bow` is z beside the bag of words: both
    standardised or scaled over a set's sentences, so that their rows have a mean square length of 1.

    Args:
        features: of these.
        model: in eval mode.
        labelled: the sentences; None: only files outside a corpus are read.
        vectors: of words; None: no feature is expanded.
        encoding: of files outside a corpus.
        device: where the model is.
        precision: of the model's products.
    """

    def __init__(
        self,
        features: Sequence[str],
        model: Any,
        labelled: LabelledSentences | None,
        vectors: WordVectors | None,
        encoding: Encoding,
        device: str,
        precision: Precision,
    ) -> None:
        self.features, self.labelled, self.encoding = features, labelled, encoding
        self.device, self.precision = device, precision
        self.models = {"": model} if vectors is None else {"": model, EXPANDED: expand(model, vectors)}
        dims = {"z": model.encoder.dim, "c": model.context.dim, "words": model.encoder.embedding_dim}
        self.dims = {name: dims[name.removesuffix(EXPANDED)] for name in features if name != "z_bow"}

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Sentences of about the same length."""
        by_length = rows[np.argsort([len(self._sentence(row)) for row in rows.tolist()], kind="stable")]
        return [by_length[i : i + _BATCH_SENTENCES] for i in range(0, len(rows), _BATCH_SENTENCES)]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Each sentence by itself."""
        found = self._features([[self._sentence(row)] for row in rows.tolist()], self.dims)
        for i, row in enumerate(rows.tolist()):
            yield row, {name: values[i] for name, values in found.items()}

    def sparse(self, rows: np.ndarray) -> Mapping[str, SparseRows]:
        """`z_bow`, if it is asked for."""
        if "z_bow" not in self.features:
            return {}
        assert self.labelled is not None
        latents = np.empty((len(rows), self.models[""].encoder.dim), np.float32)
        for group in self.groups(rows):
            (found,) = self._features([[self._sentence(row)] for row in group.tolist()], ["z"]).values()
            latents[np.searchsorted(rows, group)] = found[:, 0]
        sets = np.array(self.labelled.sets)[rows]
        for name in dict.fromkeys(sets.tolist()):
            latents[sets == name] = StandardScaler().fit_transform(latents[sets == name])
        beside = [csr_array(latents / latents.shape[1] ** 0.5), self.labelled.bags("bow")[rows]]
        return {"z_bow": SparseRows(hstack(beside, format="csr", dtype=np.float32))}

    def geometry(self, feature: str) -> dict[str, Any]:
        """Of `z_bow` the name says it all."""
        return {"features": feature} if feature == "z_bow" else super().geometry(feature)

    def file_features(self, path: Path) -> Float[np.ndarray, "T D"]:
        """Every sentence of a book, with its context."""
        sentences = read_sentences(path, self.encoding)
        if not sentences:
            raise ValueError(f"{path}: is empty, it has no sentence")
        return next(iter(self._features([sentences], self.features).values()))[0]

    def _sentence(self, row: int) -> str:
        assert self.labelled is not None
        return self.labelled.sentences[row]

    @torch.inference_mode()
    def _features(
        self, windows: Sequence[Sequence[str]], names: Iterable[str]
    ) -> dict[str, Float[np.ndarray, "B T D"]]:
        found: dict[str, np.ndarray] = {}
        for version, model in self.models.items():
            vocabulary = encoder_vocabulary(model.encoder)
            tokens = [[vocabulary.encode(sentence) for sentence in window] for window in windows]
            x = stacked(tokens, len(windows[0])).to(self.device)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
                latents, contexts, _ = model.encode(x)
            values = {"z": latents, "c": contexts, "words": model.encoder.mean_of_words(x)}
            found |= {name + version: value.float().cpu().numpy() for name, value in values.items()}
        return {name: found[name] for name in names}


class BagsOfWords(FeatureExtractor):
    """Bags of words of labelled sentences (`cpc.data.sentences.bags`).

    Args:
        kind: `bow` or `tfidf`.
        labelled: the sentences.
    """

    dims: Mapping[str, int] = {}

    def __init__(self, kind: str, labelled: LabelledSentences) -> None:
        self.kind, self.labelled = kind, labelled

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Nothing is read row by row."""
        return []

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Nothing."""
        return iter(())

    def sparse(self, rows: np.ndarray) -> Mapping[str, SparseRows]:
        """Of all rows at once."""
        return {self.kind: SparseRows(self.labelled.bags(self.kind)[rows])}

    def geometry(self, feature: str) -> dict[str, Any]:
        """Its words and pairs."""
        return {"features": feature, "dim": self.labelled.bags(self.kind).shape[1]}


class SentenceProbeData(ProbeData):
    """Features of labelled sentences, each alone. Tasks are the sets that lie in the source (`read_labelled`).

    Args:
        corpus: names the source; None: only files outside a corpus are read.
        encoding: of files.
        text: that the model was trained on, for expanded features; None: there are none.
        where: as `ProbeData` takes it.
    """

    unit = "sentence"
    features: Mapping[str, str] = {
        "z": "",
        "c": "_c",
        "words": "_words",
        "z_bow": "_bow",
        "z_expanded": "_expanded",
        "words_expanded": "_words_expanded",
    }
    hand_made = ("bow", "tfidf")
    default_features: tuple[str, ...] = ("z", "c", "words", "z_bow")
    default_baselines = ("majority", "random", "bow", "tfidf")

    def __init__(
        self, corpus: SentenceCorpus | None, encoding: Encoding, text: Books | None = None, **where: Any
    ) -> None:
        super().__init__(**where)
        self._corpus, self.encoding, self.text = corpus, encoding, text
        if text is not None:
            self.default_features = tuple(self.features)

    @cached_property
    def labelled(self) -> LabelledSentences:
        """All sets of the source."""
        assert self._corpus is not None
        return read_labelled(self._corpus.options.source, self.encoding)

    @property
    def splits(self) -> Sequence[str]:
        """By the files' names."""
        return self.labelled.splits

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Those of a set; or `sentence`, a number of each, in random order, for folds."""
        if task == "sentence":
            order = np.random.default_rng(0).permutation(len(self.splits))
            return Labels({row: str(order[row]) for row in rows.tolist()})
        of_task = np.intersect1d(self.labelled.rows(task), rows)
        return Labels({row: self.labelled.labels[row] for row in of_task.tolist()})

    def default_folds(self, task: str, num_folds: int | None) -> tuple[str | None, int | None]:
        """Ten, of a set without an official split."""
        splits = {self.splits[row] for row in self.labelled.rows(task).tolist()}
        return ("sentence", num_folds or NUM_FOLDS) if splits == {WHOLE} else (None, num_folds)

    def front_end(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:
        """Of a model, in one pass; or bags of words."""
        if model is None:
            return BagsOfWords(features[0], self.labelled)
        is_expanded = any(name.endswith(EXPANDED) for name in features)
        if is_expanded and self.text is None:
            raise ValueError(
                f"features {', '.join(features)}: name the folder of books that the model was trained on with `text`"
            )
        labelled = None if self._corpus is None else self.labelled
        vectors = self.word_vectors if is_expanded else None
        return LearntSentences(features, model, labelled, vectors, self.encoding, self.device, self.precision)

    @cached_property
    def word_vectors(self) -> WordVectors:
        """Of the words of the text's training part."""
        assert self.text is not None
        return learn_vectors(self.text.split_books("train"))

    def find_files(self, folder: Path) -> list[str]:
        """Books."""
        return find_files(folder, {".txt"}, "text")

    def name(self, row: int) -> str:
        """Its beginning."""
        return repr(self.labelled.sentences[row][:60])

    def untrained_names(self, learnt: Sequence[str]) -> Sequence[str]:
        """Latents and contexts."""
        return [name for name in learnt if name in ("z", "c")] or ["z"]

    def initialise(self, model: Any, seed: int) -> None:
        """The vocabulary is the trained model's; the convolution is initialised from labelled sentences."""
        chosen = np.random.default_rng(seed).permutation(len(self.labelled.sentences))[:_BATCH_SENTENCES]
        encode = encoder_vocabulary(model.encoder).encode
        model.initialise_from(stacked([[encode(self.labelled.sentences[row])] for row in chosen.tolist()], 1))

    def record(self) -> dict[str, Any]:
        """The sets."""
        return {"sets": self.labelled.names}
