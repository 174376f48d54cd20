"""Small critics, which score all pairs of x and y, and a network for the baseline of a row.

M rows, N candidates, Dx and Dy dimensions, E embedding, H hidden units.
"""

import math

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

HIDDEN_DIM = 128
EMBEDDING_DIM = 32


class Standardise(nn.Module):
    """A layer that shifts and scales each dimension. On a given sample the result has mean 0 and deviation 1."""

    def __init__(self, sample: Float[Tensor, "N D"]) -> None:
        super().__init__()
        self.mean = nn.Buffer(sample.mean(0))
        self.deviation = nn.Buffer(sample.std(0).clamp(min=1e-6))

    def forward(self, values: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:  # noqa: D102
        return (values - self.mean) / self.deviation


class Separable(nn.Module):
    """A critic f(x) . g(y) of two networks with two hidden layers. N^2 scores take 2 N evaluations of a network."""

    def __init__(self, x: Float[Tensor, "N Dx"], y: Float[Tensor, "N Dy"]) -> None:
        super().__init__()
        self.x_network, self.y_network = (
            nn.Sequential(Standardise(sample), *self.layers(sample.shape[1])) for sample in (x, y)
        )

    def layers(self, input_dim: int) -> list[nn.Module]:
        """Return the layers between the standardised x or y and its embedding."""
        return perceptron(input_dim, EMBEDDING_DIM)

    def forward(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:  # noqa: D102
        return self.x_network(x) @ self.y_network(y).T


class Concatenated(Separable):
    """A critic with two hidden layers on x and y together. N^2 scores take N^2 evaluations.

    The first layer is the sum of a layer of x and a layer of y. Each of the two is evaluated N times.
    """

    def __init__(self, x: Float[Tensor, "N Dx"], y: Float[Tensor, "N Dy"]) -> None:
        super().__init__(x, y)
        self.pair_network = nn.Sequential(
            nn.ReLU(), nn.Linear(HIDDEN_DIM, HIDDEN_DIM), nn.ReLU(), nn.Linear(HIDDEN_DIM, 1)
        )

    def layers(self, input_dim: int) -> list[nn.Module]:  # noqa: D102
        return [nn.Linear(input_dim, HIDDEN_DIM)]

    def forward(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:  # noqa: D102
        pairs = rearrange(self.x_network(x), "m h -> m 1 h") + rearrange(self.y_network(y), "n h -> 1 n h")
        return rearrange(self.pair_network(pairs), "m n 1 -> m n")


class BilinearCritic(Separable):
    """The critic x^T W y, which CPC uses; it cannot express a term that depends only on y.

    W is a product of two factors and may have full rank. Adam would move each entry of a single W by about the learning
    rate at each step.
    """

    def layers(self, input_dim: int) -> list[nn.Module]:  # noqa: D102
        return [nn.Linear(input_dim, HIDDEN_DIM, bias=False)]

    def forward(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:  # noqa: D102
        return super().forward(x, y) / math.sqrt(HIDDEN_DIM)


def baseline_network(x: Float[Tensor, "N Dx"]) -> nn.Module:
    """Return a network from `[M, Dx]` to `[M]` for log a(x), the baseline that some estimators divide by."""
    return nn.Sequential(Standardise(x), *perceptron(x.shape[1], 1), nn.Flatten(0))


def perceptron(input_dim: int, output_dim: int) -> list[nn.Module]:
    """Return the layers of a perceptron with two hidden layers."""
    hidden = [nn.Linear(input_dim, HIDDEN_DIM), nn.ReLU(), nn.Linear(HIDDEN_DIM, HIDDEN_DIM), nn.ReLU()]
    return [*hidden, nn.Linear(HIDDEN_DIM, output_dim)]


CRITICS: dict[str, type[nn.Module]] = {"separable": Separable, "concatenated": Concatenated, "bilinear": BilinearCritic}
