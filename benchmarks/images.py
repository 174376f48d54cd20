"""Training on images: images a second and share of the matrix peak, and three ways to encode a grid of patches.

python -m benchmarks.images [--batch_size B] [--repetitions N]

The step is the whole one (cut and change patches, encode, contexts, loss, gradients, Adam) of a model for images of 32
with patches of 8, and of one for 64 with patches of 16. Encoding, forward and backward: all patches in one call
(`PatchEncoder`); a loop over the places of the grid, as many implementations have it, with the same trunk and with
torch's own convolutions; and `fully_convolutional`, which sees more of the image (its docstring says what).
"""

import argparse
import json
from collections.abc import Callable

import numpy as np
import torch
from einops import reduce
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.encoder import alternating_medians, forward_and_backward
from benchmarks.machine import machine_state, median_seconds
from cpc.contexts import PixelCNN
from cpc.data.images.patch_augmentation import PatchAugmentation
from cpc.encoders import PatchEncoder, TinyTrunk
from cpc.losses import Contrastive
from cpc.model import CPC
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.predictors import Bilinear

# (image size, patch size, stride, the trunk's strides and widths)
SIZES = {"32_pixels": (32, 8, 4, (2, 2, 1), (32, 64, 128)), "64_pixels": (64, 16, 8, (4, 1, 2), (64, 64, 128))}


def model(patch_size: int, stride: int, strides: tuple[int, ...], widths: tuple[int, ...]) -> CPC:
    torch.manual_seed(0)
    trunk = TinyTrunk(256, 3, strides=strides, widths=widths)
    return CPC(PatchEncoder(trunk, patch_size, stride), PixelCNN(256), Bilinear(5), Contrastive(skip_steps=1))


def step(whole: CPC, images: Tensor, augmentation: PatchAugmentation) -> Callable[[], None]:
    optimiser = torch.optim.Adam(whole.parameters())
    keys = np.arange(len(images))

    def run() -> None:
        optimiser.zero_grad()
        whole.loss(augmentation(images, keys)).loss.backward()
        optimiser.step()

    return run


def library_trunk(trunk: TinyTrunk) -> nn.Sequential:
    """The same layers by nn.Conv2d, channels first."""
    modules: list[nn.Module] = []
    dims = [trunk.num_channels, *trunk.widths, trunk.dim]
    for i, stride in enumerate([*trunk.strides, 1]):
        is_last = i == len(trunk.strides)
        kernel = 1 if is_last else stride if stride > 1 else 3
        modules += [nn.Conv2d(dims[i], dims[i + 1], kernel, stride, padding=int(kernel == 3)), nn.ReLU()]
    return nn.Sequential(*modules)


def loop_over_places(trunk: nn.Module, patches: Tensor) -> Tensor:
    """Latents of one place of the grid after the other, `[B, H, W, D]`."""
    _, num_rows, num_columns, *_ = patches.shape
    rows = [
        torch.stack([reduce(trunk(patches[:, r, c]), "b d p q -> b d", "mean") for c in range(num_columns)], 1)
        for r in range(num_rows)
    ]
    return torch.stack(rows, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=11)
    options = parser.parse_args()
    prepare_processor()
    state = machine_state(keep_freed_memory())
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    figures = {}
    for name, (size, patch_size, stride, strides, widths) in SIZES.items():
        whole = model(patch_size, stride, strides, widths)
        images = torch.rand(options.batch_size, 3, size, size)
        run = step(whole, images, PatchAugmentation("v1", whole.encoder.grid, torch.full((3,), 0.5)))
        with FlopCounterMode(display=False) as counter:
            run()
        seconds = median_seconds(run, options.repetitions)
        gflops = counter.get_total_flops() / seconds / 1e9

        encoder, patches = whole.encoder, whole.encoder.grid.patches(images).contiguous()
        parameters = list(encoder.parameters())
        library = library_trunk(encoder.trunk)
        sliding = PatchEncoder(encoder.trunk, patch_size, stride, fully_convolutional=True)
        together = forward_and_backward(lambda e=encoder, p=patches: e(p), parameters)
        others = {
            "loop": forward_and_backward(lambda e=encoder, p=patches: loop_over_places(e.trunk, p), parameters),
            "library_loop": forward_and_backward(
                lambda net=library, p=patches: loop_over_places(net, p), list(library.parameters())
            ),
            "fully_convolutional": forward_and_backward(lambda e=sliding, x=images: e(x), parameters),
        }
        ratios = {}
        for other, function in others.items():
            ours, theirs = alternating_medians(together, function, options.repetitions)
            ratios[other] = theirs / ours
        figures[name] = {
            "images_per_second": round(options.batch_size / seconds, 1),
            "seconds_per_step": round(seconds, 4),
            "percent_of_peak": round(100 * gflops / state["gemm_peak_gflops"], 1),
            "gflop_per_image": round(counter.get_total_flops() / 1e9 / options.batch_size, 3),
            **{f"{other}_over_patches": round(ratio, 2) for other, ratio in ratios.items()},
        }
        print(name, "  ".join(f"{key} {value}" for key, value in figures[name].items()), flush=True)
    print(json.dumps(figures | {"machine": state}))


if __name__ == "__main__":
    main()
