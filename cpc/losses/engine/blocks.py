"""The score matrix in blocks: rows, and the candidates that they are scored against.

M rows, N candidates, B sequences that are predicted, S that lend candidates, T targets; m and n count a block's.
"""

from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

# Gathering a block's vectors costs about a tenth of its three products.
_WORTHWHILE_SHARE = 0.9
_FIRST = 2


class Block(NamedTuple):
    """Rows and the candidates that they are scored against.

    Attributes:
        rows: `[m]` numbers of rows; None: all of them, in order.
        columns: `[n]` indices of candidates; None: all of them, in order.
        positives: `[m, 1]` place of each row's positive among the columns (`[m, T]` of T targets); None: it has none.
        pool: `[B, n]` the columns that each sequence's rows may meet besides their positives; None: all.
        sequence: `[m]` the row of `pool` that belongs to each row.
        place: `[N]` of a candidate among the columns; None: all are, in order.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None
    positives: Tensor | None = None
    pool: Tensor | None = None
    sequence: Tensor | None = None
    place: Tensor | None = None

    def places(self, negatives: Int[Tensor, "M R"]) -> Int[Tensor, "m R"]:
        """The places of all rows' negatives, which are in the pool, among this block's columns."""
        negatives = negatives if self.rows is None else negatives[self.rows]
        return negatives if self.place is None else self.place[negatives]


class Blocks(NamedTuple):
    """Any number of blocks in three tensors.

    Compilers keep a graph for its number of tensors, and for sizes that are 0, 1 or more: each tensor begins with two
    entries that belong to no block.

    Attributes:
        numbers: the fields of all blocks that hold numbers, end to end.
        pools: those that hold truth values.
        sizes: their shapes, two numbers a field: 0 in place of a second axis, -1 for None; always on the host.
    """

    numbers: Int[Tensor, " L"]
    pools: Bool[Tensor, " L"]
    sizes: Int[Tensor, " S"]

    @classmethod
    def of(cls, blocks: list[Block]) -> "Blocks":
        """Lay blocks end to end."""
        fields = [each for block in blocks for each in block]
        sizes = [size for each in fields for size in ((-1, -1) if each is None else (*each.shape, 0)[:2])]
        known = [each.flatten() for each in fields if each is not None]
        first = torch.zeros(_FIRST, dtype=torch.int64, device=known[0].device if known else None)
        numbers = torch.cat([first, *(each for each in known if each.dtype != torch.bool)])
        pools = torch.cat([first.bool(), *(each for each in known if each.dtype == torch.bool)])
        return cls(numbers, pools, torch.tensor([0] * _FIRST + sizes))

    def on(self, device: torch.device) -> "Blocks":
        """The same on a device, without waiting for it."""
        return self._replace(
            **{name: getattr(self, name).to(device, non_blocking=True) for name in ("numbers", "pools")}
        )

    def parted(self) -> list[Block]:
        """One by one; views, which copy nothing."""
        places, blocks = [_FIRST, _FIRST], []
        for sizes in rearrange(self.sizes[_FIRST:], "(g f n) -> g f n", f=len(Block._fields), n=2).tolist():
            fields: dict[str, Any] = {}
            for name, (rows, columns) in zip(Block._fields, sizes, strict=True):
                if rows >= 0:
                    kind = int(name == "pool")
                    num = rows * max(columns, 1)
                    flat = (self.numbers, self.pools)[kind].narrow(0, places[kind], num)
                    places[kind] += num
                    fields[name] = flat.view(rows, columns) if columns else flat
            blocks.append(Block(**fields))
        return blocks


def blocks(
    pool: Bool[Tensor, "B N"],
    allowed: Bool[Tensor, "B S"] | None,
    sequence: Int[Tensor, " M"],
    of_candidate: Int[Tensor, " N"] | None,
    positives: Int[Tensor, " M"],
) -> Blocks:
    """Part the score matrix into blocks that hold every positive and every candidate of their rows' pools.

    Sequences that meet the latents of the same sequences, their own positives' included, share a block: what a strategy
    shuts out is not scored. Where that saves next to nothing there is one block with everything.
    """
    if len(sequence) == 0:  # this rank's sequences are too short, those of others are not
        return Blocks.of([])
    is_whole = bool(pool.all())
    whole = Block(positives=rearrange(positives, "m -> m 1"), pool=None if is_whole else pool, sequence=sequence)
    if is_whole or allowed is None or of_candidate is None:
        return Blocks.of([whole])
    meets = allowed.clone()
    meets[sequence, of_candidate[positives]] = True
    patterns, pattern = torch.unique(meets, dim=0, return_inverse=True)
    num_candidates_of = torch.bincount(of_candidate[pool.any(0)], minlength=meets.shape[1])
    num_rows = torch.bincount(pattern[sequence], minlength=len(patterns))
    if int(num_rows @ (patterns.long() @ num_candidates_of)) >= _WORTHWHILE_SHARE * len(positives) * pool.shape[1]:
        return Blocks.of([whole])
    numbers = torch.unique(pattern[sequence]).tolist()
    return Blocks.of([_block(pool, pattern == each, sequence, positives) for each in numbers])


def _block(pool: Tensor, members: Tensor, sequence: Tensor, positives: Tensor) -> Block:
    """The block of the sequences marked as `members` `[B]`."""
    rows = members[sequence].nonzero()[:, 0]
    is_column = pool[members].any(0)
    is_column[positives[rows]] = True
    columns = is_column.nonzero()[:, 0]
    place = is_column.cumsum(0) - 1
    of_block = pool[:, columns]
    is_whole = bool(of_block[members].all())
    own = rearrange(place[positives[rows]], "m -> m 1")
    return Block(rows, columns, own, None if is_whole else of_block, sequence[rows], place)
