"""Samplers Q: which classes of a pool a query meets, and how often each is expected."""

from cpc.candidates.samplers.sampler import HITS, NO_TARGET, Draw, Hits, Sampler, without_hits

__all__ = ["HITS", "NO_TARGET", "Draw", "Hits", "Sampler", "without_hits"]
