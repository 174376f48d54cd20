"""Probe data of sentences: features of single sentences, bags of words, and labels. B sentences, D feature dim."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array, hstack
from sklearn.preprocessing import StandardScaler

from cpc.data.probe_data import FeatureExtractor, Labels, ProbeData, autocast
from cpc.data.sentences.books import read_sentences
from cpc.data.sentences.corpus import SentenceCorpus, stacked
from cpc.data.sentences.labelled import WHOLE, LabelledSentences, read_labelled
from cpc.data.store.fingerprints import Content, text_content
from cpc.data.store.folders import find_files
from cpc.data.store.text_files import Encoding
from cpc.data.text.vocabulary import encoder_vocabulary

_BATCH_SENTENCES = 256
NUM_FOLDS = 10


class SentenceFeatures(FeatureExtractor):
    """Features of single sentences from a model, or their bags of words, `bow` or `tfidf`, if the model is None.

    `z` is the latent of a sentence, `c` its context without other sentences, `words` the mean of the embeddings of its
    words. `z_bow` is the concatenation of `z`, standardised over a set's sentences, and of the scaled bag of words;
    rows of both parts have a mean square length of 1.
    """

    def __init__(self, features: Sequence[str], model: Any, data: "SentenceProbeData") -> None:
        self.features, self.model, self.data, self.dims = features, model, data, {}
        if model is not None:
            dims = {"z": model.encoder.dim, "c": model.context.dim, "words": model.encoder.embedding_dim}
            self.dims = {name: dims[name] for name in features if name != "z_bow"}

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return batches of sentences of about the same length."""
        sorted_rows = rows[np.argsort([len(self._sentence(row)) for row in rows.tolist()], kind="stable")]
        return [sorted_rows[i : i + _BATCH_SENTENCES] for i in range(0, len(rows), _BATCH_SENTENCES)]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each sentence and its features, which do not depend on other sentences."""
        features = self._features([[self._sentence(row)] for row in rows.tolist()], self.dims)
        for i, row in enumerate(rows.tolist()):
            yield row, {name: values[i] for name, values in features.items()}

    def sparse(self, rows: np.ndarray) -> Mapping[str, csr_array]:
        """Return the features that hold bags of words."""
        labelled = self.data.labelled
        if self.model is None:
            return {kind: labelled.bags(kind)[rows] for kind in self.features}
        if "z_bow" not in self.features:
            return {}
        latents = np.empty((len(rows), self.model.encoder.dim), np.float32)
        for group in self.groups(rows):
            (group_latents,) = self._features([[self._sentence(row)] for row in group.tolist()], ["z"]).values()
            latents[np.searchsorted(rows, group)] = group_latents[:, 0]
        sets = np.array(labelled.sets)[rows]
        for name in dict.fromkeys(sets.tolist()):
            latents[sets == name] = StandardScaler().fit_transform(latents[sets == name])
        parts = [csr_array(latents / latents.shape[1] ** 0.5), labelled.bags("bow")[rows]]
        return {"z_bow": hstack(parts, format="csr", dtype=np.float32)}

    def geometry(self, feature: str) -> dict[str, Any]:
        """Return the name and the dimension of a feature; the dimension of `z_bow` is not fixed."""
        if self.model is None:
            return {"features": feature, "dim": self.data.labelled.bags(feature).shape[1]}
        return {"features": feature} if feature == "z_bow" else super().geometry(feature)

    def file_features(self, path: Path) -> Float[np.ndarray, "T D"]:
        """Return the features of every sentence of a book; contexts depend on the previous sentences."""
        sentences = read_sentences(path, self.data.encoding)
        if not sentences:
            raise ValueError(f"{path}: is empty: it has no sentence")
        return next(iter(self._features([sentences], self.features).values()))[0]

    def _sentence(self, row: int) -> str:
        return self.data.labelled.sentences[row]

    @torch.inference_mode()
    def _features(
        self, windows: Sequence[Sequence[str]], names: Iterable[str]
    ) -> dict[str, Float[np.ndarray, "B T D"]]:
        encoder = self.model.encoder
        vocabulary = encoder_vocabulary(encoder)
        tokens = [[vocabulary.encode(sentence) for sentence in window] for window in windows]
        x = stacked(tokens, len(windows[0])).to(self.data.device)
        with autocast(x, self.data.precision):
            latents, contexts, _ = self.model.encode(x)
        values = {"z": latents, "c": contexts, "words": encoder.mean_of_words(x)}
        return {name: values[name].float().cpu().numpy() for name in names}


class SentenceProbeData(ProbeData):
    """Features and labels of single sentences. Tasks are the sets of labelled sentences (`read_labelled`)."""

    unit = source_unit = "sentence"
    is_content_of_training = False  # models are trained on passages
    features: Mapping[str, str] = {"z": "", "c": "_c", "words": "_words", "z_bow": "_bow"}
    hand_made = ("bow", "tfidf")
    default_features = ("z", "c", "words", "z_bow")
    default_baselines = ("majority", "random", "bow", "tfidf")

    def __init__(self, corpus: SentenceCorpus | None, encoding: Encoding, **where: Any) -> None:
        super().__init__(**where)
        self._corpus, self.encoding = corpus, encoding

    @cached_property
    def labelled(self) -> LabelledSentences:
        """All sets of labelled sentences of the source."""
        assert self._corpus is not None
        return read_labelled(self._corpus.options.source, self.encoding)

    @property
    def splits(self) -> Sequence[str]:  # noqa: D102
        return self.labelled.splits

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the labels of a set; for the task `sentence`, a different random number per sentence, for folds."""
        if task == "sentence":
            order = np.random.default_rng(0).permutation(len(self.splits))
            return Labels({row: str(order[row]) for row in rows.tolist()})
        task_rows = np.intersect1d(self.labelled.rows(task), rows)
        return Labels({row: self.labelled.labels[row] for row in task_rows.tolist()})

    def default_folds(self, task: str, num_folds: int | None) -> tuple[str | None, int | None]:
        """Return `sentence` and ten folds for a set without an official split, else no folds."""
        splits = {self.splits[row] for row in self.labelled.rows(task).tolist()}
        return ("sentence", num_folds or NUM_FOLDS) if splits == {WHOLE} else (None, num_folds)

    def feature_extractor(self, features: Sequence[str], model: Any = None) -> SentenceFeatures:
        """Return an extractor of a model's features, all in one pass, or of bags of words."""
        return SentenceFeatures(features, model, self)

    def find_files(self, folder: Path) -> list[str]:  # noqa: D102
        return find_files(folder, {".txt"}, "text")

    def name(self, row: int) -> str:
        """Return the first 60 characters of a sentence."""
        return repr(self.labelled.sentences[row][:60])

    def untrained_names(self, learnt: Sequence[str]) -> Sequence[str]:
        """Return the latents and contexts among the probed features, or only the latents if there are none."""
        return [name for name in learnt if name in ("z", "c")] or ["z"]

    def content(self, rows: np.ndarray) -> Content:  # noqa: D102
        return text_content(self.labelled.sentences[row].encode() for row in rows.tolist())

    def initialise(self, model: Any, seed: int) -> None:
        """Initialise the convolution from labelled sentences; the vocabulary remains that of the trained model."""
        chosen = np.random.default_rng(seed).permutation(len(self.labelled.sentences))[:_BATCH_SENTENCES]
        encode = encoder_vocabulary(model.encoder).encode
        model.initialise_from(stacked([[encode(self.labelled.sentences[row])] for row in chosen.tolist()], 1))

    def record(self) -> dict[str, Any]:  # noqa: D102
        return {"sets": self.labelled.names}
