"""A pool beyond the batch: the latents of the last steps, first in, first out.

B sequences of a batch, E stored latents, D latent dim.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.strategies import check_num_valid


class Past(NamedTuple):
    """Stored latents and whose they are; without gradients.

    Attributes:
        latents: `[E, D]`.
        sequence_id: `[E]`, the file each comes from.
        group_id: `[E]`, its speaker, -1 where unknown.
        age: `[E]`, in pushes: 1 for those of the last.
    """

    latents: Tensor
    sequence_id: Tensor
    group_id: Tensor
    age: Tensor


class LatentQueue(nn.Module):
    """Past latents as candidates: more negatives than a batch holds, at two thirds of their price.

    The idea of MoCo's queue (He et al. 2020, arXiv:1911.05722), without its second encoder. What is stored was made by
    an older encoder than the positives, and an encoder in motion gives its past away: a critic may tell old from new
    instead of whose latent it is. `log N - L` with a queue is therefore no bound on information, and is labelled so.
    Nor need it help: `python -m benchmarks.queue` shows encoders that learned less with one. Keep it a few steps long,
    the learning rate low, and judge by held-out bounds, which are measured without it.

    The state is in buffers, hence in checkpoints. Under DistributedDataParallel each process is to keep its own: list
    the buffers among those that DDP ignores, or it copies those of rank 0 over all others at every step (`cpc pretrain`
    sees to it, and saves every rank's).

    Args:
        size: latents kept.
        dim: D.

    Raises:
        ValueError: if there is no room for a single latent.

    Example:
        >>> queue = LatentQueue(size=6, dim=8)
        >>> for _ in range(3):
        ...     queue.push(torch.randn(2, 2, 8), sequence_id=torch.tensor([0, 1]))
        >>> queue.num_stored, sorted(queue.past().age.tolist())
        (6, [1, 1, 1, 1, 2, 2])
    """

    latents: Tensor
    sequence_id: Tensor
    group_id: Tensor
    pushed_at: Tensor
    num_seen: Tensor
    num_pushes: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise ValueError(f"size={size}, dim={dim}: a queue has room for at least one latent of one channel")
        self.size = size
        self.dim = dim
        self.register_buffer("latents", torch.zeros(size, dim))
        self.register_buffer("sequence_id", torch.full((size,), -1))
        self.register_buffer("group_id", torch.full((size,), -1))
        self.register_buffer("pushed_at", torch.zeros(size, dtype=torch.long))
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("num_pushes", torch.zeros((), dtype=torch.long))

    @property
    def num_stored(self) -> int:
        """How many there are. (A length would make an empty queue false, and `if queue:` would never fill it.)"""
        return min(int(self.num_seen), self.size)

    def past(self) -> Past:
        """What is stored, as views: the next push changes them."""
        stored = slice(self.num_stored)
        age = self.num_pushes - self.pushed_at[stored]
        return Past(self.latents[stored], self.sequence_id[stored], self.group_id[stored], age)

    @property
    def max_age(self) -> int:
        """Age of the oldest, in pushes; 0 of an empty queue."""
        return int(self.past().age.max()) if self.num_stored else 0

    @torch.no_grad()
    def push(
        self,
        latents: Float[Tensor, "B ... D"],
        sequence_id: Int[Tensor, " B"],
        group_id: Int[Tensor, " B"] | None = None,
        num_valid: Int[Tensor, " B"] | None = None,
    ) -> None:
        """Store the latents of a step, after its loss; the oldest make room. Of more than `size`, the last stay.

        Args:
            latents: of sequences `[B, T, D]`, of grids, or one by one.
            sequence_id: of each sequence, the same number whenever its file comes again.
            group_id: its speaker, -1 where unknown; None: all unknown.
            num_valid: how many latents of each sequence are signal; None: all.

        Raises:
            ValueError: on latents of another width, or `num_valid` of anything but sequences or beyond their length.
        """
        if latents.shape[-1] != self.dim:
            raise ValueError(f"latents have {latents.shape[-1]} channels, the queue has dim={self.dim}")
        if num_valid is not None and latents.ndim != 3:
            raise ValueError(f"num_valid counts the latents of sequences [B, T, D], not of {tuple(latents.shape)}")
        group_id = torch.full_like(sequence_id, -1) if group_id is None else group_id
        new = rearrange(latents, "b ... d -> (b ...) d")
        owner = torch.arange(len(new), device=new.device) // (len(new) // len(latents))
        if num_valid is not None:
            check_num_valid(num_valid, latents.shape[1])
            time = torch.arange(len(new), device=new.device) % latents.shape[1]
            is_signal = time < num_valid[owner]
            new, owner = new[is_signal], owner[is_signal]
        num_new = len(new)
        new, owner = new[-self.size :], owner[-self.size :]
        seen = int(self.num_seen) + num_new
        place = torch.arange(seen - len(new), seen, device=new.device) % self.size
        self.latents[place] = new.to(self.latents.dtype)
        self.sequence_id[place] = sequence_id[owner]
        self.group_id[place] = group_id[owner]
        self.pushed_at[place] = self.num_pushes
        self.num_seen += num_new
        self.num_pushes += 1
