"""Patches turned as by scipy, and their light changed as by torchvision."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from refusals import refuses
from scipy.ndimage import map_coordinates
from torch import Tensor
from torchvision.transforms.v2 import functional as theirs

from cpc.data.images.patch_augmentation import (
    OPERATIONS,
    PatchAugmentation,
    _moved,
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

GRID = PatchGrid(16, 8)
FILL = torch.tensor([0.2, 0.4, 0.6])


def test_the_papers_grid_and_one_that_is_none() -> None:
    assert PatchGrid(64, 32).side(256) == 7
    assert PatchGrid(64, 32).overlapping_rows == 1
    assert PatchGrid(80, 36).side(260) == 6
    assert PatchGrid(80, 36).overlapping_rows == 2
    assert PatchGrid(8, 8).overlapping_rows == 0
    refuses("stride`=9 must be at least 1 and at most 8", PatchGrid, 8, 9)
    refuses("kind='v3' is not one of none, light, v1, v2", PatchAugmentation, "v3", GRID, FILL)


def test_keyed_numbers_are_uniform_independent_and_the_keys_own() -> None:
    numbers = keyed_uniforms(np.arange(4000), 16)
    assert numbers.shape == (4000, 16)
    assert 0 <= numbers.min() < numbers.max() < 1
    counts = np.histogram(numbers, 20, (0, 1))[0]
    chi_square = ((counts - 3200) ** 2 / 3200).sum()
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001
    correlations = np.corrcoef(numbers, rowvar=False) - np.eye(16)
    assert abs(correlations).max() < 5 / np.sqrt(4000)
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 5 / np.sqrt(4000)
    assert np.array_equal(keyed_uniforms(np.array([7, 3]), 8), numbers[[7, 3], :8])


def images(num: int = 4) -> torch.Tensor:
    return torch.rand(num, 3, 40, 40, generator=torch.Generator().manual_seed(0))


def test_v1_is_a_sub_crop_in_a_frame_by_a_plain_loop() -> None:
    """facts T24: every patch has its own offset, drawn before it is encoded."""
    augmentation, x = PatchAugmentation("v1", GRID, FILL), images()
    assert augmentation.crop_size == 15
    keys = np.arange(4)
    patches = augmentation(x, keys)
    draws = keyed_uniforms(keys, 4 * 4 * 2).reshape(4, 4, 4, 2)
    seen = set()
    for b, row, column in np.ndindex(4, 4, 4):
        top, left = (draws[b, row, column] * 2).astype(int)
        seen.add((top, left))
        expected = FILL[:, None, None].expand(3, 16, 16).clone()
        y, z = 8 * row + top, 8 * column + left
        expected[:, :15, :15] = x[b, :, y : y + 15, z : z + 15]
        assert torch.equal(patches[b, row, column], expected)
    assert len(seen) == 4


def test_to_judge_by_patches_are_cut_in_the_middle_and_framed_alike() -> None:
    augmentation = PatchAugmentation("v1", PatchGrid(64, 32), FILL)
    x = torch.rand(1, 3, 96, 96)
    patches = augmentation.unaugmented(x)
    assert torch.equal(patches[0, 1, 0, :, 2:62, 2:62], x[0, :, 34:94, 2:62])
    frame = torch.ones(64, 64, dtype=torch.bool)
    frame[2:62, 2:62] = False
    assert torch.equal(patches[0, 0, 0][:, frame], FILL[:, None].expand(3, int(frame.sum())))
    assert torch.equal(PatchAugmentation("none", GRID, FILL).unaugmented(images()), GRID.patches(images()))


def test_v2_mirrors_drops_colours_and_changes_light_patch_by_patch() -> None:
    augmentation = PatchAugmentation("v2", GRID, FILL)
    x = torch.full((200, 3, 40, 40), 0.9)
    patches = augmentation(x, np.arange(200))
    assert torch.isfinite(patches).all()
    centre = patches[..., 4:12, 4:12].mean((4, 5))  # [B, H, W, C]
    is_dropped = (centre - FILL).abs() < 1e-4
    num_dropped = is_dropped.sum(-1)
    assert set(num_dropped.unique().tolist()) == {0, 2}
    share = (num_dropped == 2).float().mean().item()
    assert share == pytest.approx(0.8, abs=4 * (0.16 / 3200) ** 0.5)
    kept = (~is_dropped)[num_dropped == 2].float().mean(0)
    assert kept.tolist() == pytest.approx([1 / 3] * 3, abs=0.05)
    whole = centre[num_dropped == 0]
    assert whole[:, 0].std() > 0.02  # brightness differs from patch to patch
    assert (num_dropped[0] != num_dropped[0, 0, 0]).any()  # and so do colours within an image
    ramp = torch.linspace(0, 1, 40).expand(50, 3, 40, 40)
    slopes = augmentation(ramp, np.arange(50))[..., 6:10, 6:10].diff(dim=-1).mean((3, 4, 5))
    assert 0.3 < (slopes < 0).float().mean() < 0.7  # half are mirrored


def test_v2_leaves_the_frame_alone_whatever_becomes_of_the_light() -> None:
    """Patches that are not moved: the number that decides it is the fourth of eight, and 0.8 or more."""
    grid = PatchGrid(64, 32)
    keys = np.arange(40)
    patches = PatchAugmentation("v2", grid, FILL)(torch.rand(40, 3, 96, 96), keys).flatten(0, 2)
    is_still = torch.from_numpy(keyed_uniforms(keys, 4 * 8).reshape(-1, 8)[:, 3] >= 0.8)
    assert is_still.float().mean().item() == pytest.approx(0.2, abs=0.1)
    frame = ~grid.is_inside(60)
    assert torch.equal(patches[is_still][..., frame], FILL[:, None].expand(int(is_still.sum()), 3, int(frame.sum())))
    assert not torch.equal(patches[~is_still][..., frame], FILL[:, None].expand(int((~is_still).sum()), 3, 496))


@pytest.mark.parametrize(
    ("which", "amount"), [(0, 0.5), (0, -1.0), (3, 0.5), (3, -1.0), (4, 0.25), (1, 1.0), (2, -1.0)]
)
@pytest.mark.parametrize("is_mirrored", [False, True])
def test_patches_are_turned_sheared_and_shifted_as_by_scipy(which: int, amount: float, is_mirrored: bool) -> None:
    """Where a pixel comes from, by rows and columns from the middle, interpolated by another library."""
    x = torch.rand(1, 2, 20, 20, generator=torch.Generator().manual_seed(0))
    number = torch.tensor([(which + 0.5) / 5])
    found = _moved(x, torch.tensor([0.2 if is_mirrored else 0.7]), number, torch.tensor([amount]))
    rows, columns = np.mgrid[:20, :20] - 9.5
    columns = -columns if is_mirrored else columns
    angle = math.radians(20 * amount)
    from_rows, from_columns = {
        0: (rows * math.cos(angle) + columns * math.sin(angle), columns * math.cos(angle) - rows * math.sin(angle)),
        1: (rows, columns + 0.3 * amount * rows),
        2: (rows + 0.3 * amount * columns, columns),
        3: (rows, columns + 4 * amount),
        4: (rows + 4 * amount, columns),
    }[which]
    places = np.stack([from_rows, from_columns]) + 9.5
    for channel in range(2):
        expected = map_coordinates(x[0, channel].numpy(), places, order=1, mode="grid-constant")
        np.testing.assert_allclose(found[0, channel], expected, atol=1e-5)
    still = _moved(x, torch.tensor([0.7]), torch.tensor([1.1]), torch.tensor([amount]))
    torch.testing.assert_close(still, x, atol=1e-5, rtol=0)


def test_the_largest_numbers_stay_within_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^-26 below 1 rounds to 1 in float32: the last patches would be cut beyond the image."""
    monkeypatch.setattr(
        "cpc.data.images.patch_augmentation.keyed_uniforms", lambda keys, num: np.full((len(keys), num), 1 - 2.0**-26)
    )
    x = images()
    patches = PatchAugmentation("v1", GRID, FILL)(x, np.arange(4))
    assert torch.equal(patches[:, -1, -1, :, :15, :15], x[:, :, 25:, 25:])
    assert torch.isfinite(PatchAugmentation("v2", GRID, FILL)(x, np.arange(4))).all()
    assert PatchAugmentation("v1", PatchGrid(8, 4), FILL).crop_size == 7


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
