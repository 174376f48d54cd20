"""Random projections W whose rows are, or resemble, draws from N(0, I).

R rows, D dims.
"""

import math

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

PROJECTIONS = ("gaussian", "orthogonal", "structured")


def random_projection(kind: str, num_rows: int, dim: int, seed: int) -> Float[Tensor, "R D"]:
    """W, of which each row has the length and the direction of a Gaussian draw, alone.

    - gaussian: independent rows.
    - orthogonal: within blocks of D rows the directions are orthogonal, lengths drawn from chi of D degrees: the same
      marginal law, less variance (Yu et al. 2016, arXiv:1610.09072, ORF).
    - structured: blocks sqrt(d) H D1 H D2 H D3, with H the normalised Hadamard matrix of the next power of two and D_i
      random signs (ibid., SORF). The lengths do not vary as a Gaussian's do, so the kernel is a little off in the
      mean too. Its product costs O(d log d), but at D up to some hundreds one matrix product is faster: W is
      written out.

    Raises:
        ValueError: on another kind.
    """
    if kind not in PROJECTIONS:
        raise ValueError(f"projection={kind!r} is not one of {', '.join(PROJECTIONS)}")
    generator = torch.Generator().manual_seed(seed)
    if kind == "gaussian":
        return torch.randn(num_rows, dim, generator=generator)
    block = _orthogonal_block if kind == "orthogonal" else _structured_block
    blocks = [block(dim, generator) for _ in range(math.ceil(num_rows / dim))]
    return torch.cat(blocks)[:num_rows]


def _orthogonal_block(dim: int, generator: torch.Generator) -> Float[Tensor, "D D"]:
    directions, triangle = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
    directions = directions * triangle.diagonal().sign()  # else QR's convention on signs shows in the law
    lengths = torch.linalg.vector_norm(torch.randn(dim, dim, generator=generator), dim=1)
    return directions.T * rearrange(lengths, "r -> r 1")


def _structured_block(dim: int, generator: torch.Generator) -> Float[Tensor, "D D"]:
    from scipy.linalg import hadamard  # slow to import, and rarely used

    padded = 2 ** math.ceil(math.log2(dim))
    matrix = torch.from_numpy(hadamard(padded, dtype=np.float32)) / math.sqrt(padded)
    rows = torch.eye(padded)
    for _ in range(3):
        signs = torch.randint(2, (padded,), generator=generator) * 2.0 - 1
        rows = rows @ matrix * signs
    # Entries of mean square 1 before and after the cut to D columns, as a Gaussian's have.
    kept = torch.randperm(padded, generator=generator)[:dim]
    return math.sqrt(padded) * rows[kept, :dim]
