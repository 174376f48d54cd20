"""Samplers Q: which classes of a pool a query meets, and how often each is expected."""

from cpc.candidates.samplers.block_mass import BlockMass, CentroidMass, FeatureMass
from cpc.candidates.samplers.kernel_tree import KernelTree
from cpc.candidates.samplers.query_sampler import QuerySampler
from cpc.candidates.samplers.sampler import HITS, NO_TARGET, Draw, Hits, Sampler, without_hits
from cpc.candidates.samplers.softmax import SoftmaxSampler
from cpc.candidates.samplers.two_level import TwoLevel

__all__ = [
    "HITS",
    "NO_TARGET",
    "BlockMass",
    "CentroidMass",
    "Draw",
    "FeatureMass",
    "Hits",
    "KernelTree",
    "QuerySampler",
    "Sampler",
    "SoftmaxSampler",
    "TwoLevel",
    "without_hits",
]
