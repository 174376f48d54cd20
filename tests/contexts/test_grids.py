import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from einops import rearrange
from refusals import refuses
from torch import nn

from cpc.contexts import PixelCNN
from cpc.contexts.grid import DIRECTIONS, columns, orient, restore
from cpc.data.batch import Batch
from cpc.encoders import PatchEncoder, TinyTrunk
from cpc.losses import Contrastive, contrast
from cpc.model import CPC
from cpc.predictors import Bilinear

B, H, W, D = 2, 5, 4, 6
ALL = ("down", "up", "right", "left")


class MeanColour(nn.Module):
    """A trunk whose latent is a linear map of the patch: what it sees is plain."""

    dim, num_channels, stride, receptive_field = D, 1, 1, 1

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Conv2d(1, D, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def initialise_from(self, x: torch.Tensor) -> None:
        pass


def connected(directions: tuple[str, ...] = ALL) -> PixelCNN:
    torch.manual_seed(0)
    context = PixelCNN(8, 3, 8, directions)
    context.connect(D)
    return context


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_restore_undoes_orient(direction: str) -> None:
    grid = torch.randn(B, H, W, D)
    assert torch.equal(restore(orient(grid, direction), direction), grid)


def test_orient_puts_what_comes_first_in_front() -> None:
    grid = rearrange(torch.arange(6.0), "(h w) -> 1 h w 1", h=2)
    expected = {
        "down": [[0, 1, 2], [3, 4, 5]],
        "up": [[3, 4, 5], [0, 1, 2]],
        "right": [[0, 3], [1, 4], [2, 5]],
        "left": [[2, 5], [1, 4], [0, 3]],
    }
    for direction, rows in expected.items():
        assert orient(grid, direction)[0, :, :, 0].tolist() == rows


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_context_sees_its_own_and_the_former_rows_alone(direction: str) -> None:
    """facts T25: perturb one row at a time, in the direction of time."""
    context = connected((direction,))
    z = torch.randn(B, H, W, D)
    before = orient(context(z)[0], direction)
    for row in range(before.shape[1]):
        changed = orient(z, direction).clone()
        changed[:, row] += 1.0
        after = orient(context(restore(changed, direction))[0], direction)
        assert torch.equal(after[:, :row], before[:, :row])
        assert (after[:, row] != before[:, row]).any(-1).all()


def test_each_direction_has_its_own_part_and_weights() -> None:
    context = connected()
    z = torch.randn(B, H, W, D)
    together = context(z)[0]
    assert together.shape == (B, H, W, context.dim)
    for i, direction in enumerate(ALL):
        separate = restore(context.networks[i](orient(z, direction)), direction)
        assert torch.equal(together[..., 8 * i : 8 * (i + 1)], separate)
    first, second = (next(context.networks[i].parameters()) for i in (0, 1))
    assert not torch.equal(first, second)


def test_images_of_a_batch_do_not_see_each_other() -> None:
    context, order = connected(), torch.tensor([2, 0, 1])
    z = torch.randn(3, H, W, D)
    torch.testing.assert_close(context(z)[0][order], context(z[order])[0])


def test_sequences_are_columns_with_their_images_side_by_side() -> None:
    context = connected(("down", "right"))
    z = torch.randn(B, H, W, D)
    down, right = columns(z, "down"), columns(z, "right")
    assert torch.equal(down.reshape(B, W, H, D)[1, 2], z[1, :, 2])
    assert torch.equal(right.reshape(B, H, W, D)[1, 2], z[1, 2])
    right_contexts = context(z)[0][..., 8:]
    torch.testing.assert_close(context.split_directions(context(z)[0])["right"], columns(right_contexts, "right"))
    assert context.split_directions(context(z)[0])["right"].shape == (B * H, W, 8)


def model(skip_steps: int, directions: tuple[str, ...] = ALL, num_steps: int = 2, **options: Any) -> CPC:
    torch.manual_seed(0)
    encoder = PatchEncoder(MeanColour(), patch_size=4, stride=2)
    loss = Contrastive(**options, skip_steps=skip_steps)
    return CPC(encoder, PixelCNN(8, 2, 8, directions), Bilinear(num_steps), loss)


def cut_encoder() -> PatchEncoder:
    """Patches of 4 every 2 overlap by one row."""
    return PatchEncoder(MeanColour(), patch_size=4, stride=2)


def sliding_encoder() -> PatchEncoder:
    """Features of a trunk that slides over the image see beyond their patch of 4 as well."""
    trunk = TinyTrunk(D, 1, strides=(2, 1), widths=(4, 4), norm="none")
    return PatchEncoder(trunk, patch_size=4, stride=2, fully_convolutional=True)


@torch.no_grad()
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("make_encoder", "num_skipped"), [(cut_encoder, 1), (sliding_encoder, 3)])
def test_no_predicted_pixel_is_seen_where_overlapping_rows_are_skipped(
    make_encoder: Callable[[], PatchEncoder], num_skipped: int, direction: str
) -> None:
    """facts T25, from the pixels on: pixels of z at t + k and beyond change no c up to t, but change c at t + 1."""
    torch.manual_seed(0)
    encoder = make_encoder()
    assert encoder.overlapping_rows == num_skipped
    whole = CPC(encoder, PixelCNN(8, directions=(direction,)), Bilinear(1), Contrastive(skip_steps=num_skipped))
    x = torch.randn(1, 1, 20, 20)

    def encoded(lines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = rearrange(
            restore(lines.float().reshape(1, 20, 1, 1).expand(1, 20, 20, 1), direction), "b h w c -> b c h w"
        )
        latents, contexts, *_ = whole(x + pixels)
        return orient(latents, direction), orient(contexts, direction)

    latents, contexts = encoded(torch.zeros(20))
    one_by_one = torch.stack([encoded(line)[0] for line in torch.eye(20)])
    reaches = (one_by_one != latents).flatten(3).any(-1)[:, 0]  # [lines, rows]
    num_rows = latents.shape[1]
    first_steps = range(1 + num_skipped, num_rows)
    assert len(first_steps) >= 3
    for first_predicted in first_steps:
        row = first_predicted - 1 - num_skipped
        _, changed = encoded(reaches[:, first_predicted:].any(1))
        assert torch.equal(changed[:, : row + 1], contexts[:, : row + 1])
        assert not torch.equal(changed[:, row + 1], contexts[:, row + 1])  # one row less to skip would tell


@pytest.mark.parametrize("strategy", ["mixed", "sequence_only", "mixed_excluding"])
def test_the_loss_is_the_mean_over_directions_of_a_plain_loop(strategy: str) -> None:
    """Every image, direction, column, row and step by itself, in float64."""
    whole = model(1, ("down", "left"), negatives=strategy).double()
    x = torch.randn(B, 1, 12, 12, dtype=torch.float64)
    latents, contexts, *_ = output = whole(x)
    result = whole.contrast(output, Batch.of(x))
    side = latents.shape[1]
    losses: dict[tuple[str, int], list[torch.Tensor]] = {}
    for v, (direction, predictor) in enumerate(zip(("down", "left"), whole.predictors, strict=True)):
        z, c = orient(latents, direction), orient(contexts[..., 8 * v : 8 * (v + 1)], direction)
        for image in range(B):
            own, others = z[image].reshape(-1, D), z[torch.arange(B) != image].reshape(-1, D)
            candidates = {"mixed": torch.cat([own, others]), "sequence_only": own, "mixed_excluding": others}[strategy]
            for column in range(side):
                for i, k in enumerate((2, 3)):
                    for row in range(side - k):
                        query = predictor.weights[i] @ c[image, row, column]
                        positive = z[image, row + k, column] @ query
                        scores = candidates @ query
                        if strategy == "mixed_excluding":  # the positive is its own image's
                            scores = torch.cat([scores, positive[None]])
                        losses.setdefault((direction, k), []).append(scores.logsumexp(0) - positive)
    expected = torch.stack([torch.stack(step_losses).mean() for step_losses in losses.values()])
    torch.testing.assert_close(result.loss, expected.mean())
    per_step = result.loss_nats.sum(1) / result.num_rows.sum(1)
    torch.testing.assert_close(per_step.double(), expected, atol=1e-5, rtol=1e-5)
    assert [(step.direction, step.k) for step in whole.steps] == list(losses)
    assert result.num_rows.shape == (4, B)
    assert result.num_candidates[0, 0] / result.num_rows[0, 0] == len(scores)


def test_the_encoder_cuts_images_as_a_plain_loop_does() -> None:
    encoder = PatchEncoder(MeanColour(), patch_size=4, stride=2)
    encoder.set_statistics(torch.tensor([0.3]), torch.tensor([2.0]))
    x = torch.randn(2, 1, 10, 12)
    latents = encoder(x)
    assert latents.shape == (2, 4, 5, D)
    for row in range(4):
        for column in range(5):
            patch = (x[:, :, 2 * row : 2 * row + 4, 2 * column : 2 * column + 4] - 0.3) / 2
            torch.testing.assert_close(latents[:, row, column], encoder.trunk(patch).mean((2, 3)))
    torch.testing.assert_close(encoder(encoder.grid.patches(x)), latents)
    sliding = PatchEncoder(encoder.trunk, patch_size=4, stride=2, fully_convolutional=True)
    sliding.set_statistics(torch.tensor([0.3]), torch.tensor([2.0]))
    torch.testing.assert_close(sliding(x), latents)  # a 1x1 convolution sees no border
    assert sliding.overlapping_rows == encoder.overlapping_rows == encoder.grid.overlapping_rows == 1


def test_mistakes_are_named() -> None:
    for directions in ((), ("down", "down"), ("north",)):
        refuses("down, up, right, left", PixelCNN, 8, directions=directions)
    context = connected()
    refuses("takes no state", context, torch.randn(B, H, W, D), (torch.zeros(B),))
    refuses(r"of the shape \[B, H, W, 6\]", context, torch.randn(B, H, W, 5))
    refuses("skip_steps=-1", model, -1)
    refuses(r"a prediction 5 ahead .* needs at least 6", model(4).loss, torch.randn(B, 1, 12, 12))
    refuses("smaller than patch_size=4", model(1).loss, torch.randn(B, 1, 3, 3))
    refuses(r"leave out the last 1 pixels of images of 13: .* to 12 or 14", model(1).loss, torch.randn(B, 1, 13, 13))
    trunk = MeanColour()
    trunk.stride = 3
    refuses("must be multiples of 3", PatchEncoder, trunk, patch_size=4, stride=2, fully_convolutional=True)


def test_a_grid_of_one_column_keeps_its_directions() -> None:
    whole = model(1, ("down", "up"))
    result = whole.loss(torch.randn(B, 1, 12, 4))
    assert result.num_rows.shape == (4, B)
    result.loss.backward()
    assert all(predictor.linear.weight.grad.abs().sum() > 0 for predictor in whole.predictors)


def test_rows_that_no_positive_can_lie_in_give_log_h_over_h_minus_k() -> None:
    """docs/theory.md: latents that say nothing but their row, queries that are all equal, an ideal critic."""
    num_rows, k = 7, 2
    z = torch.eye(num_rows)[None].expand(40, -1, -1)
    query = torch.where(torch.arange(num_rows) >= k, 0.0, -50.0)
    result = contrast(query.expand(1, 40, num_rows, num_rows), z, strategy="mixed_excluding", skip_steps=k - 1)
    reading = (result.log_num_candidates - result.loss_nats).sum() / result.num_rows.sum()
    assert reading.item() == pytest.approx(math.log(num_rows / (num_rows - k)), abs=0.01)
