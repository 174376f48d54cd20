import pytest
import torch
from torch.nn.functional import layer_norm

from cpc.contexts import CausalConv


def test_against_loops_over_time_and_taps() -> None:
    context = CausalConv(4, num_layers=3, kernel_size=3, dilation_growth=2)
    context.connect(3)
    context.double()
    z = torch.randn(2, 11, 3, dtype=torch.float64)
    weights = context.state_dict()
    hidden = z @ weights["projection.weight"].T + weights["projection.bias"]
    for i, dilation in enumerate((1, 2, 4)):
        norm_weight, norm_bias, conv_weight, conv_bias, output_weight, output_bias = (
            weights[f"layers.{i}.{part}.{kind}"] for part in ("norm", "conv", "output") for kind in ("weight", "bias")
        )
        normed = layer_norm(hidden, (4,), norm_weight, norm_bias)
        outputs = []
        for t in range(11):
            activation = conv_bias.expand(2, 4)
            for tap in range(3):
                source = t - (2 - tap) * dilation
                if source >= 0:
                    activation = activation + normed[:, source] @ conv_weight[:, :, tap].T
            outputs.append(hidden[:, t] + activation.relu() @ output_weight.T + output_bias)
        hidden = torch.stack(outputs, 1)
    torch.testing.assert_close(context(z)[0], hidden)


@pytest.mark.parametrize(("growth", "expected"), [(1, 9), (2, 31), (3, 81)])
def test_receptive_field(growth: int, expected: int) -> None:
    context = CausalConv(32, num_layers=4, kernel_size=3, dilation_growth=growth)
    assert context.receptive_field == expected
    context.connect(4)
    z = torch.randn(1, 100, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad((context(z)[0][0, 99] * torch.randn(32)).sum(), z)
    seen = gradient[0].any(-1).nonzero()[:, 0]
    assert int(seen.min()) == 99 - expected + 1


def test_contexts_do_not_depend_on_the_place_in_the_sequence() -> None:
    context = CausalConv(4, num_layers=2, kernel_size=3)
    context.connect(4)
    z = torch.randn(2, 40, 4)
    whole, later = context(z)[0], context(z[:, 13:])[0]
    torch.testing.assert_close(later[:, context.receptive_field - 1 :], whole[:, 13 + context.receptive_field - 1 :])


def test_state_is_small_and_its_own() -> None:
    context = CausalConv(4, num_layers=3, kernel_size=3, dilation_growth=2)
    context.connect(4)
    for num_latents in (1, 500):
        _, state = context(torch.randn(2, num_latents, 4))
        assert [each.shape for each in state] == [(2, 2, 4), (2, 4, 4), (2, 8, 4)]
        assert all(each.untyped_storage().nbytes() == each.numel() * 4 for each in state)


@pytest.mark.parametrize("argument", ["num_layers", "kernel_size", "dilation_growth"])
def test_bad_arguments(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument}=0"):
        CausalConv(8, **{argument: 0})
