"""The linear probe, solved: multinomial logistic regression to its optimum, its penalty chosen on held-out groups.

n examples, D feature dim, R dims of the coordinates that the problem is solved in, Y classes.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from scipy.optimize import minimize
from torch import Tensor

MOST_WHITENED_DIMS = 4096  # an eigendecomposition of so many takes half a minute
_BLOCK_ROWS = 4096
_KEPT_BYTES = 1_000_000_000  # of standardised features; more are standardised again in every pass
_SPECTRUM_EXAMPLES = 20_000  # at least, or eight for each dimension: it preconditions, and decides nothing
_MEMORY = 10  # pairs that L-BFGS keeps
_MOST_PASSES = 400


@dataclass
class Solution:
    """Class scores x W' + b of standardised features.

    Attributes:
        weight: W, `[Y, R]`.
        bias: b, `[Y]`, float64.
        num_passes: over the features that it took.
    """

    weight: Float[Tensor, "Y R"]
    bias: Float[Tensor, " Y"]
    num_passes: int = 0


class Coordinates:
    """Standardised features, in coordinates that make the problem small and well-conditioned.

    With fewer examples than dimensions the problem lives in the rows' space: x = s B with an orthonormal B `[n, D]`,
    and s `[n, n]` takes the place of the features; the penalty is the same. Otherwise coordinates are the features.
    Where the covariance has at most `MOST_WHITENED_DIMS` dimensions its eigenvectors precondition the solver. Sparse
    features (`FrontEnd.sparse`) stay as they are, and `columns` is their transpose.

    Args:
        x: features, standardised by `mean` and `scale` when read.
        rows: `[n]` which of them are examples.
        mean: `[D]`.
        scale: `[D]`.
        device: where to compute.
    """

    def __init__(
        self,
        x: Any,
        rows: Int[np.ndarray, " n"],
        mean: Float[Tensor, " D"],
        scale: Float[Tensor, " D"],
        device: str | torch.device = "cpu",
    ) -> None:
        self._x, self._rows = x, rows
        self._mean, self._scale = mean.to(device), scale.to(device)
        self.device = torch.device(device)
        self._kept: Tensor | None = None
        self._basis: Tensor | None = None
        self.columns: Tensor | None = None
        num, dim = len(rows), x.shape[1]
        if not isinstance(x, np.ndarray):
            self._kept = x[rows].to(device)
            self.columns = self._kept.t().to_sparse_csr()  # kept, for `slopes.T @ x` takes fifty times as long
        elif num < dim and num <= MOST_WHITENED_DIMS:
            self._enter_row_space()
        elif 4 * num * dim <= _KEPT_BYTES:
            self._kept = self._standardised(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def dim(self) -> int:
        """R."""
        return self._x.shape[1] if self._kept is None else self._kept.shape[1]

    def part(self, which: Int[np.ndarray, " m"]) -> "Coordinates":
        """These examples alone, along the axes of the spectrum of all, kept in memory."""
        if self.columns is not None:
            return Coordinates(self._x, self._rows[which], self._mean, self._scale, self.device)
        moments, vectors = self.spectrum
        part = copy.copy(self)
        part._rows = self._rows[which]
        x = self._standardised(part._rows) if self._kept is None else self._kept[torch.from_numpy(which)]
        part._kept = x if vectors is None else x @ vectors.to(x)
        part.__dict__["spectrum"] = moments, None
        return part

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "m R"]]]:
        """Some thousand examples at a time, and which places they have."""
        size = _BLOCK_ROWS if self.columns is None else len(self)
        for begin in range(0, len(self), size):
            places = slice(begin, begin + size)
            if self._kept is None:
                yield places, self._standardised(self._rows[places])
            else:
                yield places, self._kept if self.columns is not None else self._kept[places]

    @cached_property
    def spectrum(self) -> tuple[Float[Tensor, " R"], Float[Tensor, "R R"] | None]:
        """Eigenvalues and eigenvectors of the second moments; None stands for the axes (row space, too many dims)."""
        if self.dim > MOST_WHITENED_DIMS or self.columns is not None:
            return torch.ones(self.dim, dtype=torch.float64), None
        moments = torch.zeros(self.dim, self.dim, device=self.device)
        thin = slice(None, None, max(1, len(self) // max(_SPECTRUM_EXAMPLES, 8 * self.dim)))
        for _, x in self.blocks():
            moments.addmm_(x[thin].T, x[thin])
        values, vectors = torch.linalg.eigh(moments.double().cpu() / len(self) * thin.step)
        return values.clamp(min=0), vectors.float()

    def in_features(self, weight: Float[Tensor, "Y R"]) -> Float[Tensor, "Y D"]:
        """Weights of the standardised features."""
        if self._basis is None:
            return weight
        of_examples = weight.double() @ self._basis  # [Y, n]
        found = torch.zeros(len(weight), self._x.shape[1], dtype=torch.float64)
        for begin in range(0, len(self), _BLOCK_ROWS):
            x = self._standardised(self._rows[begin : begin + _BLOCK_ROWS])
            found += of_examples[:, begin : begin + len(x)] @ x.double().cpu()
        return found

    def _enter_row_space(self) -> None:
        x = self._standardised(self._rows)
        values, vectors = torch.linalg.eigh((x @ x.T).double().cpu())
        keep = values > values[-1] * 1e-9  # float32 products know no smaller ones
        root, vectors = values[keep].sqrt(), vectors[:, keep]
        self._basis = rearrange(vectors / root, "n r -> r n")  # [R, n]; times the examples: B
        self._kept = (vectors * root).float().to(self.device)
        self.__dict__["spectrum"] = values[keep] / len(x), None  # these coordinates are not correlated

    def _standardised(self, rows: np.ndarray) -> Float[Tensor, "m D"]:
        return (torch.from_numpy(self._x[rows]).to(self.device).float() - self._mean) * self._scale


def solve(
    coordinates: Coordinates,
    labels: Int[np.ndarray, " n"],
    num_classes: int,
    l2: float,
    start: Solution | None = None,
    least_progress: float = 1e-6,
) -> Solution:
    """Minimise sum of cross-entropies + l2 / 2 |W|^2, the objective of scikit-learn's `C = 1 / l2`.

    L-BFGS over all examples, in coordinates whitened by their covariance: W = V T' with T = E (s + l2 Y / n)^(-1/2) for
    eigenvectors E and eigenvalues s of the second moments, about the Hessian of a class of the frequency 1 / Y. The
    penalty stays that of W.

    Args:
        coordinates: the features.
        labels: `[n]` classes.
        num_classes: Y.
        l2: weight of the penalty.
        start: where to begin; the labels' frequencies if not given.
        least_progress: relative, of the objective in a step; with less the search ends.
    """
    num, dim, device = len(labels), coordinates.dim, coordinates.device
    moments, vectors = coordinates.spectrum
    root = (moments + l2 * num_classes / num + 1e-9).sqrt()
    targets = torch.from_numpy(labels).to(device)
    if start is None:
        frequencies = np.bincount(labels, minlength=num_classes).clip(0.5) / num
        start = Solution(torch.zeros(num_classes, dim), torch.from_numpy(frequencies).log())
    num_passes = 0

    def weight_of(rotated: Tensor) -> Float[Tensor, "Y R"]:
        return rotated.float() if vectors is None else rotated.float() @ vectors.T

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal num_passes
        num_passes += 1
        flat = torch.from_numpy(parameters)
        rotated = flat[num_classes:].view(num_classes, dim) / root  # W E, as long as W
        loss, of_weight, of_bias = _loss_and_slopes(coordinates, targets, weight_of(rotated), flat[:num_classes])
        of_rotated = (of_weight if vectors is None else of_weight @ vectors).double() + l2 * rotated
        loss += l2 / 2 * rotated.square().sum().item()
        return loss, torch.cat([of_bias, (of_rotated / root).flatten()]).numpy()

    whitened = (start.weight if vectors is None else start.weight @ vectors).double() * root
    found = minimize(
        objective,
        torch.cat([start.bias, whitened.flatten()]).numpy(),
        jac=True,
        method="L-BFGS-B",
        # Progress is relative above 1 alone: of the sum, never of the mean, which is small where classes are separable.
        options={"maxcor": _MEMORY, "ftol": least_progress, "gtol": 1e-7 * num, "maxfun": _MOST_PASSES},
    ).x
    flat = torch.from_numpy(found)
    return Solution(weight_of(flat[num_classes:].view(num_classes, dim) / root), flat[:num_classes], num_passes)


def _loss_and_slopes(
    coordinates: Coordinates,
    targets: Int[Tensor, " m"],
    weight: Float[Tensor, "Y R"],
    bias: Float[Tensor, " Y"],
) -> tuple[float, Float[Tensor, "Y R"], Float[Tensor, " Y"]]:
    """Sum of the examples' cross-entropies and its derivatives."""
    device = coordinates.device
    weight, bias32 = weight.to(device), bias.float().to(device)
    total = torch.zeros((), dtype=torch.float64, device=device)
    of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias, device=device)
    for places, x in coordinates.blocks():
        log_probabilities = torch.addmm(bias32, x, weight.T).log_softmax(1)
        target = rearrange(targets[places], "m -> m 1")
        total -= log_probabilities.gather(1, target).sum(dtype=torch.float64)
        slopes = log_probabilities.exp_().scatter_add_(1, target, -torch.ones_like(target, dtype=x.dtype))
        if coordinates.columns is None:
            of_weight.addmm_(slopes.T, x)
        else:
            of_weight += (coordinates.columns @ slopes).T
        of_bias += slopes.sum(0, dtype=torch.float64)
    return total.item(), of_weight.cpu(), of_bias.cpu()
