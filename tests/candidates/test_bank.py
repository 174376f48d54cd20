"""The bank of latents: gathered from embeddings, written and read again, mapped rather than read."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refuses
from safetensors.numpy import save_file

from cpc.candidates import LatentBank


def embed(folder: Path, name: str, values: np.ndarray, **facts: object) -> Path:
    """A file as `cpc embed` leaves it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        save_file({"features": values}, path)
    told = {"features": "z", "dim": values.shape[-1], "model_sha256": "abc", "source": f"{path.stem}.wav", **facts}
    path.with_suffix(".json").write_text(json.dumps(told))
    return path


@pytest.fixture
def embeddings(tmp_path: Path) -> tuple[Path, np.ndarray]:
    values = np.arange(11 * 3, dtype=np.float32).reshape(11, 3)
    embed(tmp_path / "z", "a.npy", values[:2])
    embed(tmp_path / "z", "deeper/b.safetensors", values[2:5])
    embed(tmp_path / "z", "grid.npy", values[5:].reshape(2, 3, 3))
    return tmp_path / "z", values


@pytest.mark.parametrize("mapped", [False, True])
def test_embeddings_become_a_bank(embeddings: tuple[Path, np.ndarray], mapped: bool, tmp_path: Path) -> None:
    folder, values = embeddings
    bank = LatentBank.load_embeddings(folder, tmp_path / "bank" if mapped else None)
    assert np.array_equal(bank.latents.numpy(), values)
    assert bank.sequence_id.tolist() == [0] * 2 + [1] * 3 + [2] * 6
    assert bank.facts == {"model_sha256": "abc", "sources": ["a.wav", "b.wav", "grid.wav"]}
    if mapped:
        opened = LatentBank.open(tmp_path / "bank")
        assert torch.equal(opened.latents, bank.latents)
        assert torch.equal(opened.sequence_id, bank.sequence_id)
        assert opened.facts == bank.facts


def test_a_saved_bank_is_mapped_and_its_file_stays_as_it_is(tmp_path: Path) -> None:
    bank = LatentBank(torch.randn(100, 8), torch.arange(100) // 10, {"split": "train"})
    bank.save(tmp_path)
    opened = LatentBank.open(tmp_path)
    opened.latents[0] = 0  # copied on write
    again = LatentBank.open(tmp_path)
    assert torch.equal(again.latents, bank.latents)
    assert (len(again), again.dim, again.facts) == (100, 8, {"split": "train"})
    np.save(tmp_path / "latents.npy", np.ones((100, 8), np.float32))  # a mapped bank sees it, one in memory would not
    assert torch.equal(LatentBank.open(tmp_path).latents, torch.ones(100, 8))


def test_it_counts_the_latents_of_sequences() -> None:
    bank = LatentBank(torch.zeros(5, 1), torch.tensor([2**42, -1, 2**42, 0, -1]))
    assert bank.num_of(torch.tensor([0, 1, 2**42, 2**43, -1])).tolist() == [1, 0, 2, 0, 0]
    assert LatentBank(torch.zeros(2, 1)).num_of(torch.tensor([0, -1])).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("values", "facts", "message"),
    [
        (np.ones((2, 3), np.float32), {"features": "c"}, "b.npy has features 'c', but a bank needs 'z'"),
        (np.ones((2, 3), np.float32), {"model_sha256": "other"}, "b.npy has model_sha256 'other'"),
        (np.ones((2, 4), np.float32), {}, r"b.npy: latents \[n, 4\] must be finite \[n, 3\]"),
    ],
)
def test_embeddings_that_make_no_bank_are_named(values: np.ndarray, facts: dict, message: str, tmp_path: Path) -> None:
    embed(tmp_path, "a.npy", np.ones((2, 3), np.float32))
    embed(tmp_path, "b.npy", values, **facts)
    refuses(message, LatentBank.load_embeddings, tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    refuses("no embeddings below", LatentBank.load_embeddings, tmp_path)
    path = embed(tmp_path, "a.npy", np.ones((2, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-8])
    refuses(r"a\.npy: cannot be read", LatentBank.load_embeddings, tmp_path)
    path.with_suffix(".json").unlink()
    refuses(r"a\.json: there is no such file", LatentBank.load_embeddings, tmp_path)


def test_what_is_no_bank_is_refused(tmp_path: Path) -> None:
    refuses(r"bank\.json: there is no such file", LatentBank.open, tmp_path)
    LatentBank(torch.zeros(5, 2)).save(tmp_path)
    np.save(tmp_path / "latents.npy", np.zeros((4, 2), np.float32))
    refuses("the number of latents=4 must be 5", LatentBank.open, tmp_path)
    refuses("at least 1", LatentBank, torch.zeros(0, 2))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bank.json", b'{"format_version": 1, "num', r"bank\.json is not JSON; was it cut off"),
        ("bank.json", b'{"format_version": 1}', r"bank\.json must hold format_version and num_latents"),
        ("latents.npy", b"", r"latents\.npy: (cannot be read|is empty)"),
        ("sequence_id.npy", b"no array", r"sequence_id\.npy: cannot be read"),
    ],
)
def test_a_broken_file_of_a_bank_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    LatentBank(torch.zeros(100, 8)).save(tmp_path)
    (tmp_path / name).write_bytes(content)
    refuses(message, LatentBank.open, tmp_path)
