"""How far two stretches of frames are apart: the mean angle along the cheapest alignment of the two.

P pairs, S T frames of the two stretches of a pair, D feature dim, R stored vectors, n stretches.
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

_BATCH_VALUES = 2**20  # of a batch's frames and angles: they stay in the processor's cache
# Angles are multiples of 2^-20: equal frames are at 0 and not at 1e-8, sums are exact, and so ties are ties.
_GRID = 2**20


def angles(x: Float[Tensor, "P S D"], y: Float[Tensor, "P T D"]) -> Float[Tensor, "P S T"]:
    """arccos(cosine) / pi of every frame of x and every frame of y: 0 one direction, 0.5 orthogonal, 1 opposite.

    Rounded to 2^-20. A frame of zeros has no direction: as in libri-light it is at 0 from another such frame, and at 1
    from all others.
    """
    norms = [frames.norm(dim=2, keepdim=True) for frames in (x, y)]
    x, y = (frames / norm.where(norm > 0, 1) for frames, norm in zip((x, y), norms, strict=True))
    num_zeros = (norms[0] == 0).int() + rearrange(norms[1] == 0, "p t 1 -> p 1 t").int()
    cosine = (x @ rearrange(y, "p t d -> p d t")).where(num_zeros == 0, 2 * num_zeros - 3)  # -1 of one, 1 of two zeros
    return (cosine.clamp(-1, 1).arccos() * (_GRID / math.pi)).round() / _GRID


def mean_along_alignment(
    distances: Float[Tensor, "P S T"], num_x: Int[Tensor, " P"], num_y: Int[Tensor, " P"]
) -> Float[Tensor, " P"]:
    """Dynamic time warping: the cheapest path from the first frames to the last, its cost divided by its length.

    A path goes on by one frame of x, of y, or of both. Of predecessors that cost the same the one of both is taken,
    then that of y: paths of one cost may differ in length. All as in libri-light's `dtw.pyx`.

    Args:
        distances: between frames, padded behind the ends.
        num_x: S of each pair, at least 1.
        num_y: T of each pair, at least 1.
    """
    num_rows = distances.shape[1]
    # Each row begins one place after the row before, so that cells which do not need each other make a column.
    padded = rearrange(F.pad(distances, (0, num_rows), value=math.inf), "p s w -> p (s w)")
    diagonals = rearrange(padded[:, :-num_rows], "p (s d) -> d p s", s=num_rows).contiguous()
    shape = (len(distances), num_rows + 1)  # row 0 stands before the first frame of x
    cost, length = distances.new_full(shape, math.inf), distances.new_zeros(shape)
    cost_before, length_before = cost.clone(), length.clone()
    cost_before[:, 0] = 0  # where paths start
    mean = distances.new_empty(len(distances))
    for number, added in enumerate(diagonals):
        both, of_x, of_y = cost_before[:, :-1], cost[:, :-1], cost[:, 1:]
        single = torch.minimum(of_x, of_y)
        steps = torch.where(of_y <= of_x, length[:, 1:], length[:, :-1])
        steps = torch.where(both <= single, length_before[:, :-1], steps) + 1
        cheapest = torch.minimum(both, single) + added
        cost_before, length_before = cost, length
        cost, length = F.pad(cheapest, (1, 0), value=math.inf), F.pad(steps, (1, 0))
        (ended,) = torch.nonzero(num_x + num_y - 2 == number, as_tuple=True)
        mean[ended] = cost[ended, num_x[ended]] / length[ended, num_x[ended]]
    return mean


def alignment_distances(
    vectors: Any, starts: np.ndarray, lengths: np.ndarray, pairs: np.ndarray, *, device: str = "cpu", progress: bool
) -> np.ndarray:
    """How far pairs of stretches are apart, from 0 to 1.

    Args:
        vectors: `[R, D]` frames, an array.
        starts: `[n]` first frame of each stretch.
        lengths: `[n]` frames of each, at least 1.
        pairs: `[P, 2]` which stretches, x and y.
        device: where to compute, in float64.
        progress: show a progress bar.

    Returns:
        `[P]` float64.
    """
    longest = lengths[pairs].max(1, initial=0)
    order = np.lexsort((lengths[pairs[:, 0]], longest))[::-1]  # those of like lengths together, the longest first
    found = np.empty(len(pairs))
    start = 0
    with tqdm(total=len(pairs), desc="alignments", unit="pair", disable=not progress) as bar:
        while start < len(order):
            frames = int(longest[order[start]])
            chosen = order[start : start + max(1, _BATCH_VALUES // (frames * (frames + 2 * vectors.shape[1])))]
            x, y = (_gathered(vectors, starts[side], lengths[side], device) for side in pairs[chosen].T)
            num_x, num_y = (torch.from_numpy(lengths[side]).to(device) for side in pairs[chosen].T)
            found[chosen] = mean_along_alignment(angles(x, y), num_x, num_y).cpu().numpy()
            start += len(chosen)
            bar.update(len(chosen))
    return found


def _gathered(vectors: Any, starts: np.ndarray, lengths: np.ndarray, device: str) -> Float[Tensor, "P S D"]:
    """Stretches side by side, each padded with its last frame."""
    places = starts[:, None] + np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
    return torch.from_numpy(vectors[places]).to(device).double()
