from collections.abc import Callable
from functools import partial

import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

from cpc.contexts import GRU, PixelCNN
from cpc.data import PatchAugmentation
from cpc.encoders import AudioEncoder, Backbone, PatchEncoder, ResNetTrunk, TinyTrunk
from cpc.encoders.convolution import Norm
from cpc.model import CPC
from cpc.predictors import Bilinear


@pytest.mark.parametrize(
    ("trunk", "patch_size", "message"),
    [
        (TinyTrunk(8, strides=(4, 4), widths=(8, 8)), 15, r"patch_size=15 does not fit the trunk TinyTrunk.*cannot"),
        (Backbone("alexnet", "features"), 16, r"patch_size=16 does not fit the trunk alexnet.*too small"),
        (nn.Flatten(), 16, r"patch_size=16 does not fit the trunk Flatten, which gives \(1, 768\) .*, not a map"),
    ],
    ids=["tiny", "alexnet", "no map"],
)
def test_patches_too_small_for_the_trunk_are_named(trunk: nn.Module, patch_size: int, message: str) -> None:
    if isinstance(trunk, nn.Flatten):
        trunk.num_channels, trunk.stride, trunk.dim = 3, 1, 8
    refuses(message, PatchEncoder, trunk, patch_size, 4)
    assert all(module.training for module in trunk.modules())


class Dropping(TinyTrunk):
    """One whose output in training is left to chance, and a part of which its owner has frozen."""

    def __init__(self) -> None:
        super().__init__(8, 1)
        self.frozen = nn.Dropout().eval()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), training=self.training)


def test_trying_a_patch_draws_no_numbers_and_leaves_modes_alone() -> None:
    trunk, state = Dropping(), torch.get_rng_state()
    PatchEncoder(trunk, 8, 4)
    assert torch.equal(torch.get_rng_state(), state)
    assert (trunk.training, trunk.layers.training, trunk.frozen.training) == (True, True, False)


@pytest.mark.parametrize("kind", ["none", "light", "v1", "v2"])
@pytest.mark.parametrize("patch_size", [8, 16, 64])
def test_whole_images_are_framed_as_augmentation_frames_them(kind: str, patch_size: int) -> None:
    """Features of `model(images)` equal the features that `cpc embed` writes for the same images."""
    encoder = PatchEncoder(TinyTrunk(8), patch_size, patch_size // 2)
    encoder.set_statistics(torch.tensor([0.5, 0.4, 0.6]), torch.tensor([0.2, 0.3, 0.25]))
    augmentation = PatchAugmentation(kind, encoder.grid, encoder.pixel_mean)
    encoder.crop_size = augmentation.crop_size
    images = torch.rand(2, 3, 2 * patch_size, 2 * patch_size)
    assert torch.equal(encoder(images), encoder(augmentation.unaugmented(images)))
    bare = encoder(encoder.grid.patches(images))
    assert torch.equal(encoder(images), bare) == (kind in ("none", "light"))


def test_a_frame_that_is_none_is_named() -> None:
    for crop_size in (0, 9):
        refuses(f"{crop_size} must be at least 1 and at most 8", PatchEncoder, TinyTrunk(8), 8, 4, crop_size=crop_size)
    refuses(r"with `fully_convolutional`", PatchEncoder, TinyTrunk(8), 8, 8, fully_convolutional=True, crop_size=7)


@pytest.mark.parametrize("crop_size", [None, 6])
@pytest.mark.parametrize("shape", [(2, 1, 16, 16), (2, 3, 3, 1, 8, 8)], ids=["images", "patches"])
def test_pixels_of_other_channels_are_refused(shape: tuple[int, ...], crop_size: int | None) -> None:
    """Standardising by the mean of three channels would make three of one."""
    encoder = PatchEncoder(TinyTrunk(8), 8, 4, crop_size=crop_size)
    for take in (encoder, encoder.initialise_from):
        refuses(r"of the shape \[B, (H, W, )?3,", take, torch.rand(shape))


def test_contexts_of_another_shape_are_refused_by_the_model() -> None:
    """Not only in training: the library refuses them at once."""
    images, audio = PatchEncoder(ResNetTrunk(18, width=4, stem="small"), 8, 4), AudioEncoder(8)
    refuses("PatchEncoder gives grids, but GRU takes sequences", CPC, images, GRU(8), Bilinear(1))
    refuses("AudioEncoder gives sequences, but PixelCNN takes grids", CPC, audio, PixelCNN(8), Bilinear(1))


TRUNKS: dict[str, Callable[..., TinyTrunk | ResNetTrunk]] = {
    **{
        f"tiny {strides}": partial(TinyTrunk, 8, strides=strides, widths=(4, 4, 6, 6))
        for strides in ((4, 1, 2, 1), (2, 1, 1, 2), (3, 2, 1, 1))
    },
    **{f"resnet {depth}": partial(ResNetTrunk, depth, stem="small", width=4) for depth in (18, 50)},
}
EACH_TRUNK = pytest.mark.parametrize("trunk", TRUNKS.values(), ids=TRUNKS)


@EACH_TRUNK
@pytest.mark.parametrize("norm", ["layer", "none"])
def test_receptive_field_and_stride_by_perturbation(trunk: Callable[..., TinyTrunk | ResNetTrunk], norm: Norm) -> None:
    """With positive weights nothing hides behind a ReLU: a feature moves for the pixels of its field and no others."""
    model = trunk(norm=norm)
    for parameter in model.parameters():
        parameter.data.abs_()
    x = torch.rand(1, 3, 128, 128, requires_grad=True)
    features = model(x)
    middle, firsts = features.shape[2] // 2, []
    for row in (middle - 1, middle):
        (gradient,) = torch.autograd.grad(features[0, :, row, middle].sum(), x, retain_graph=True)
        rows, columns = gradient[0].abs().sum((0, 2)).nonzero(), gradient[0].abs().sum((0, 1)).nonzero()
        assert rows[-1] - rows[0] + 1 == columns[-1] - columns[0] + 1 == model.receptive_field
        firsts.append(rows[0].item())
    assert firsts[1] - firsts[0] == model.stride


@EACH_TRUNK
@pytest.mark.parametrize("norm", ["affine", "layer", "none"])
def test_patches_do_not_see_each_other(trunk: Callable[..., TinyTrunk | ResNetTrunk], norm: Norm) -> None:
    model = trunk(norm=norm).double()
    x = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    model.initialise_from(x)
    changed = x.clone()
    changed[2] = torch.randn(3, 16, 16)
    others = torch.arange(6) != 2
    assert torch.equal(model(x)[others], model(changed)[others])
    assert not torch.equal(model(x)[2], model(changed)[2])
    torch.testing.assert_close(model(x[:1])[0], model(x)[0])
    assert not [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
