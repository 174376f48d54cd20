"""Small critics, x and y -> scores of all pairs, and the baseline of a row.

M rows, N candidates, Dx and Dy dimensions, E embedding, H hidden units.
"""

import math

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

HIDDEN_DIM = 128
EMBEDDING_DIM = 32


class Standardise(nn.Module):
    """Shifts and scales each dimension to the mean 0 and deviation 1 of a sample."""

    def __init__(self, sample: Float[Tensor, "N D"]) -> None:
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", sample.mean(0))
        self.register_buffer("deviation", sample.std(0).clamp(min=1e-6))

    def forward(self, values: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """The same values in deviations from the mean."""
        return (values - self.mean) / self.deviation


class Separable(nn.Module):
    """f(x) . g(y), two networks of two hidden layers: N + N evaluations for N^2 scores."""

    def __init__(self, x: Float[Tensor, "N Dx"], y: Float[Tensor, "N Dy"]) -> None:
        super().__init__()
        self.of_x, self.of_y = (nn.Sequential(Standardise(sample), *self.layers(sample.shape[1])) for sample in (x, y))

    def layers(self, in_dim: int) -> list[nn.Module]:
        """What stands between the standardised x or y and its embedding."""
        return perceptron(in_dim, EMBEDDING_DIM)

    def forward(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:
        """Scores of all pairs."""
        return self.of_x(x) @ self.of_y(y).T


class Concatenated(Separable):
    """A network of x and y together, two hidden layers: N^2 evaluations. The first layer is a sum of two of N each."""

    def __init__(self, x: Float[Tensor, "N Dx"], y: Float[Tensor, "N Dy"]) -> None:
        super().__init__(x, y)
        self.of_pair = nn.Sequential(nn.ReLU(), nn.Linear(HIDDEN_DIM, HIDDEN_DIM), nn.ReLU(), nn.Linear(HIDDEN_DIM, 1))

    def layers(self, in_dim: int) -> list[nn.Module]:
        """The half of the first layer."""
        return [nn.Linear(in_dim, HIDDEN_DIM)]

    def forward(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:
        """Scores of all pairs."""
        pairs = rearrange(self.of_x(x), "m h -> m 1 h") + rearrange(self.of_y(y), "n h -> 1 n h")
        return rearrange(self.of_pair(pairs), "m n 1 -> m n")


class BilinearCritic(Separable):
    """x^T W y, CPC's critic on x and y themselves: it cannot express a term of y alone.

    W is a product of two factors, of no less than full rank: by itself it would move by the rate alone at each step.
    """

    def layers(self, in_dim: int) -> list[nn.Module]:
        """A factor of W."""
        return [nn.Linear(in_dim, HIDDEN_DIM, bias=False)]

    def forward(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:
        """Scores of all pairs."""
        return super().forward(x, y) / math.sqrt(HIDDEN_DIM)


class Baseline(nn.Module):
    """Log a(x), for estimators that divide by it."""

    def __init__(self, x: Float[Tensor, "N Dx"]) -> None:
        super().__init__()
        self.of_x = nn.Sequential(Standardise(x), *perceptron(x.shape[1], 1))

    def forward(self, x: Float[Tensor, "M Dx"]) -> Float[Tensor, " M"]:
        """Log a(x) of each row."""
        return rearrange(self.of_x(x), "m 1 -> m")


def perceptron(in_dim: int, out_dim: int) -> list[nn.Module]:
    """The layers of a network of two hidden ones."""
    hidden = [nn.Linear(in_dim, HIDDEN_DIM), nn.ReLU(), nn.Linear(HIDDEN_DIM, HIDDEN_DIM), nn.ReLU()]
    return [*hidden, nn.Linear(HIDDEN_DIM, out_dim)]


CRITICS: dict[str, type[nn.Module]] = {
    "separable": Separable,
    "concatenated": Concatenated,
    "bilinear": BilinearCritic,
}
