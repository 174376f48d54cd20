"""Distances between spans of frames: the mean angle along the cheapest alignment of two spans.

P pairs, S and T frames in the two spans of a pair, D feature dim, R stored vectors, n spans.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

_BATCH_VALUES = 2**20  # number of frames and angles of a batch that fit into the processor's cache
# Angles are rounded to multiples of 2^-20. So equal frames have distance 0 instead of 1e-8, sums are exact, and equal
# costs stay equal.
_GRID = 2**20


def angles(x: Float[Tensor, "P S D"], y: Float[Tensor, "P T D"]) -> Float[Tensor, "P S T"]:
    """Return arccos(cosine) / pi of every frame of x and every frame of y, rounded to 2^-20.

    The value is 0 for equal directions, 0.5 for orthogonal and 1 for opposite directions. A frame of zeros has no
    direction; as in libri-light, its distance is 0 to another frame of zeros and 1 to all other frames.
    """
    norms = [frames.norm(dim=2, keepdim=True) for frames in (x, y)]
    x, y = (frames / norm.where(norm > 0, 1) for frames, norm in zip((x, y), norms, strict=True))
    num_zeros = (norms[0] == 0).int() + rearrange(norms[1] == 0, "p t 1 -> p 1 t").int()
    cosine = x @ rearrange(y, "p t d -> p d t")
    cosine = cosine.where(num_zeros == 0, 2 * num_zeros - 3)  # -1 if one frame is zero, 1 if both are
    return (cosine.clamp(-1, 1).arccos() * (_GRID / math.pi)).round() / _GRID


def mean_along_alignment(
    distances: Float[Tensor, "P S T"], num_x: Int[Tensor, " P"], num_y: Int[Tensor, " P"]
) -> Float[Tensor, " P"]:
    """Return the cost of the cheapest path from the first frames to the last, divided by its length.

    This is dynamic time warping as in libri-light's `dtw.pyx`. A step of a path advances by one frame in x, in y, or in
    both. Paths of equal cost may differ in length, so a rule decides between predecessors of equal cost: a step in both
    comes first, then a step in y. The distances of a pair are padded beyond its `num_x` and `num_y` frames.
    """
    num_rows = distances.shape[1]
    # Row i is shifted by i columns, so that a column holds an antidiagonal, whose cells do not depend on each other.
    padded = rearrange(F.pad(distances, (0, num_rows), value=math.inf), "p s w -> p (s w)")
    diagonals = rearrange(padded[:, :-num_rows], "p (s d) -> d p s", s=num_rows).contiguous()
    shape = (len(distances), num_rows + 1)  # row 0 stands for the state before the first frame of x
    cost, length = distances.new_full(shape, math.inf), distances.new_zeros(shape)
    cost_before, length_before = cost.clone(), length.clone()
    cost_before[:, 0] = 0  # where paths start
    mean = distances.new_empty(len(distances))
    for index, added in enumerate(diagonals):
        both, x_step, y_step = cost_before[:, :-1], cost[:, :-1], cost[:, 1:]
        single = torch.minimum(x_step, y_step)
        steps = torch.where(y_step <= x_step, length[:, 1:], length[:, :-1])
        steps = torch.where(both <= single, length_before[:, :-1], steps) + 1
        cheapest = torch.minimum(both, single) + added
        cost_before, length_before = cost, length
        cost, length = F.pad(cheapest, (1, 0), value=math.inf), F.pad(steps, (1, 0))
        (ended,) = torch.nonzero(num_x + num_y - 2 == index, as_tuple=True)
        mean[ended] = cost[ended, num_x[ended]] / length[ended, num_x[ended]]
    return mean


def alignment_distances(
    vectors: Any, starts: np.ndarray, lengths: np.ndarray, pairs: np.ndarray, *, device: str = "cpu", progress: bool
) -> np.ndarray:
    """Return the `[P]` float64 distances, from 0 to 1, of the `[P, 2]` pairs of spans of the `[R, D]` vectors."""
    longest = lengths[pairs].max(1, initial=0)
    order = np.lexsort((lengths[pairs[:, 0]], longest))[::-1]  # batches have similar lengths, the longest first
    result = np.empty(len(pairs))
    start = 0
    with tqdm(total=len(pairs), desc="alignments", unit="pair", disable=not progress) as bar:
        while start < len(order):
            frames = int(longest[order[start]])
            chosen = order[start : start + max(1, _BATCH_VALUES // (frames * (frames + 2 * vectors.shape[1])))]
            x, y = (_gathered(vectors, starts[side], lengths[side], device) for side in pairs[chosen].T)
            num_x, num_y = (torch.from_numpy(lengths[side]).to(device) for side in pairs[chosen].T)
            result[chosen] = mean_along_alignment(angles(x, y), num_x, num_y).cpu().numpy()
            start += len(chosen)
            bar.update(len(chosen))
    return result


def _gathered(vectors: Any, starts: np.ndarray, lengths: np.ndarray, device: str) -> Float[Tensor, "P S D"]:
    """Return spans as a batch, each padded with its last frame."""
    indices = starts[:, None] + np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
    return torch.from_numpy(vectors[indices]).to(device).double()
