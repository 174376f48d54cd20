"""Labelled sentences' features, tasks and baselines: latents and contexts of single sentences, words, bags of words.

B sentences of a batch, D feature dim.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from cpc.data.readouts import FrontEnd, Labels, Precision, Readouts
from cpc.data.sentences.corpus import SentenceCorpus
from cpc.data.sentences.labelled import WHOLE, LabelledSentences, read_labelled
from cpc.data.sentences.splitting import paragraphs, split_sentences
from cpc.data.sentences.windows import stacked
from cpc.data.store.folders import find_files
from cpc.data.text.lines import Encoding, read_lines

_BATCH_SENTENCES = 256
NUM_FOLDS = 10


class LearntSentences(FrontEnd):
    """What a model says about single sentences.

    Args:
        features: `z`, the latent; `c`, the context of the sentence alone; `words`, the mean of its words' embeddings.
        model: in eval mode.
        sentences: by row; empty where only files outside a corpus are read.
        encoding: of files outside a corpus.
        device: where the model is.
        precision: of the model's products.
    """

    def __init__(
        self,
        features: Sequence[str],
        model: Any,
        sentences: Sequence[str],
        encoding: Encoding,
        device: str,
        precision: Precision,
    ) -> None:
        encoder = model.encoder
        dims = {"z": encoder.dim, "c": model.context.dim, "words": encoder.embedding_dim}
        self.features, self.model, self.sentences, self.encoding = features, model, sentences, encoding
        self.device, self.precision = device, precision
        self.vocabulary = encoder.words
        self.dims = {name: dims[name] for name in features}

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Sentences of about the same length."""
        by_length = rows[np.argsort([len(self.sentences[row]) for row in rows.tolist()], kind="stable")]
        return [by_length[i : i + _BATCH_SENTENCES] for i in range(0, len(rows), _BATCH_SENTENCES)]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Each sentence by itself."""
        found = self._features([[self.vocabulary.encode(self.sentences[row])] for row in rows.tolist()])
        for i, row in enumerate(rows.tolist()):
            yield row, {name: values[i] for name, values in found.items()}

    def of_file(self, path: Path) -> Float[np.ndarray, "T D"]:
        """Every sentence of a book, with its context."""
        read = paragraphs(read_lines(path, self.encoding, keep_blank=True))
        tokens = [self.vocabulary.encode(sentence) for each in read for sentence in split_sentences(each)]
        if not tokens:
            raise ValueError(f"{path}: is empty, it has no sentence")
        return next(iter(self._features([tokens]).values()))[0]

    @torch.inference_mode()
    def _features(self, windows: Sequence[Sequence[Sequence[int]]]) -> dict[str, Float[np.ndarray, "B T D"]]:
        x = stacked(windows, len(windows[0])).to(self.device)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            latents, contexts, _ = self.model.encode(x)
        found = {"z": latents, "c": contexts, "words": self.model.encoder.mean_of_words(x)}
        return {name: found[name].float().cpu().numpy() for name in self.features}


class SentenceReadouts(Readouts):
    """Features of labelled sentences, each alone. Tasks are the sets that lie in the source (`read_labelled`).

    Args:
        corpus: names the source; None: only files outside a corpus are read.
        encoding: of files.
        where: as `Readouts` takes it.
    """

    unit = "sentence"
    features: Mapping[str, str] = {"z": "", "c": "_c", "words": "_words"}
    default_features = ("z", "c", "words")
    default_baselines = ("majority", "random")

    def __init__(self, corpus: SentenceCorpus | None, encoding: Encoding, **where: Any) -> None:
        super().__init__(**where)
        self._corpus, self.encoding = corpus, encoding

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

    def default_folds(self, task: str) -> tuple[str, int] | None:
        """Ten, of a set without an official split."""
        splits = {self.splits[row] for row in self.labelled.rows(task).tolist()}
        return ("sentence", NUM_FOLDS) if splits == {WHOLE} else None

    def front_end(self, features: Sequence[str], model: Any = None) -> FrontEnd:
        """Of a model, in one pass."""
        sentences = () if self._corpus is None else self.labelled.sentences
        return LearntSentences(features, model, sentences, self.encoding, self.device, self.precision)

    def find_files(self, folder: Path) -> list[str]:
        """Books."""
        return find_files(folder, {".txt"}, "text")

    def name(self, row: int) -> str:
        """Its beginning."""
        return repr(self.labelled.sentences[row][:60])

    def of_untrained(self, learnt: Sequence[str]) -> Sequence[str]:
        """Latents and contexts."""
        return [name for name in learnt if name in ("z", "c")] or ["z"]

    def record(self) -> dict[str, Any]:
        """The sets."""
        return {"sets": self.labelled.names}
