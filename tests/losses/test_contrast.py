import inspect

import pytest
import torch

from cpc.candidates import STRATEGIES
from cpc.losses import contrast

K, B, T, D = 3, 5, 6, 4
IDS, GROUPS = [0, 1, 1, 2, 3], [0, 0, 0, 1, 1]


def random_inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(K, B, T, D, generator=generator), torch.randn(B, T, D, generator=generator)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drawn_negatives_are_never_the_positive(shared: bool, strategy: str) -> None:
    """The positive alone scores 100: one draw of it among the negatives would lift the loss to ln 2 (facts T1)."""
    latents = torch.eye(B * T).reshape(B, T, B * T)
    queries = torch.stack([100 * latents.roll(-k, 1) for k in range(1, K + 1)])
    result = contrast(
        queries,
        latents,
        strategy=strategy,
        sequence_id=torch.tensor(IDS),
        group_id=torch.tensor(GROUPS),
        num_negatives=200,
        shared_across_steps=shared,
        generator=torch.Generator().manual_seed(0),
    )
    assert result.loss.item() < 1e-6
    assert torch.equal(result.num_candidates, 201 * result.num_rows)


def test_bad_input_is_named() -> None:
    queries, latents = random_inputs()
    with pytest.raises(ValueError, match=r"same_speaker_excluding.*without a negative.*`sampler`"):
        contrast(
            queries, latents, strategy="same_speaker_excluding", group_id=torch.arange(B), sequence_id=torch.arange(B)
        )
    with pytest.raises(ValueError, match="longest sequence has 1 latents"):
        contrast(queries, latents, num_latents=torch.ones(B, dtype=torch.long))
    for num_latents in (9, -1):
        with pytest.raises(
            ValueError, match=rf"num_latents={num_latents} must count latents, from 0 to 6, not samples"
        ):
            contrast(queries, latents, num_latents=torch.tensor([num_latents, 6, 6, 3, 6]))
    with pytest.raises(ValueError, match=r"sequence_id is torch.int64 of the shape \[3\]; .* of the shape \[5\]"):
        inspect.unwrap(contrast)(queries, latents, sequence_id=torch.arange(3))
    with pytest.raises(ValueError, match="shared_across_steps` is for drawn negatives"):
        contrast(queries, latents, shared_across_steps=True)
    with pytest.raises(ValueError, match=r"latents is torch.float32 of the shape \[5, 5, 4\]; .* \[5, 6, 4\]"):
        inspect.unwrap(contrast)(queries, latents[:, :5])  # without the tests' own shape checks


def test_shared_draws_leave_sequences_without_rows_alone() -> None:
    """A file shorter than one latent has no row: nothing is drawn for it, and nobody complains."""
    queries, latents = random_inputs()
    result = contrast(
        queries,
        latents,
        strategy="sequence_only",
        num_latents=torch.tensor([6, 6, 0, 5, 1]),
        sequence_id=torch.arange(B),
        num_negatives=4,
        shared_across_steps=True,
        generator=torch.Generator().manual_seed(0),
    )
    assert result.num_rows.sum(0).tolist() == [12, 12, 0, 9, 0]
