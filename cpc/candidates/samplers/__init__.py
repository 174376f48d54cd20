"""Samplers Q: which classes of a pool a query meets, and how often each is expected."""

from cpc.candidates.samplers.all import All
from cpc.candidates.samplers.bernoulli import Bernoulli
from cpc.candidates.samplers.law import COUNTS, LawSampler
from cpc.candidates.samplers.learned_unigram import LearnedUnigram
from cpc.candidates.samplers.log_uniform import LogUniform
from cpc.candidates.samplers.partition import Partition
from cpc.candidates.samplers.sampler import HITS, NO_TARGET, Draw, Hits, Sampler, without_hits
from cpc.candidates.samplers.uniform import Uniform
from cpc.candidates.samplers.uniform_mixture import UniformMixture
from cpc.candidates.samplers.unigram import Unigram

__all__ = [
    "COUNTS",
    "HITS",
    "NO_TARGET",
    "All",
    "Bernoulli",
    "Draw",
    "Hits",
    "LawSampler",
    "LearnedUnigram",
    "LogUniform",
    "Partition",
    "Sampler",
    "Uniform",
    "UniformMixture",
    "Unigram",
    "without_hits",
]
