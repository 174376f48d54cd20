import inspect
import math
from collections.abc import Callable

import pytest
import torch

import cpc
from cpc.contexts import GRU
from cpc.encoders import VectorEncoder
from cpc.predictors import Bilinear, Predictor, TransformerPredictor

K, C, D = 3, 8, 5
BUILD: dict[str, Callable[[], Predictor]] = {
    "bilinear": lambda: Bilinear(K),
    "transformer": lambda: TransformerPredictor(K, num_heads=2, feedforward_dim=16),
}


@pytest.fixture(params=BUILD)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    """Connected, float64, eval mode."""
    built = BUILD[request.param]()
    built.connect(C, D)
    return built.double().eval()


def contexts(num_sequences: int = 2, num_latents: int = 7) -> torch.Tensor:
    return torch.randn(num_sequences, num_latents, C, dtype=torch.float64)


def test_bilinear_is_a_matrix_per_step() -> None:
    predictor = Bilinear(K)
    predictor.connect(C, D)
    predictor.double()
    c = contexts()
    queries = predictor(c)
    assert predictor.weights.shape == (K, D, C)
    assert [name for name, _ in predictor.named_parameters()] == ["linear.weight"], "no bias"
    for k in range(K):
        torch.testing.assert_close(queries[k], torch.einsum("dc,btc->btd", predictor.weights[k], c))
        for b in range(2):
            for t in range(7):
                torch.testing.assert_close(queries[k, b, t], predictor.weights[k] @ c[b, t])


def test_bilinear_weights_are_a_view_that_can_be_set() -> None:
    predictor = Bilinear(K)
    predictor.connect(D, D)
    with torch.no_grad():
        predictor.weights[1].copy_(2 * torch.eye(D))
    c = torch.randn(1, 4, D)
    torch.testing.assert_close(predictor(c)[1], 2 * c)
    assert not torch.allclose(predictor(c)[0], 2 * c)


@pytest.mark.parametrize(("context_dim", "latent_dim"), [(16, 16), (256, 512), (512, 64)])
@pytest.mark.parametrize("build", [Bilinear, lambda: TransformerPredictor(12, 8, 64)])
def test_training_starts_at_about_log_n(build: Callable[[], Predictor], context_dim: int, latent_dim: int) -> None:
    """Unit variance per channel, the largest that the initialisation is made for: E[L] = log N + variance / 2."""
    predictor = build()
    predictor.connect(context_dim, latent_dim)
    c, z = torch.randn(2, 20, context_dim), torch.randn(300, latent_dim)
    scores = predictor.eval()(c) @ z.T  # [K, B, T, N]
    assert 0.1 < float(scores.detach().std()) < 1.3
    excess = (scores.logsumexp(-1) - scores[..., 0]).mean() - math.log(300)
    assert -0.1 < float(excess.detach()) < 0.9


def test_causal_by_autograd(predictor: Predictor) -> None:
    c = contexts().requires_grad_()
    queries = predictor(c)
    weights = torch.randn_like(queries)
    for k in range(K):
        for t in range(7):
            (gradient,) = torch.autograd.grad((queries * weights)[k, 1, t].sum(), c, retain_graph=True)
            assert gradient[1, t].any()
            assert not gradient[1, t + 1 :].any()
            assert not gradient[0].any()


def test_causal_by_perturbation(predictor: Predictor) -> None:
    c = contexts()
    before = predictor(c)
    changed = c.clone()
    changed[:, 4:] += torch.randn(3, C)  # not one number for all channels: a layer norm would not see it
    after = predictor(changed)
    torch.testing.assert_close(after[:, :, :4], before[:, :, :4], rtol=0, atol=1e-12)
    assert (after[:, :, 4] != before[:, :, 4]).any(-1).all()


def test_transformer_queries_see_the_past_and_its_layers_differ() -> None:
    predictor = TransformerPredictor(K, num_heads=2, feedforward_dim=16).eval()
    predictor.connect(C, D)
    predictor.double().eval()
    c = contexts()
    before = predictor(c)
    changed = c.clone()
    changed[:, 0] += torch.randn(C)
    assert (predictor(changed)[:, :, 6] != before[:, :, 6]).any(-1).all()
    assert not torch.allclose(before[0], before[1])


def test_permuting_the_batch_permutes_the_queries(predictor: Predictor) -> None:
    c, order = contexts(4), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(predictor(c[order]), predictor(c)[:, order])


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (1, 1), (1, 500)])
def test_any_length(predictor: Predictor, shape: tuple[int, int]) -> None:
    assert predictor(contexts(*shape)).shape == (K, *shape, D)


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_the_loss_reaches_every_parameter(build: Callable[[], Predictor]) -> None:
    """A predictor for a step that is never scored would stay as it was (and stop distributed training)."""
    model = cpc.CPC(VectorEncoder(4, dim=D), GRU(C), build())
    model.loss(torch.randn(3, K + 2, 4)).loss.backward()
    unreached = [name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()]
    assert not unreached
    for name, each in model.predictor.named_parameters():
        if name.endswith("linear.weight"):
            assert each.grad.unflatten(0, (K, D)).flatten(1).any(1).all(), "every step's W_k"


def test_autocast_to_bfloat16(predictor: Predictor) -> None:
    predictor.float()
    c = contexts().float()
    with torch.autocast("cpu", torch.bfloat16):
        queries = predictor(c.bfloat16())
    torch.testing.assert_close(queries.float(), predictor(c), rtol=0, atol=0.1)
    queries.float().square().sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in predictor.parameters())


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_arguments_are_kept_under_their_names(build: Callable[[], Predictor]) -> None:
    predictor = build()
    names = [name for name in inspect.signature(type(predictor).__init__).parameters if name != "self"]
    again = type(predictor)(**{name: getattr(predictor, name) for name in names})
    assert not list(predictor.parameters()), "the constructor allocates nothing"
    predictor.connect(C, D)
    again.connect(C, D)
    again.load_state_dict(predictor.state_dict())


def test_connecting_twice(predictor: Predictor) -> None:
    before = [each.clone() for each in predictor.parameters()]
    predictor.connect(C, D)
    assert all(torch.equal(x, y) for x, y in zip(before, predictor.parameters(), strict=True))
    with pytest.raises(ValueError, match="cannot take 9 and 5"):
        predictor.connect(9, D)
    with pytest.raises(ValueError, match="cannot take 8 and 6"):
        predictor.connect(C, 6)


@pytest.mark.parametrize("build", [Bilinear, TransformerPredictor])
def test_no_steps(build: Callable[[int], Predictor]) -> None:
    with pytest.raises(ValueError, match="num_steps=0"):
        build(0)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="dim=10 does not fall into num_heads=8"):
        TransformerPredictor(3).connect(10, 4)
