import math

import pytest
import torch
from refusals import refuses
from torch import Tensor

from cpc.encoders import GradientTrunk, PatchEncoder
from cpc.encoders.gradients import cell_means, orientation_maps


def ramp(angle: float, size: int = 12) -> Tensor:
    """A patch that becomes brighter by 1 a pixel towards `angle`, from the right clockwise, as rows count down."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return (rows * math.sin(angle) + columns * math.cos(angle)).float()[None, None]


@pytest.mark.parametrize("number", range(8))
def test_a_ramp_counts_for_its_own_orientation_alone(number: int) -> None:
    maps = orientation_maps(ramp(number * math.pi / 4), 8)
    expected = torch.zeros(1, 8, 10, 10)
    expected[:, number] = 1
    torch.testing.assert_close(maps, expected, atol=1e-5, rtol=0)


def test_a_ramp_between_two_orientations_is_shared_by_how_near_they_are() -> None:
    maps = orientation_maps(ramp(-0.25 * math.pi / 4), 8)
    torch.testing.assert_close(maps[0, :, 3, 3], torch.tensor([0.75, 0, 0, 0, 0, 0, 0, 0.25]), atol=1e-5, rtol=0)


def test_the_gradient_is_that_of_the_channel_where_it_is_largest() -> None:
    right, down = ramp(0.0), ramp(math.pi / 2)
    maps = orientation_maps(torch.cat([0.5 * right, down, 0.2 * right], 1), 4)
    torch.testing.assert_close(maps, orientation_maps(down, 4))


def test_cells_are_means_by_a_loop() -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 3, 8, 11, dtype=torch.float64)
    means = cell_means(x, 3)
    for row in range(3):
        for column in range(3):
            total, weights = torch.zeros(2, 3, dtype=torch.float64), 0.0
            for p in range(8):
                for q in range(11):
                    apart_rows = abs((p + 0.5) / 8 * 3 - (row + 0.5))
                    apart_columns = abs((q + 0.5) / 11 * 3 - (column + 0.5))
                    weight = max(0.0, 1 - apart_rows) * max(0.0, 1 - apart_columns)
                    total += weight * x[:, :, p, q]
                    weights += weight
            torch.testing.assert_close(means[:, :, row, column], total / weights, atol=1e-6, rtol=1e-6)


def trunk(**options: int) -> GradientTrunk:
    torch.manual_seed(0)
    return GradientTrunk(**{"dim": 6, "hidden_dim": 9, "num_orientations": 4, "num_cells": 2} | options)


def test_latents_are_two_layers_on_standardised_features() -> None:
    """With four cells all are neighbours, so each is divided by the contrast of all cells."""
    model, x = trunk(num_channels=2), torch.rand(5, 2, 10, 10)
    model.initialise_from(x)
    histograms, colours = cell_means(orientation_maps(x, 4), 2), cell_means(x[:, :, 1:-1, 1:-1], 2)
    contrast = histograms.square().sum(1).mean((1, 2)).sqrt() + 0.05
    features = torch.cat(
        [
            (histograms / contrast[:, None, None, None]).sqrt().flatten(1),
            contrast.log()[:, None].expand(-1, 4),
            colours.mean(1).flatten(1),
            (colours[:, 1] - colours[:, 0]).flatten(1),
        ],
        1,
    ).double()
    standardised = (features - features.mean(0)) / features.std(0)
    first, _, second = model.layers.double()
    expected = second(first(standardised).relu())
    torch.testing.assert_close(model.float()(x)[:, :, 0, 0].double(), expected, atol=1e-4, rtol=1e-4)


def test_histograms_do_not_change_with_light() -> None:
    """Twice the contrast and another brightness: of 28 features, only those of contrast and colour move."""
    model, x = trunk(), 20 * torch.rand(3, 3, 12, 12)
    model.layers = torch.nn.Identity()
    before, after = model(x)[:, :, 0, 0], model(2 * x + 5)[:, :, 0, 0]
    torch.testing.assert_close(before[:, :16], after[:, :16], atol=5e-3, rtol=0)
    torch.testing.assert_close(before[:, 16:20] + math.log(2), after[:, 16:20], atol=1e-2, rtol=0)
    torch.testing.assert_close(2 * before[:, 20:24] + 5, after[:, 20:24])
    torch.testing.assert_close(2 * before[:, 24:], after[:, 24:], atol=1e-4, rtol=1e-4)


def test_latents_of_a_grid_see_their_own_patch_alone() -> None:
    encoder = PatchEncoder(trunk(), 16, 8)
    images = torch.rand(2, 3, 32, 32)
    changed = images.clone()
    changed[0, :, 24:, 24:] = torch.rand(3, 8, 8)
    moved = (encoder(images) - encoder(changed)).abs().amax(-1) > 1e-6
    expected = torch.zeros(2, 3, 3, dtype=torch.bool)
    expected[0, 2, 2] = True
    assert torch.equal(moved, expected)


def test_what_does_not_fit_is_refused() -> None:
    refuses(r"patch_size=5 does not fit .* a side needs at least 6", PatchEncoder, GradientTrunk(), 5, 5)
    refuses("limited receptive_field", PatchEncoder, GradientTrunk(), 16, 8, fully_convolutional=True)
    refuses("not constant", GradientTrunk().initialise_from, torch.zeros(2, 3, 16, 16))
