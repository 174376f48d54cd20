"""The score matrix in blocks: rows, and the candidates that they are scored against.

In some batches a strategy excludes most scores. Blocks are the parts of the matrix that are computed. The host makes
the blocks once per candidate set.

M rows, N candidates, B sequences that are predicted, S sequences that give candidates, T targets; m and n count the
rows and candidates of a block.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

# Gathering a block's vectors takes about a tenth of the time of its three matrix products (scores, gradients of queries
# and gradients of candidates), so blocks must save at least a tenth of the scores.
_WORTHWHILE_SHARE = 0.9


class Block(NamedTuple):
    """Rows and the candidates (columns) that they are scored against.

    Attributes:
        rows: `[m]` indices of rows; None: all rows, in order.
        columns: `[n]` indices of candidates; None: all candidates, in order.
        positives: `[m, 1]` index of each row's positive among the columns (`[m, T]` with T targets); None: the block
            holds no positives.
        candidate_mask: `[B, n]`, True where a column is a candidate of the rows of a sequence. A row's positive is
            scored whatever the mask says. None: all columns are candidates of all rows.
        sequence: `[m]` index in `candidate_mask` of the sequence of each row.
        column_index: `[N]` column of each candidate, with arbitrary values for candidates outside the block. None: the
            columns are all candidates, in order.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None
    positives: Tensor | None = None
    candidate_mask: Tensor | None = None
    sequence: Tensor | None = None
    column_index: Tensor | None = None

    def columns_of(self, negatives: Int[Tensor, "M R"]) -> Int[Tensor, "m R"]:
        """Return the columns of the negatives of this block's rows; `negatives` has candidate indices of all rows."""
        negatives = negatives if self.rows is None else negatives[self.rows]
        return negatives if self.column_index is None else self.column_index[negatives]


def split_scores(
    candidate_mask: Bool[Tensor, "B N"],
    allowed: Bool[Tensor, "B S"] | None,
    sequence: Int[Tensor, " M"],
    candidate_sequence: Int[Tensor, " N"] | None,
    positives: Int[Tensor, " M"],
) -> list[Block]:
    """Split the score matrix into blocks that hold every positive and every candidate of their rows.

    Two sequences share a block if their candidates and positives come from the same set of sequences. Scores outside
    the blocks, which the strategy excludes, are not computed. If blocks would save less than a tenth of the scores, one
    block holds the whole matrix.
    """
    if len(sequence) == 0:  # all sequences of this rank are too short; sequences of other ranks may be long enough
        return []
    is_whole = bool(candidate_mask.all())
    mask = None if is_whole else candidate_mask
    whole = Block(positives=rearrange(positives, "m -> m 1"), candidate_mask=mask, sequence=sequence)
    if is_whole or allowed is None or candidate_sequence is None:
        return [whole]
    is_scored = allowed.clone()
    is_scored[sequence, candidate_sequence[positives]] = True
    patterns, pattern = torch.unique(is_scored, dim=0, return_inverse=True)
    num_candidates = torch.bincount(candidate_sequence[candidate_mask.any(0)], minlength=is_scored.shape[1])
    num_rows = torch.bincount(pattern[sequence], minlength=len(patterns))
    num_scores = int(num_rows @ (patterns.long() @ num_candidates))
    if num_scores >= _WORTHWHILE_SHARE * len(positives) * candidate_mask.shape[1]:
        return [whole]
    used_patterns = torch.unique(pattern[sequence]).tolist()
    return [_block(candidate_mask, pattern == each, sequence, positives) for each in used_patterns]


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
