"""The score matrix in blocks: rows, and the candidates that they are scored against.

A strategy shuts out most scores of some batches; blocks are the parts of the matrix that are computed. Blocks are made
on the host, once per candidate set.

M rows, N candidates, B sequences that are predicted, S sequences that give candidates, T targets; m and n count the
rows and candidates of a block.
"""

from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

# Gathering a block's vectors costs about a tenth of its three products.
_WORTHWHILE_SHARE = 0.9
_NUM_LEADING = 2


class Block(NamedTuple):
    """Rows and the candidates (columns) that they are scored against.

    Attributes:
        rows: `[m]` indices of rows; None: all of them, in order.
        columns: `[n]` indices of candidates; None: all of them, in order.
        positives: `[m, 1]` index of each row's positive among the columns (`[m, T]` of T targets); None: it has none.
        candidate_mask: `[B, n]` the columns that are candidates of each sequence's rows, besides their positives;
            None: all.
        sequence: `[m]` the row of `candidate_mask` that belongs to each row.
        column_index: `[N]` index of each candidate among the columns; None: all are columns, in order.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None
    positives: Tensor | None = None
    candidate_mask: Tensor | None = None
    sequence: Tensor | None = None
    column_index: Tensor | None = None

    def columns_of(self, negatives: Int[Tensor, "M R"]) -> Int[Tensor, "m R"]:
        """Return the column indices of the block's negatives, given the candidate indices of all rows' negatives."""
        negatives = negatives if self.rows is None else negatives[self.rows]
        return negatives if self.column_index is None else self.column_index[negatives]


class Blocks(NamedTuple):
    """Any number of blocks in three tensors.

    A compiled graph is kept for a fixed number of tensors, and for sizes that are 0, 1 or more. Three flat tensors let
    batches with any number of blocks share a graph; each begins with two entries that belong to no block.

    Attributes:
        integers: the integer fields of all blocks, end to end.
        masks: the boolean fields of all blocks, end to end.
        sizes: the shapes of all fields, two numbers a field: 0 in place of a second axis, -1 for None; on the host.
    """

    integers: Int[Tensor, " L"]
    masks: Bool[Tensor, " L"]
    sizes: Int[Tensor, " S"]

    @classmethod
    def pack(cls, blocks: list[Block]) -> "Blocks":
        """Lay blocks end to end."""
        fields = [field for block in blocks for field in block]
        sizes = [size for field in fields for size in ((-1, -1) if field is None else (*field.shape, 0)[:2])]
        known = [field.flatten() for field in fields if field is not None]
        leading = torch.zeros(_NUM_LEADING, dtype=torch.int64, device=known[0].device if known else None)
        integers = torch.cat([leading, *(field for field in known if field.dtype != torch.bool)])
        masks = torch.cat([leading.bool(), *(field for field in known if field.dtype == torch.bool)])
        return cls(integers, masks, torch.tensor([0] * _NUM_LEADING + sizes))

    def on(self, device: torch.device) -> "Blocks":
        """Return the same blocks on a device; the host does not wait for the copies."""
        return self._replace(
            **{name: getattr(self, name).to(device, non_blocking=True) for name in ("integers", "masks")}
        )

    def unpack(self) -> list[Block]:
        """Return the blocks one by one, as views."""
        starts, blocks = [_NUM_LEADING, _NUM_LEADING], []
        for sizes in rearrange(self.sizes[_NUM_LEADING:], "(g f n) -> g f n", f=len(Block._fields), n=2).tolist():
            fields: dict[str, Any] = {}
            for name, (rows, columns) in zip(Block._fields, sizes, strict=True):
                if rows >= 0:
                    source = int(name == "candidate_mask")
                    num = rows * max(columns, 1)
                    flat = (self.integers, self.masks)[source].narrow(0, starts[source], num)
                    starts[source] += num
                    fields[name] = flat.view(rows, columns) if columns else flat
            blocks.append(Block(**fields))
        return blocks


def split_scores(
    candidate_mask: Bool[Tensor, "B N"],
    allowed: Bool[Tensor, "B S"] | None,
    sequence: Int[Tensor, " M"],
    candidate_sequence: Int[Tensor, " N"] | None,
    positives: Int[Tensor, " M"],
) -> Blocks:
    """Split the score matrix into blocks that hold every positive and every candidate of their rows.

    Sequences with candidates from the same sequences (those of their positives included) share a block, so that scores
    that a strategy shuts out are not computed. Where this saves next to nothing, there is one block with everything.
    """
    if len(sequence) == 0:  # all sequences of this rank are too short, those of other ranks are not
        return Blocks.pack([])
    is_whole = bool(candidate_mask.all())
    mask = None if is_whole else candidate_mask
    whole = Block(positives=rearrange(positives, "m -> m 1"), candidate_mask=mask, sequence=sequence)
    if is_whole or allowed is None or candidate_sequence is None:
        return Blocks.pack([whole])
    is_scored = allowed.clone()
    is_scored[sequence, candidate_sequence[positives]] = True
    patterns, pattern = torch.unique(is_scored, dim=0, return_inverse=True)
    num_candidates = torch.bincount(candidate_sequence[candidate_mask.any(0)], minlength=is_scored.shape[1])
    num_rows = torch.bincount(pattern[sequence], minlength=len(patterns))
    num_scores = int(num_rows @ (patterns.long() @ num_candidates))
    if num_scores >= _WORTHWHILE_SHARE * len(positives) * candidate_mask.shape[1]:
        return Blocks.pack([whole])
    used_patterns = torch.unique(pattern[sequence]).tolist()
    return Blocks.pack([_block(candidate_mask, pattern == each, sequence, positives) for each in used_patterns])


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
