import math
from collections.abc import Callable

import pytest
import torch
from oracles import transformer_layer

import cpc
from cpc.contexts import GRU, PixelCNN
from cpc.contexts.transformer import TransformerLayer
from cpc.data.batch import Batch
from cpc.encoders import PatchEncoder, TinyTrunk, VectorEncoder
from cpc.predictors import Bilinear, Predictor, TransformerPredictor

K, C, D = 3, 8, 5
BUILD: dict[str, Callable[[], Predictor]] = {
    "bilinear": lambda: Bilinear(K),
    "transformer": lambda: TransformerPredictor(K, num_heads=2, feedforward_dim=16),
    "shared transformer": lambda: TransformerPredictor(K, num_heads=2, feedforward_dim=16, shared_across_steps=True),
}


@pytest.fixture(params=BUILD)
def predictor(request: pytest.FixtureRequest) -> Predictor:
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
        for b in range(2):
            for t in range(7):
                torch.testing.assert_close(queries[k, b, t], predictor.weights[k] @ c[b, t])


@pytest.mark.parametrize(("context_dim", "latent_dim"), [(16, 16), (256, 512), (512, 64)])
@pytest.mark.parametrize(
    "build",
    [
        Bilinear,
        lambda: TransformerPredictor(12, 8, 64),
        lambda: TransformerPredictor(12, 8, 64, shared_across_steps=True),
    ],
)
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


def test_who_reads_the_past(predictor: Predictor) -> None:
    c = contexts()
    before = predictor(c)
    changed = c.clone()
    changed[:, 0] += torch.randn(C)
    has_changed = (predictor(changed)[:, :, 6] != before[:, :, 6]).any(-1)
    assert has_changed.all() if predictor.reads_past_contexts else not has_changed.any()
    assert not torch.allclose(before[0], before[1])


@pytest.mark.parametrize("shared", [False, True])
def test_transformer_against_loops_over_steps_built_apart(shared: bool) -> None:
    """Layers of their own, moved into the predictor by name; attention, norms and heads by loops in float64."""
    predictor = TransformerPredictor(K, num_heads=2, feedforward_dim=16, shared_across_steps=shared)
    predictor.connect(C, D)
    predictor.double().eval()
    layers = [TransformerLayer(C, num_heads=2, feedforward_dim=16).double() for _ in range(1 if shared else K)]
    heads = torch.randn(K, D, C, dtype=torch.float64)
    state = {f"layers.{i}.{name}": each for i, layer in enumerate(layers) for name, each in layer.state_dict().items()}
    predictor.load_state_dict(state | {"heads.linear.weight": heads.flatten(0, 1)})
    c = contexts()
    queries = predictor(c)
    for k in range(K):
        for b in range(2):
            hidden = transformer_layer(layers[0 if shared else k], c[b])
            for t in range(7):
                centred = hidden[t] - hidden[t].mean()
                expected = heads[k] @ (centred / (centred.square().mean() + 1e-5).sqrt())
                torch.testing.assert_close(queries[k, b, t], expected)


@pytest.mark.parametrize("shared", [False, True])
def test_dropout_acts_in_training_alone(shared: bool) -> None:
    predictor = TransformerPredictor(K, num_heads=2, feedforward_dim=16, dropout=0.5, shared_across_steps=shared)
    without = TransformerPredictor(K, num_heads=2, feedforward_dim=16, dropout=0.0, shared_across_steps=shared)
    for each in (predictor, without):
        each.connect(C, D)
        each.double()
    without.load_state_dict(predictor.state_dict())
    c = contexts()
    assert not torch.equal(predictor(c), predictor(c))
    assert torch.equal(predictor.eval()(c), without(c))


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_the_loss_of_a_padded_window_ignores_its_padding(build: Callable[[], Predictor]) -> None:
    model = cpc.CPC(VectorEncoder(4, dim=D), GRU(C), build()).double().eval()
    x = torch.randn(3, 9, 4, dtype=torch.float64)
    batch = Batch.of(x)._replace(num_valid=torch.tensor([9, 5, 9]))
    other = x.clone()
    other[1, 5:] = 10 * torch.randn(4, 4)
    assert not torch.equal(model(x).queries[""], model(other).queries[""])
    torch.testing.assert_close(model.loss(batch).loss_nats, model.loss(batch._replace(x=other)).loss_nats)


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_along_the_columns_of_a_grid(build: Callable[[], Predictor]) -> None:
    """Each direction's queries know the lines of patches before theirs, as it counts them, and none after."""
    context = PixelCNN(C, 2, 4, ("down", "up", "right", "left"))
    model = cpc.CPC(PatchEncoder(TinyTrunk(D, 1, (4, 1), (8, 8), "layer"), 8, 8), context, build()).double().eval()
    x = torch.rand(1, 1, 40, 40, dtype=torch.float64)  # 5 x 5 patches
    before = model(x).queries
    for image, directions in ((x, ("down", "up")), (x.mT, ("right", "left"))):
        changed = image.clone()
        changed[:, :, 16:24] = torch.rand(8, 40)  # the third line of patches
        after = model(changed if image is x else changed.mT).queries
        for direction in directions:
            has_changed = (before[direction] != after[direction]).any(-1)  # [K, S, T]
            assert has_changed[..., :3].tolist() == [[[False, False, True]] * 5] * K
    direction_weights = [list(predictor.parameters())[-1] for predictor in model.predictors]
    assert len({float(weights.detach().sum()) for weights in direction_weights}) == 4, "a predictor for each direction"


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


def test_connecting_twice(predictor: Predictor) -> None:
    before = [each.clone() for each in predictor.parameters()]
    predictor.connect(C, D)
    assert all(torch.equal(x, y) for x, y in zip(before, predictor.parameters(), strict=True))
    for dims in ((9, D), (C, 6)):
        with pytest.raises(ValueError, match=rf"must be \({C}, {D}\)"):
            predictor.connect(*dims)


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(ValueError, match=r"dim=10 is not a multiple of 2 \* num_heads, with num_heads=8"):
        cpc.CPC(VectorEncoder(4, dim=D), GRU(10), TransformerPredictor(3))
