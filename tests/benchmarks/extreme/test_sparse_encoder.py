import numpy as np
import pytest
import torch
from refusals import refuses
from scipy import sparse

from benchmarks.extreme.sparse_batch import sparse_batch
from benchmarks.extreme.sparse_encoder import SparseEncoder


def rows(num_rows: int = 12, num_features: int = 30) -> sparse.csr_array:
    found = sparse.random_array((num_rows, num_features), density=0.2, format="lil", rng=np.random.default_rng(0))
    found[3] = 0  # an observation without features, within and at the end
    found[num_rows - 1] = 0
    return sparse.csr_array(found, dtype=np.float32)


@pytest.mark.parametrize("normalise", [True, False])
def test_it_is_a_dense_product(normalise: bool) -> None:
    encoder = SparseEncoder(30, dim=7, normalise=normalise)
    x = rows().toarray().astype(np.float64)
    if normalise:
        x /= np.where(x.any(1), np.linalg.norm(x, axis=1), 1)[:, None]
    latents = encoder(sparse_batch(rows()))
    np.testing.assert_allclose(latents.detach().numpy(), x @ encoder.weight.detach().double().numpy(), atol=1e-6)
    assert (latents[3] == 0).all()
    assert (latents[-1] == 0).all()


@pytest.mark.parametrize("sparse_gradients", [True, False])
def test_gradients_are_those_of_the_product(sparse_gradients: bool) -> None:
    encoder = SparseEncoder(30, dim=7, normalise=False, sparse_gradients=sparse_gradients)
    slopes = torch.randn(12, 7)
    (encoder(sparse_batch(rows())) * slopes).sum().backward()
    gradient = encoder.weight.grad
    assert gradient.is_sparse == sparse_gradients
    torch.testing.assert_close(gradient.to_dense(), torch.from_numpy(rows().toarray()).T @ slopes)


def test_latents_have_about_unit_length_at_first() -> None:
    torch.manual_seed(0)
    lengths = SparseEncoder(30, dim=512)(sparse_batch(rows()[:3])).norm(dim=1)
    assert lengths.tolist() == pytest.approx([1, 1, 1], abs=0.15)


def test_no_observations_and_features_out_of_range() -> None:
    encoder = SparseEncoder(int(rows().indices.max()), dim=7)
    refuses(f"feature {encoder.num_features} of an observation, but num_features=", encoder, sparse_batch(rows()))
    refuses("num_features=0", SparseEncoder, 0)
    assert SparseEncoder(30, dim=7)(sparse_batch(rows()[:0])).shape == (0, 7)
