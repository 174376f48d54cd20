"""The score matrix in blocks: rows, and the candidates that they are scored against.

In some batches a strategy excludes most scores. Blocks are the parts of the matrix that are computed. The host makes
the blocks of a candidate set once, before the set is copied to a device.

M rows, N candidates, B sequences that are predicted, T targets; m and n count the rows and candidates of a block.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from cpc.candidates.draws import one_pool
from cpc.data.tensors import moved
from cpc.losses.definition import CandidateSet

# Gathering a block's vectors takes about a tenth of the time of its three matrix products (scores, gradients of queries
# and gradients of candidates), so blocks must save at least a tenth of the scores.
_WORTHWHILE_SHARE = 0.9


class Block(NamedTuple):
    """Rows and the candidates (columns) that they are scored against."""

    rows: Tensor | None = None  # `[m]` indices of rows; None: all rows, in order
    columns: Tensor | None = None  # `[n]` indices of candidates; None: all candidates, in order
    # `[m, 1]` column of each row's positive (`[m, T]` with T targets); None: there are none.
    positives: Tensor | None = None
    # `[B, n]`, True where a column is a candidate of the rows of a sequence, beside their positives; None: everywhere.
    candidate_mask: Tensor | None = None
    sequence: Tensor | None = None  # `[m]` index in `candidate_mask` of the sequence of each row
    # `[N]` column of each candidate, arbitrary for candidates outside the block; None as `columns`.
    column_index: Tensor | None = None

    def columns_of(self, negatives: Int[Tensor, "M R"] | None) -> Int[Tensor, "m R"] | None:
        """Return the columns of the negatives of this block's rows; `negatives` has candidate indices of all rows."""
        if negatives is None:
            return None
        negatives = negatives if self.rows is None else negatives[self.rows]
        return negatives if self.column_index is None else self.column_index[negatives]


class Layout(NamedTuple):
    """The tensors that the engine derives from a candidate set, on the device of the set.

    `num_negatives` is that of each row. `is_used` says whether a candidate can be scored in any row; None: all can be.
    """

    blocks: tuple[Block, ...]
    num_negatives: Int[Tensor, " M"]
    is_used: Bool[Tensor, " N"] | None


_LAYOUTS: WeakKeyDictionary[CandidateSet, Layout] = WeakKeyDictionary()


@torch.compiler.disable
@torch.inference_mode(False)
def on_device(rows: CandidateSet, device: torch.device) -> CandidateSet:
    """Return a candidate set of the host on a device, with its layout; the host does not wait for the copies."""
    copy = CandidateSet(**{name: moved(value, device) for name, value in vars(rows).items()})
    _LAYOUTS[copy] = moved(_layout(rows), device)  # kept as long as the copy
    return copy


@torch.compiler.disable
def layout_of(rows: CandidateSet) -> Layout:
    """Return the layout of a candidate set that `on_device` returned."""
    return _LAYOUTS[rows]


def _layout(rows: CandidateSet) -> Layout:
    masks, index = one_pool(rows.candidate_mask, rows.sequence)
    num_negatives = masks.sum(1)[index] - masks[index, rows.positive_index].long()
    is_used = masks[index.unique()].any(0)
    is_used[rows.positive_index] = True
    blocks = split_scores(rows.candidate_mask, rows.sequence, rows.positive_index)
    return Layout(blocks, num_negatives, None if bool(is_used.all()) else is_used)


def split_scores(
    candidate_mask: Bool[Tensor, "B N"], sequence: Int[Tensor, " M"], positives: Int[Tensor, " M"]
) -> tuple[Block, ...]:
    """Split the score matrix into blocks that hold every positive and every candidate of their rows.

    Candidates that are allowed to the same sequences form a class, such as the latents of a speaker. Two sequences
    share a block if their candidates and positives are of the same classes. If blocks would save less than a tenth of
    the scores, one block holds the whole matrix.
    """
    if len(sequence) == 0:  # all sequences of this rank are too short; sequences of other ranks may be long enough
        return ()
    mask = None if bool(candidate_mask.all()) else candidate_mask
    whole = Block(positives=rearrange(positives, "m -> m 1"), candidate_mask=mask, sequence=sequence)
    if mask is None or bool((mask == mask[:1]).all()):
        return (whole,)
    is_new = torch.cat([torch.ones(1, dtype=torch.bool), (mask[:, 1:] != mask[:, :-1]).any(0)])
    runs = mask[:, is_new]  # equal neighbours, such as the latents of a sequence, are compared once
    is_scored, class_of_run = torch.unique(runs, dim=1, return_inverse=True)
    class_of = class_of_run[is_new.cumsum(0) - 1]
    num_candidates = torch.bincount(class_of[mask.any(0)], minlength=is_scored.shape[1])
    is_scored[sequence, class_of[positives]] = True
    patterns, pattern = torch.unique(is_scored, dim=0, return_inverse=True)
    num_rows = torch.bincount(pattern[sequence], minlength=len(patterns))
    num_scores = int(num_rows @ (patterns.long() @ num_candidates))
    if num_scores >= _WORTHWHILE_SHARE * len(positives) * mask.shape[1]:
        return (whole,)
    return tuple(_block(mask, pattern == each, sequence, positives) for each in pattern[sequence].unique().tolist())


def _block(candidate_mask: Tensor, members: Tensor, sequence: Tensor, positives: Tensor) -> Block:
    """Return the block of the sequences marked in `members` `[B]`."""
    rows = members[sequence].nonzero()[:, 0]
    is_column = candidate_mask[members].any(0)
    is_column[positives[rows]] = True
    columns = is_column.nonzero()[:, 0]
    column_index = is_column.cumsum(0) - 1
    mask = candidate_mask[:, columns]
    is_whole = bool(mask[members].all())
    own = rearrange(column_index[positives[rows]], "m -> m 1")
    return Block(rows, columns, own, None if is_whole else mask, sequence[rows], column_index)
