"""Arguments of another kind, shape or range than what is read are refused, in one wording, where users give them."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refuses
from torch import Tensor

from benchmarks.extreme.softmax import SoftmaxSampler
from cpc.candidates import LatentBank, allowed_matrix, draw_negatives
from cpc.candidates.samplers import Draw, Uniform
from cpc.losses import Contrastive, bank_loss, class_loss, contrast, info_nce

M, N, D, B = 4, 6, 3, 2
pytestmark = pytest.mark.usefixtures("unchecked_types")
SEQUENCES = {
    "query_sequence": torch.zeros(M).long(),
    "candidate_sequence": torch.zeros(N).long(),
    "allowed": torch.ones(B, B, dtype=torch.bool),
}
GIVEN: dict[Callable, dict[str, Any]] = {
    info_nce: {"queries": torch.ones(M, D), "candidates": torch.ones(N, D), "positives": torch.arange(M)},
    contrast: {"queries": torch.ones(2, B, 5, D), "latents": torch.ones(B, 5, D)},
    class_loss: {
        "queries": torch.ones(M, D),
        "classes": torch.ones(N, D),
        "targets": torch.arange(M),
        "objective": "full_softmax",
    },
    bank_loss: {"queries": torch.ones(M, D), "positives": torch.ones(M, D), "bank": LatentBank(torch.ones(N, D))},
}


def draw(ids: list[int], dtype: torch.dtype = torch.int64) -> Draw:
    return Draw(torch.tensor(ids, dtype=dtype), torch.zeros(len(ids)), torch.zeros(M))


IS_NUMPY = "is a ndarray; it must be a tensor of .*: pass torch.as_tensor"
CHANGES: list[tuple[Callable, dict[str, Any], str]] = [
    *((loss, {"queries": torch.ones(M, D).numpy()}, f"queries {IS_NUMPY}") for loss in GIVEN),
    *((loss, {"queries": torch.ones(1, 2, 3, 4, 5)}, r"queries is .*\[1, 2, 3, 4, 5\]; it must be") for loss in GIVEN),
    *((loss, {"queries": torch.ones(M, D).long()}, "queries is torch.int64") for loss in (info_nce, bank_loss)),
    (info_nce, {"candidates": torch.ones(2, 3, D)}, r"candidates is .*\[2, 3, 3\]; .* \[N, 3\]"),
    (info_nce, {"log_count": torch.tensor([0.0] * 5 + [math.nan])}, "log_count must be finite"),
    (info_nce, {"log_count": torch.zeros(1)}, r"log_count is torch.float32 of the shape \[1\]"),
    (info_nce, {"negatives": torch.zeros(5, 2).long()}, r"negatives is torch.int64 of the shape \[5, 2\]; .* \[4, R\]"),
    (info_nce, {"query_sequence": torch.zeros(M).long()}, "give all three or none"),
    (info_nce, {"num_negatives": True}, "num_negatives=True must be a whole number"),
    (info_nce, {"num_negatives": 0}, "num_negatives=0 must be a whole number of at least 1"),
    (info_nce, {"negatives": torch.zeros(M, 0).long()}, "number of negatives of a row=0"),
    (info_nce, {"negatives": torch.ones(M, 1).long()}, "own positive"),
    (info_nce, {"negatives": torch.full((M, 1), 5), "num_negatives": 9}, "num_negatives=9 and `negatives` are both"),
    (info_nce, {"compute": "fp8"}, "compute='fp8' is not one of auto, float32, tf32, bf16"),
    (info_nce, {"queries": torch.zeros(0, D), "positives": torch.zeros(0).long()}, "the number of queries=0"),
    (info_nce, {"positives": torch.zeros(M).long(), "valid": torch.arange(N) == 0}, "no negative"),
    (info_nce, {"temperature": "0.1"}, "temperature=.0.1. must be a number"),
    (contrast, {"shared_across_steps": True}, "shared_across_steps` is for drawn negatives"),
    (contrast, {"latents": torch.ones(B, 4, D)}, r"latents is torch.float32 of the shape \[2, 4, 3\]; .* \[2, 5, 3\]"),
    (contrast, {"num_latents": torch.ones(B).long()}, "longest sequence has 1 latents"),
    *(
        (
            contrast,
            {"num_latents": torch.tensor([num, 5])},
            f"num_latents={num} must count latents, from 0 to 5, not samp",
        )
        for num in (9, -1)
    ),
    (
        contrast,
        {"strategy": "same_speaker_excluding", "group_id": torch.arange(B), "sequence_id": torch.arange(B)},
        "same_speaker_excluding.*without a negative.*`sampler`",
    ),
    (class_loss, {"bias": torch.full((N,), math.inf)}, "bias must be finite everywhere; it runs from inf to inf"),
    *(
        (class_loss, {"weight": torch.tensor([1.0, 1, 1, value])}, "weight must be finite and at least 0 everywhere")
        for value in (-2, math.nan)
    ),
    (class_loss, {"classes": torch.ones(N, 5)}, r"classes is .* \[6, 5\]; .* of the shape \[n, 3\]"),
    (info_nce, {"candidates": torch.ones(N, D).double()}, "float64 cannot be combined with other dtypes"),
    (contrast, {"latents": torch.ones(B, 5, D).double()}, "float64 cannot be combined with other dtypes"),
    (class_loss, {"classes": torch.ones(N, D).double()}, "float64 cannot be combined with other dtypes"),
    (bank_loss, {"positives": torch.ones(M, D).double()}, "float64 cannot be combined with other dtypes"),
    (info_nce, {"positives": torch.arange(M).float()}, r"positives is torch.float32 .*: pass positives.long\(\)"),
    (info_nce, {"positives": torch.arange(M) - 1}, "positives run from -1 to 2, but the 6 candidates"),
    (info_nce, {"valid": torch.ones(N).int()}, "valid is torch.int32 .* tensor of booleans .*: pass valid != 0"),
    (info_nce, SEQUENCES | {"query_sequence": torch.tensor([0, 1, -1, 0])}, "query_sequence run from -1 to 1, but the"),
    (info_nce, SEQUENCES | {"candidate_sequence": torch.arange(N)}, "candidate_sequence run from 0 to 5, but the"),
    (info_nce, SEQUENCES | {"allowed": torch.ones(B, B)}, "allowed is torch.float32 .* tensor of booleans"),
    *(
        (loss, {"temperature": kind(value)}, f"temperature={value} must be positive and finite")
        for loss in (info_nce, class_loss, bank_loss)
        for value in (math.inf, -math.inf, math.nan, -1.0)
        for kind in (float, torch.tensor)
    ),
    *(
        (contrast, {name: torch.ones(B)}, f"{name} is torch.float32 .* tensor of integers")
        for name in ("num_latents", "sequence_id", "group_id")
    ),
    (contrast, {"sequence_id": [0, 1]}, "sequence_id is a list; it must be"),
    (class_loss, {"targets": torch.arange(M).float()}, "targets is torch.float32"),
    (class_loss, {"bias": torch.ones(N, 1)}, r"bias is .* \[6, 1\]; .* \[6\]"),
    (class_loss, {"draw": draw([4, -1]), "objective": "nce"}, "ids of the draw run from -1 to 4, but the 6 cl"),
    (class_loss, {"draw": draw([4, 5], torch.float32), "objective": "nce"}, "ids of the draw is torch.float32"),
    (bank_loss, {"draw": draw([4, -1])}, "ids of the draw run from -1 to 4, but the 6 latents of the bank"),
    (bank_loss, {"positives": torch.ones(M, 1, D)}, r"positives is .* \[4, 1, 3\]; .* \[4, 3\]"),
    (bank_loss, {"draw": Draw(torch.zeros(3, 2).long(), torch.zeros(3, 2), torch.zeros(3))}, r"must be .* \[4, m\]"),
    (bank_loss, {"sequence_id": torch.ones(M)}, "sequence_id is torch.float32"),
]


@pytest.mark.parametrize(("loss", "change", "message"), CHANGES)
def test_of_losses(loss: Callable, change: dict[str, Any], message: str) -> None:
    refuses(message, inspect.unwrap(loss), **GIVEN[loss] | change)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.arange(M).float(), "targets is torch.float32"),
        (torch.zeros(M, 1, 1).long(), r"targets is .* \[4, 1, 1\]; .* \[M, T\]"),
        (torch.arange(M) - 2, "targets run from -2 to 1, but the 6 classes have the numbers 0 to 5 .-1: none."),
    ],
)
def test_of_samplers(targets: Any, message: str) -> None:
    refuses(message, Uniform(N).sample, torch.ones(M, D), 3, targets)


def negatives(pool: Tensor, sequence: Tensor, positives: Tensor, num: int = 2) -> Tensor:
    return inspect.unwrap(draw_negatives)(pool, sequence, positives, num)


ALL, ROWS = torch.ones(B, N, dtype=torch.bool), torch.zeros(M).long()


def test_of_parts_and_of_what_candidates_come_from() -> None:
    refuses(f"embeddings {IS_NUMPY}", SoftmaxSampler(N, D).refresh, torch.ones(N, D).numpy())
    refuses("num_negatives=1.5 must be a whole number", Contrastive, num_negatives=1.5)
    refuses("auxiliary_negatives`='nobody'", Contrastive, auxiliary_negatives={"nobody": 0.5})
    refuses("='mixed' is not one of same_speaker", Contrastive, auxiliary_negatives={"mixed": 0.5})
    refuses(r"share of .*=0\.0 must be positive", Contrastive, auxiliary_negatives={"sequence_only": 0.0})
    refuses(r"sum of .*=1\.0 must be .* below 1", Contrastive, auxiliary_negatives={"sequence_only": 1.0})
    refuses(f"latents {IS_NUMPY}", LatentBank, torch.ones(N, D).numpy())
    refuses("sequence_id is torch.float32", LatentBank, torch.ones(N, D), torch.zeros(N))
    refuses("sequence_id is torch.float32", allowed_matrix, "mixed", torch.zeros(B))
    refuses("pool is torch.int32 .*: pass pool != 0", negatives, ALL.int(), ROWS, ROWS)
    refuses("query_sequence run from -1 to -1, but the 2 rows of pool", negatives, ALL, ROWS - 1, ROWS)
    refuses("positives run from 6 to 6, but the 6 candidates", negatives, ALL, ROWS, ROWS + N)
    refuses("num_negatives=0 must be at least 1", negatives, ALL, ROWS, ROWS, 0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_integers_of_any_width_are_indices(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    queries, candidates = torch.randn(M, D), torch.randn(N, D)
    integers = {
        "positives": torch.arange(M),
        "query_sequence": torch.tensor([0, 0, 1, 1]),
        "candidate_sequence": torch.tensor([0, 0, 0, 1, 1, 1]),
    }
    allowed = torch.tensor([[True, False], [True, True]])
    short = {name: each.to(dtype) for name, each in integers.items()}
    expected = info_nce(queries, candidates, **integers, allowed=allowed).loss_nats
    assert torch.equal(info_nce(queries, candidates, **short, allowed=allowed).loss_nats, expected)
    drawn = torch.tensor([[5, 4]] * M)
    expected = info_nce(queries, candidates, integers["positives"], negatives=drawn).loss_nats
    found = info_nce(queries, candidates, short["positives"], negatives=drawn.to(dtype)).loss_nats
    assert torch.equal(found, expected)
