"""Fingerprints of training observations, so that copies of them are found among held-out and test data.

A fingerprint is a hash of an observation's length and of the exact sums of its values (`PackedRows.content`), or of its
text. A record keeps the `MOST` smallest, a random sample that can be compared and merged ("bottom-k sketch", Cohen and
Kaplan 2007). n observations.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt64

MOST = 2**16

Content = Int64[np.ndarray, "n columns"]


def fingerprint_record(content: Content | None) -> dict[str, Any] | None:
    """Return the record that is saved with a model, None without content: number and fingerprints of observations."""
    if content is None:
        return None
    content = content[content[:, 0] > 0]  # skipped files have no values, so they would all look alike
    return _record(len(content), np.unique(_fingerprints(content)))


def merged(*parts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the record of the observations of all records, {} without any; an observation of two counts twice."""
    records = [record for record in parts if record]
    if not records:
        return {}
    fingerprints = np.unique(np.concatenate([_kept(record) for record in records]))
    num_observations = sum(record["num_observations"] for record in records)
    return _record(num_observations, fingerprints[fingerprints <= min(map(_largest, records))])


def text_content(texts: Iterable[bytes]) -> Content:
    """Return the content of texts: the length of each, and a hash of it."""
    rows = [
        (len(text), int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True))
        for text in texts
    ]
    return np.array(rows, np.int64).reshape(-1, 2)


def count_copies(content: Content | None, record: Mapping[str, Any] | None, unit: str) -> dict[str, Any] | None:
    """Return how many observations are in a record (`pretrained_on` in docs/records.md); None if one is missing."""
    if content is None or not record:
        return None
    shared, compared = num_shared(content, record)
    return {"num_shared": shared, "num_compared": compared, "num_tested": len(content), "unit": unit}


def describe_copies(counts: Mapping[str, Any]) -> str:
    """Return the result of `count_copies` in words, such as `3 of 12 files`."""
    sample = "" if counts["num_compared"] == counts["num_tested"] else f" (a sample of {counts['num_tested']})"
    return f"{counts['num_shared'] or 'none'} of {counts['num_compared']}{sample} {counts['unit']}s"


def num_shared(content: Content, record: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many of these observations are in a record, and how many its sample of fingerprints can tell."""
    fingerprints = _fingerprints(content)
    compared = fingerprints[fingerprints <= _largest(record)]
    return int(np.isin(compared, _kept(record)).sum()), len(compared)


def _record(num_observations: int, fingerprints: UInt64[np.ndarray, " m"]) -> dict[str, Any]:
    smallest = np.sort(fingerprints)[:MOST].astype("<u8")
    return {"num_observations": num_observations, "fingerprints": base64.b64encode(smallest.tobytes()).decode("ascii")}


def _kept(record: Mapping[str, Any]) -> UInt64[np.ndarray, " m"]:
    try:
        if type(record["num_observations"]) is not int:
            raise TypeError("num_observations is no integer")
        return np.frombuffer(base64.b64decode(record["fingerprints"], validate=True), "<u8").astype(np.uint64)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"config.json has damaged fingerprints of the model's training data: {error!r}") from error


def _largest(record: Mapping[str, Any]) -> np.uint64:
    kept = _kept(record)
    return kept[-1] if len(kept) == MOST else np.uint64(2**64 - 1)


def _fingerprints(content: Content) -> UInt64[np.ndarray, " n"]:
    hashes = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in content.astype("<i8"))
    return np.frombuffer(hashes, "<u8").astype(np.uint64)
