"""Multinomial logistic regression, solved to its optimum by Newton's method.

n examples, D feature dim, R dims of the coordinates of the solver, Y classes.
"""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor

from cpc.probes.store import as_tensor

MOST_WHITENED_DIMS = 4096  # largest dimension whose spectrum is computed; the eigendecomposition takes half a minute
_BLOCK_ROWS = 4096
_KEPT_BYTES = 1_000_000_000  # features above this size are standardised again in every pass, instead of being kept
_SPECTRUM_EXAMPLES = 20_000  # minimum; eight per dimension if that is more. They give only a preconditioner
_MOST_PASSES = 1000
_MOST_PRODUCTS = 100  # largest number of products with the Hessian in one step
# Loss per example that float32 can resolve. The solver also stops after a step that lowers the loss by less than this
# and does not shrink the gradient.
_ROUNDING = 1e-7


@dataclass
class Solution:
    """Weights and biases of the class scores x W' + b of standardised features."""

    weight: Float[Tensor, "Y R"]
    bias: Float[Tensor, " Y"]  # float64
    num_passes: int = 0  # over the features


class Coordinates:
    """The examples `rows` of x, standardised by `mean` and `scale`, as a small and well-conditioned problem.

    With fewer examples than dimensions the problem is solved in the row space of the features: x = s B with an
    orthonormal B `[n, D]`, where s `[n, n]` replaces the features and the penalty is the same. Otherwise the
    coordinates are the features. If the covariance has at most `MOST_WHITENED_DIMS` dimensions, its eigenvectors
    precondition the solver. Sparse features are not transformed, and `columns` is their transpose.
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
            self._kept = as_tensor(x[rows]).to(device)
            self.columns = self._kept.t().to_sparse_csr()  # otherwise `score_grads.T @ x` takes fifty times as long
        elif num < dim and num <= MOST_WHITENED_DIMS:
            self._change_to_row_space()
        elif 4 * num * dim <= _KEPT_BYTES:
            self._kept = self._standardised(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def dim(self) -> int:
        """Dimension R of the coordinates."""
        return self._x.shape[1] if self._kept is None else self._kept.shape[1]

    def part(self, indices: Int[np.ndarray, " m"]) -> "Coordinates":
        """Return the examples with these indices, rotated to the eigenvectors of all examples and kept in memory."""
        if self.columns is not None:
            return Coordinates(self._x, self._rows[indices], self._mean, self._scale, self.device)
        moments, vectors = self.spectrum
        part = copy.copy(self)
        part._rows = self._rows[indices]
        x = self._standardised(part._rows) if self._kept is None else self._kept[torch.from_numpy(indices)]
        part._kept = x if vectors is None else x @ vectors.to(x)
        part.__dict__["spectrum"] = moments, None
        return part

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "m R"]]]:
        """Yield a slice of indices and their features, some thousand examples at a time."""
        size = _BLOCK_ROWS if self.columns is None else len(self)
        for begin in range(0, len(self), size):
            indices = slice(begin, begin + size)
            if self._kept is None:
                yield indices, self._standardised(self._rows[indices])
            else:
                yield indices, self._kept if self.columns is not None else self._kept[indices]

    @cached_property
    def spectrum(self) -> tuple[Float[Tensor, " R"], Float[Tensor, "R R"] | None]:
        """Eigenvalues and eigenvectors of the second moments; None for the identity (row space, or too many dims)."""
        if self.dim > MOST_WHITENED_DIMS or self.columns is not None:
            return torch.ones(self.dim, dtype=torch.float64), None
        moments = torch.zeros(self.dim, self.dim, device=self.device)
        subsample = slice(None, None, max(1, len(self) // max(_SPECTRUM_EXAMPLES, 8 * self.dim)))
        for _, x in self.blocks():
            moments.addmm_(x[subsample].T, x[subsample])
        values, vectors = torch.linalg.eigh(moments.double().cpu() / len(self) * subsample.step)
        return values.clamp(min=0), vectors.float()

    def feature_weights(self, weight: Float[Tensor, "Y R"]) -> Float[Tensor, "Y D"]:
        """Return weights of the coordinates as weights of the standardised features."""
        if self._basis is None:
            return weight
        example_weights = weight.double() @ self._basis  # [Y, n]
        result = torch.zeros(len(weight), self._x.shape[1], dtype=torch.float64)
        for begin in range(0, len(self), _BLOCK_ROWS):
            x = self._standardised(self._rows[begin : begin + _BLOCK_ROWS])
            result += example_weights[:, begin : begin + len(x)] @ x.double().cpu()
        return result

    def _change_to_row_space(self) -> None:
        x = self._standardised(self._rows)
        exact = x.double().cpu()  # float32 products have rounding errors that look like directions
        values, vectors = torch.linalg.eigh(exact @ exact.T)
        keep = values > values[-1] * 1e-9
        root, vectors = values[keep].sqrt(), vectors[:, keep]
        self._basis = rearrange(vectors / root, "n r -> r n")  # [R, n]; times the examples: B
        self._kept = (vectors * root).float().to(self.device)
        self.__dict__["spectrum"] = values[keep] / len(x), None  # these coordinates are uncorrelated

    def _standardised(self, rows: np.ndarray) -> Float[Tensor, "m D"]:
        return (torch.from_numpy(self._x[rows]).to(self.device).float() - self._mean) * self._scale


def solve(
    coordinates: Coordinates,
    labels: Int[np.ndarray, " n"],
    num_classes: int,
    l2: float,
    start: Solution | None = None,
    tolerance: float = 1e-3,
) -> Solution:
    """Minimise the sum of cross-entropies + l2 / 2 |W|^2, where the softmax has one row of W for every class.

    This is the objective of scikit-learn's LogisticRegression with `C = 1 / l2`. For two classes it is `C = 2 / l2`:
    scikit-learn then penalises one vector, the difference of the two rows, and |W|^2 is half of its square.

    Each step of Newton's method is computed by conjugate gradients, in coordinates whitened by an approximate diagonal
    of the Hessian: for class y it is h_y s + l2, where s are the eigenvalues of the second moments and h_y is the sum
    of p (1 - p) over the examples. There the gradient is about the distance to the optimum, in standard errors of the
    weights, for classes of five examples as well as of a million. The solver stops when no component exceeds
    `tolerance`, which shrinks with the root of the total loss if that is below 1 nat, as for separable classes. It
    starts at `start`, or at zero weights and the labels' log-frequencies.
    """
    if start is None:
        frequencies = np.bincount(labels, minlength=num_classes).clip(0.5) / len(labels)
        start = Solution(torch.zeros(num_classes, coordinates.dim), torch.from_numpy(frequencies).log())
    objective = _Objective(coordinates, labels, num_classes, l2)
    flat = objective.flat(start)
    loss, gradient = objective.set_step(flat)
    while True:
        scale = objective.diagonal().rsqrt()
        size = (gradient * scale).abs().max().item()
        if size <= tolerance * min(1.0, loss**0.5):
            break
        if objective.num_passes >= _MOST_PASSES:
            if size <= tolerance:  # float32 cannot improve further if the loss is nearly zero
                break
            warnings.warn(
                f"a linear probe of {num_classes} classes is not at its optimum after {objective.num_passes} passes "
                f"over the features: the gradient is {size / tolerance:.0f} times the tolerance; raise `l2`",
                stacklevel=2,
            )
            break
        step = _newton_step(objective, gradient, scale)
        slope = (gradient * step).sum().item()
        fraction, before, size_before = 1.0, loss, size
        while True:
            loss, gradient = objective.set_step(flat + fraction * step)
            # If a convex function still falls at the new point, it fell along the whole step, even if rounding hides
            # the fall.
            if loss <= before + 1e-4 * fraction * slope or (gradient * step).sum() <= 0 or fraction < 1e-12:
                break
            fraction /= 2
        flat = flat + fraction * step
        size = (gradient * objective.diagonal().rsqrt()).abs().max().item()
        if size >= size_before and before - loss <= _ROUNDING * len(labels):
            break
    return objective.solution(flat)


def _newton_step(objective: "_Objective", gradient: Float[Tensor, "Y R_1"], scale: Float[Tensor, "Y R_1"]) -> Tensor:
    """Return -H^-1 g, up to a residual of a tenth of the gradient."""

    def whitened(direction: np.ndarray) -> np.ndarray:
        product = objective.hessian_times(torch.from_numpy(direction).view_as(scale) * scale) * scale
        return product.numpy().ravel()

    size = scale.numel()
    right = -(gradient * scale).numpy().ravel()
    hessian = LinearOperator((size, size), whitened, dtype=np.float64)
    whitened_step, _ = cg(hessian, right, rtol=0.1, maxiter=_MOST_PRODUCTS)
    step = torch.from_numpy(whitened_step).view_as(scale) * scale
    step[:, 1:] -= step[:, 1:].mean(0)  # a change that is equal for all classes only raises the penalty
    return step


class _Objective:
    """The objective, its gradient, and products with its Hessian at the current point.

    A point is a float64 `[Y, 1 + R]`: the bias, then the weights along the eigenvectors of the spectrum.
    """

    def __init__(self, coordinates: Coordinates, labels: Int[np.ndarray, " n"], num_classes: int, l2: float) -> None:
        self._coordinates = coordinates
        self._targets = torch.from_numpy(labels).to(coordinates.device)
        moments, self._vectors = coordinates.spectrum
        self._moments = torch.cat([torch.ones(1, dtype=torch.float64), moments])  # 1 for the bias
        self._l2 = torch.full((1 + len(moments),), l2, dtype=torch.float64)
        self._l2[0] = 0
        self._keeps = 4 * len(labels) * num_classes <= _KEPT_BYTES
        self.num_passes = 0

    def flat(self, solution: Solution) -> Float[Tensor, "Y R_1"]:
        """Return a solution as a point, after subtracting the mean weight over the classes."""
        weight = solution.weight - solution.weight.mean(0)
        weight = weight if self._vectors is None else weight @ self._vectors
        return torch.cat([rearrange(solution.bias, "y -> y 1").double(), weight.double()], 1)

    def solution(self, flat: Float[Tensor, "Y R_1"]) -> Solution:
        """A point as a solution."""
        weight = flat[:, 1:].float()
        return Solution(weight if self._vectors is None else weight @ self._vectors.T, flat[:, 0], self.num_passes)

    def diagonal(self) -> Float[Tensor, "Y R_1"]:
        """Return the approximate diagonal of the Hessian, h_y s + l2, at the current point."""
        return rearrange(self._spread, "y -> y 1") * self._moments + self._l2 + 1e-9

    def set_step(self, flat: Float[Tensor, "Y R_1"]) -> tuple[float, Float[Tensor, "Y R_1"]]:
        """Move to a point, and return the objective and its gradient there."""
        self.num_passes += 1
        self._point = flat
        self._probabilities: list[Tensor] = []
        total, spread = torch.zeros((2, len(flat)), dtype=torch.float64, device=self._coordinates.device)
        gradient = torch.zeros_like(flat)
        for indices, x, log_probabilities in self._log_probabilities():
            target = rearrange(self._targets[indices], "m -> m 1")
            total -= log_probabilities.gather(1, target).sum(dtype=torch.float64)
            probabilities = log_probabilities.exp_()
            spread += torch.addcmul(probabilities, probabilities, probabilities, value=-1).sum(0, dtype=torch.float64)
            if self._keeps:
                self._probabilities.append(probabilities)
            score_grads = probabilities.scatter_add(1, target, -torch.ones_like(target, dtype=x.dtype))
            gradient += self._weight_grads(x, score_grads)
        self._spread = spread.cpu().clamp(min=1e-6)
        return total[0].item() + (self._l2 * flat.square()).sum().item() / 2, self._rotated(gradient) + self._l2 * flat

    def hessian_times(self, direction: Float[Tensor, "Y R_1"]) -> Float[Tensor, "Y R_1"]:
        """Return H v at the current point."""
        self.num_passes += 1
        product = torch.zeros_like(direction)
        weight, bias = self._weight_and_bias(direction)
        probabilities = iter(self._probabilities)
        blocks = self._coordinates.blocks() if self._keeps else self._log_probabilities()
        for _, x, *computed in blocks:
            p = next(probabilities) if self._keeps else computed[0].exp_()
            score_changes = torch.addmm(bias, x, weight.T)
            score_changes.sub_((p * score_changes).sum(1, keepdim=True)).mul_(p)
            product += self._weight_grads(x, score_changes)
        return self._rotated(product) + self._l2 * direction

    def _log_probabilities(self) -> Iterator[tuple[slice, Tensor, Float[Tensor, "m Y"]]]:
        weight, bias = self._weight_and_bias(self._point)
        for indices, x in self._coordinates.blocks():
            yield indices, x, torch.addmm(bias, x, weight.T).log_softmax(1)

    def _weight_and_bias(self, flat: Float[Tensor, "Y R_1"]) -> tuple[Float[Tensor, "Y R"], Float[Tensor, " Y"]]:
        solution, device = self.solution(flat), self._coordinates.device
        return solution.weight.to(device), solution.bias.float().to(device)

    def _weight_grads(self, x: Tensor, score_grads: Float[Tensor, "m Y"]) -> Float[Tensor, "Y R_1"]:
        """Return gradients of the biases and weights from gradients of the scores, in float64 for sums over blocks."""
        columns = self._coordinates.columns
        weight_grads = score_grads.T @ x if columns is None else (columns @ score_grads).T
        bias_grads = score_grads.sum(0, dtype=torch.float64)
        return torch.cat([rearrange(bias_grads, "y -> y 1"), weight_grads.double()], 1).cpu()

    def _rotated(self, flat: Float[Tensor, "Y R_1"]) -> Float[Tensor, "Y R_1"]:
        """Rotate weights to the eigenvectors of the spectrum."""
        return flat if self._vectors is None else torch.cat([flat[:, :1], flat[:, 1:] @ self._vectors.double()], 1)
