"""AutoAugment's changes of light against torchvision's, patch by patch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as theirs

from cpc.data.images.patch_augmentation import (
    OPERATIONS,
    PatchAugmentation,
    brightness,
    change_light,
    colour,
    contrast,
    keyed_uniforms,
    posterise,
    sharpness,
    solarise,
    stretch,
)
from cpc.encoders.patch_grid import PatchGrid

# The same operation with a single amount; ours changes by up to 0.6.
ORACLES: dict[Callable, Callable[[Tensor, float], Tensor]] = {
    brightness: lambda x, amount: theirs.adjust_brightness(x, 1 + 0.6 * amount),
    contrast: lambda x, amount: theirs.adjust_contrast(x, 1 + 0.6 * amount),
    colour: lambda x, amount: theirs.adjust_saturation(x, 1 + 0.6 * amount),
    sharpness: lambda x, amount: theirs.adjust_sharpness(x, 1 + 0.6 * amount),
    posterise: lambda x, amount: theirs.posterize(x, 2 + min(2, int((amount + 1) / 2 * 3))),
    solarise: lambda x, amount: theirs.solarize(x, (amount + 1) / 2),
    stretch: lambda x, amount: theirs.autocontrast(x),
}


def patches(num: int, num_channels: int) -> Tensor:
    return torch.rand(num, num_channels, 12, 12, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


@pytest.mark.parametrize("num_channels", [1, 3])
def test_each_operation_is_torchvisions_with_an_amount_of_its_own_for_every_patch(num_channels: int) -> None:
    assert set(OPERATIONS) == set(ORACLES)
    num = 9 * (len(OPERATIONS) + 1)
    x = patches(num, num_channels)
    amount = torch.tensor([-1, -0.7, -0.4, -0.2, -0.1, 0.1, 0.4, 0.7, 0.99]).repeat(len(OPERATIONS) + 1)
    number = torch.arange(len(OPERATIONS) + 1).repeat_interleave(9)  # the last nine are not changed
    order = torch.randperm(num, generator=torch.Generator().manual_seed(1))
    which = (number + 0.5) / len(OPERATIONS)
    changed = change_light(x[order], which[order], amount[order])
    assert changed.min() >= 0
    assert changed.max() <= 1
    for found, index in zip(changed, order.tolist(), strict=True):
        if number[index] == len(OPERATIONS):
            assert torch.equal(found, x[index])
        else:
            operation = OPERATIONS[number[index]]
            expected = ORACLES[operation](x[index], amount[index].item())
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)  # red is worth 0.2989 there
            has_no_effect = num_channels == 1 and operation is colour
            assert torch.equal(found, x[index]) == (has_no_effect or (operation is solarise and amount[index] > 0.9))


def test_every_operation_comes_as_often() -> None:
    which = torch.rand(4000, generator=torch.Generator().manual_seed(2)) / 0.8  # four fifths are changed
    x = patches(1, 3).expand(4000, -1, -1, -1)
    changed = change_light(x, which, torch.full((4000,), 0.5))
    assert (changed == x).flatten(1).all(1).float().mean().item() == pytest.approx(0.2, abs=0.03)


def test_patches_of_one_colour_and_of_few_pixels() -> None:
    for size in (1, 2, 3):
        x = torch.full((2 * len(OPERATIONS), 3, size, size), 0.25)
        which = torch.arange(len(OPERATIONS)).repeat(2).add(0.5) / len(OPERATIONS)
        changed = change_light(x, which, torch.full((len(x),), -0.5))
        assert torch.isfinite(changed).all()
        flat = changed[:, :, :1, :1].expand_as(changed)
        torch.testing.assert_close(changed, flat)


@pytest.mark.parametrize("num_channels", [1, 3])
def test_light_changes_every_patch_by_amounts_of_its_own(num_channels: int) -> None:
    grid, keys = PatchGrid(8, 4), np.array([3, 7])
    x = torch.rand(2, num_channels, 16, 16, generator=torch.Generator().manual_seed(0))
    augmentation = PatchAugmentation("light", grid, torch.zeros(num_channels))
    found, draws = augmentation(x, keys), keyed_uniforms(keys, 54).reshape(2, 3, 3, 6)
    num_grey = 0
    for b, row, column in np.ndindex(2, 3, 3):
        brightness_draw, contrast_draw, grey_draw, *casts = draws[b, row, column]
        patch = grid.patches(x)[b, row, column].double().numpy() * np.exp(0.8 * (2 * brightness_draw - 1))
        for channel, cast in zip(patch, casts, strict=False):
            channel *= np.exp(0.4 * (2 * cast - 1))
        patch = patch.mean() + (patch - patch.mean()) * np.exp(0.8 * (2 * contrast_draw - 1))
        if grey_draw < 0.3:
            num_grey += 1
            patch[:] = patch.mean(0)
        np.testing.assert_allclose(found[b, row, column], patch, atol=1e-5)
    assert 0 < num_grey < 18
    assert augmentation.crop_size is None
    assert torch.equal(augmentation.unaugmented(x), grid.patches(x))
