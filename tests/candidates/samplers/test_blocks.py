"""Tests of the blocks of classes, and of the compiler of two_level.c."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cpc.candidates.samplers import blocks as blocks_module
from cpc.candidates.samplers.blocks import assign_blocks, k_means
from cpc.native.compiled import compiled


def far_apart(num_clusters: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    true = torch.randint(num_clusters, (600,), generator=generator)
    centres = 100 * torch.randn(num_clusters, 3, generator=generator)
    return centres[true] + 0.01 * torch.randn(600, 3, generator=generator), true


def test_k_means_never_puts_distant_points_together(generator: torch.Generator) -> None:
    """With many more clusters than there are groups, each group has some of its own."""
    points, true = far_apart(5, generator)
    found = k_means(points, 60, generator)
    assert 5 <= len(found.unique())
    assert found.max() < 60
    for cluster in found.unique():
        assert len(true[found == cluster].unique()) == 1


def test_k_means_in_two_stages_keeps_to_its_number(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "MOST_CENTROIDS_AT_ONCE", 20)
    points = torch.randn(3000, 3, generator=generator)
    found = k_means(points, 100, generator)
    assert 60 < len(found.unique()) <= 100
    assert int(found.max()) < 100

    def spread(clusters: Tensor) -> float:
        return float(
            sum(((points[clusters == c] - points[clusters == c].mean(0)) ** 2).sum() for c in clusters.unique())
        )

    assert spread(found) < 0.1 * spread(torch.arange(3000) % 100)


def test_blocks_of_equal_size(generator: torch.Generator) -> None:
    embeddings = torch.randn(103, 4, generator=generator)
    for kind in ("ids", "random"):
        sizes = torch.bincount(assign_blocks(kind, embeddings, 7, seed=0), minlength=7)
        assert set(sizes.tolist()) <= {14, 15}
    consecutive = assign_blocks("ids", embeddings, 7, seed=0)
    assert (consecutive.diff() >= 0).all()


def test_no_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "broken.c"
    broken.write_text("this is not C")
    with caplog.at_level(logging.WARNING):
        assert compiled(broken) is None
        monkeypatch.setenv("CC", "a-compiler-that-is-not-there")
        assert compiled(tmp_path / "other.c") is None
    assert "broken.c could not be compiled" in caplog.text or "no C compiler" in caplog.text
    assert "no C compiler was found: other.c" in caplog.text


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_changed_header_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source, header = tmp_path / "two.c", tmp_path / "two_numbers.h"
    source.write_text('#include "two_numbers.h"\nint number(void) { return NUMBER; }\n')
    for number in (3, 4):
        header.write_text(f"#define NUMBER {number}\n")
        library = compiled.__wrapped__(source)
        assert library.number() == number
