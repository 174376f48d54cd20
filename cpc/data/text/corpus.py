"""Text as one stream of classes per split: encoded once into memory maps, which later runs open.

The place of a pack is named by a hash of the text and of how it was encoded, so it is never stale.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from cpc.data.store.atomic import json_text, write_json
from cpc.data.store.atomic_folder import build_atomically, build_once
from cpc.data.store.untrusted import read_json
from cpc.data.text.lines import EMBEDDED, Text
from cpc.data.text.vocabulary import Tokens, Vocabulary, build_vocabulary

_FORMAT = 1
_INDEX = "index.json"


class TokenCorpus:
    """The streams of a text, each of which begins with `<eos>`, the end of a line before it.

    Args:
        text: the source, cut by split.
        vocabulary: to encode with, of all splits.
        cache_dir: where the pack goes; None: `.cpc_cache` beside the text. The embedded prose is packed only where a
            place is named.

    Attributes:
        digest: of text and vocabulary, for a run that goes on.

    Raises:
        OSError: if `cache_dir` cannot be written.
    """

    def __init__(self, text: Text, vocabulary: Vocabulary, cache_dir: str | Path | None = None) -> None:
        self.text = text
        self.vocabulary = vocabulary
        self.digest = _digest([text.digest, vocabulary.description])
        cache = _cache_of(text, cache_dir)
        if cache is None:
            self._streams: Mapping[str, np.ndarray] = {
                split: np.concatenate(list(_encoded(text.lines(split), vocabulary))) for split in text.splits
            }
            return
        folder = cache / f"tokens_{self.digest}"
        write_once(folder, partial(_pack, text, vocabulary))
        self._streams = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in text.splits}

    def stream(self, split: str) -> Int[np.ndarray, " n"]:
        """The classes of a split, `<eos>` first.

        Raises:
            ValueError: if there is no such split, naming those there are.
        """
        if split not in self._streams:
            raise ValueError(f"{self.text.source} has no split {split!r}; it has {', '.join(self._streams)}")
        return self._streams[split]

    def counts(self, split: str) -> Int[np.ndarray, " V"]:
        """How often each class comes in a split, its first `<eos>` left out."""
        return np.bincount(self.stream(split)[1:], minlength=len(self.vocabulary))


def training_vocabulary(
    text: Text,
    num_tokens: int,
    tokens: Tokens = "words",
    lower_case: bool = False,
    cache_dir: str | Path | None = None,
) -> Vocabulary:
    """The vocabulary of the training split, as `build_vocabulary` makes it; made once, and kept where packs go.

    Raises:
        ValueError: if there is no training text; as `build_vocabulary`.
        OSError: if `cache_dir` cannot be written.
    """
    if "train" not in text.splits:
        raise ValueError(
            f"{text.source} holds no line to train on, only {', '.join(text.splits)}: name a file train (the "
            "vocabulary is that of training text)"
        )

    def built() -> Vocabulary:
        return build_vocabulary(text.lines("train"), tokens=tokens, num_tokens=num_tokens, lower_case=lower_case)

    cache = _cache_of(text, cache_dir)
    if cache is None:
        return built()
    folder = cache / f"vocabulary_{_digest([text.digest, tokens, num_tokens, lower_case])}"
    write_once(folder, lambda place: write_json(built().description, place / _INDEX))
    return Vocabulary(**read_json(folder / _INDEX))


def entropy_nats(counts: Int[np.ndarray, " V"]) -> float:
    """Entropy of the frequencies counted: of `n` tokens in `V` classes, low by about `(V - 1) / 2n` on average."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _cache_of(text: Text, cache_dir: str | Path | None) -> Path | None:
    if cache_dir is not None:
        return Path(cache_dir)
    path = Path(text.source)
    if not path.exists() and str(text.source) == EMBEDDED:
        return None
    return (path if path.is_dir() else path.parent) / ".cpc_cache"


def _encoded(lines: Iterable[str], vocabulary: Vocabulary) -> Iterable[np.ndarray]:
    """A stream in pieces."""
    piece = array("i", [vocabulary.end])
    for line in lines:
        piece.extend(vocabulary.encode(line))
        if len(piece) > 2**20:
            yield np.array(piece, np.int32)
            piece = array("i")
    yield np.array(piece, np.int32)


def _pack(text: Text, vocabulary: Vocabulary, folder: Path) -> None:
    for split in text.splits:
        raw = folder / f"{split}.raw"
        with raw.open("wb") as stream:
            for piece in _encoded(text.lines(split), vocabulary):
                stream.write(piece.tobytes())
        np.save(folder / f"{split}.npy", np.memmap(raw, np.int32, "r"))
        raw.unlink()
    write_json({"splits": text.splits}, folder / _INDEX)  # last: it says that the rest is there


def write_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Fill a folder that has no index yet, in one process; `write` writes `index.json` last."""

    def is_complete(place: Path) -> bool:
        return (place / _INDEX).exists()

    def build() -> None:
        with build_atomically(folder, is_complete, "cache_dir") as unfinished:
            write(unfinished)

    build_once(folder, is_complete, build)


def _digest(content: Any) -> str:
    return hashlib.sha256(json_text([_FORMAT, content]).encode()).hexdigest()[:16]
