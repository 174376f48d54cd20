"""Text as one stream of token ids per split: encoded once into memory maps, which later runs open.

The folder of a pack is named by a hash of the text and of the vocabulary, so that a pack is never stale.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from cpc.config.argument_rules import Choices
from cpc.data.store.atomic import build_atomically, build_once, json_text, write_json
from cpc.data.store.untrusted import read_json
from cpc.data.text.lines import EMBEDDED, Text
from cpc.data.text.vocabulary import Tokens, Vocabulary, build_vocabulary

_FORMAT = 1
_INDEX = "index.json"


class TokenCorpus:
    """The streams of a text. Each stream begins with `<eos>`, as if it followed a line.

    `cache_dir` is the folder of the pack; None: `.cpc_cache` beside the text. The tokens of the prose that ships with
    Python then stay in memory. A resumed run compares `digest`, the hash of text and vocabulary.
    """

    nouns = ("speaker", "block")

    def __init__(self, text: Text, vocabulary: Vocabulary, cache_dir: str | Path | None = None) -> None:
        self.text = text
        self.vocabulary = vocabulary
        self.digest = _digest([text.digest, vocabulary.description])
        cache = _cache_folder(text, cache_dir)
        if cache is None:
            self._streams: Mapping[str, np.ndarray] = {
                split: np.concatenate(list(_encoded(text.lines(split), vocabulary))) for split in text.splits
            }
            return
        folder = cache / f"tokens_{self.digest}"
        write_once(folder, partial(_pack, text, vocabulary))
        self._streams = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in text.splits}

    def stream(self, split: str) -> Int[np.ndarray, " n"]:
        """Return the token ids of a split, `<eos>` first."""
        Choices(tuple(self._streams)).check(f"{self.text.source}: the split", split)
        return self._streams[split]

    def counts(self, split: str) -> Int[np.ndarray, " V"]:
        """Return the count of each token in a split, without the first `<eos>`."""
        return np.bincount(self.stream(split)[1:], minlength=len(self.vocabulary))


def training_vocabulary(
    text: Text, num_tokens: int, tokens: Tokens = "words", lower_case: bool = False, cache_dir: str | Path | None = None
) -> Vocabulary:
    """Return the vocabulary of the training split. `build_vocabulary` builds it once; it is cached with the packs."""
    if "train" not in text.splits:
        found = f"only the splits {', '.join(text.splits)}"
        raise ValueError(f"{text.source} has no training text for the vocabulary, {found}")

    def build() -> Vocabulary:
        return build_vocabulary(text.lines("train"), tokens=tokens, num_tokens=num_tokens, lower_case=lower_case)

    cache = _cache_folder(text, cache_dir)
    if cache is None:
        return build()
    folder = cache / f"vocabulary_{_digest([text.digest, tokens, num_tokens, lower_case])}"
    write_once(folder, lambda unfinished: write_json(build().description, unfinished / _INDEX))
    return Vocabulary(**read_json(folder / _INDEX))


def entropy_nats(counts: Int[np.ndarray, " V"]) -> float:
    """Return the entropy of the counted frequencies. For n tokens of V classes it is about (V - 1) / 2n too low."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _cache_folder(text: Text, cache_dir: str | Path | None) -> Path | None:
    if cache_dir is not None:
        return Path(cache_dir)
    path = Path(text.source)
    if not path.exists() and str(text.source) == EMBEDDED:
        return None
    return (path if path.is_dir() else path.parent) / ".cpc_cache"


def _encoded(lines: Iterable[str], vocabulary: Vocabulary) -> Iterable[np.ndarray]:
    """Yield the token ids of lines in pieces, `<eos>` first."""
    piece = array("i", [vocabulary.end])
    for line in lines:
        piece.extend(vocabulary.encode(line))
        if len(piece) > 2**20:
            yield np.array(piece, np.int32)
            piece = array("i")
    yield np.array(piece, np.int32)


def _pack(text: Text, vocabulary: Vocabulary, folder: Path) -> None:
    for split in text.splits:
        write_stream(folder / f"{split}.npy", _encoded(text.lines(split), vocabulary))
    write_json({"splits": text.splits}, folder / _INDEX)  # last, to mark the folder as complete


def write_stream(file: Path, pieces: Iterable[np.ndarray]) -> None:
    """Write the token ids of all pieces to one `.npy` file, in bounded memory."""
    raw = file.with_suffix(".raw")
    with raw.open("wb") as stream:
        for piece in pieces:
            stream.write(piece.astype(np.int32).tobytes())
    np.save(file, np.memmap(raw, np.int32, "r"))
    raw.unlink()


def write_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder in one process, unless it has an index already; `write` must write `index.json` last."""

    def build() -> None:
        with build_atomically(folder, _is_complete, "cache_dir") as unfinished:
            write(unfinished)

    build_once(folder, _is_complete, build)


def _is_complete(folder: Path) -> bool:
    return (folder / _INDEX).exists()


def _digest(content: Any) -> str:
    return hashlib.sha256(json_text([_FORMAT, content]).encode()).hexdigest()[:16]
