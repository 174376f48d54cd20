"""Samplers Q: which classes of a pool a query meets, and how often each is expected.

What becomes of hits, drawn candidates that are the query's target:

| sampler | keep | remove | exclude |
|---|---|---|---|
| `All` | every class counts 1 | yes | the same as remove |
| `Bernoulli` | yes | yes | the same as remove: coins are independent |
| `Uniform`, `LogUniform`, `Unigram`, `LearnedUnigram`, `UniformMixture`, shared candidates | yes | yes | only where all \
queries of the batch have the same targets |
| the same with `shared=False` | yes | yes | exact, per query |
| `Partition` | as the above; a part that is drawn whole: as `All` |||

Which of them an objective takes stands in `cpc.losses.objectives`. What its correction then is worth depends on the draw:

| correction | exact for | otherwise |
|---|---|---|
| `importance`, E[Z'] = Z over all classes but the targets | hits removed or excluded; independent inclusion, replacement, \
or without it `counts="gumbel"` | `rejection` and `tensorflow` counts are biased, `Partition` misses the other parts |
| `posterior` | independent inclusion (`Bernoulli`), hits removed, or kept for NCE | with replacement, without, or excluded: \
an approximation at finite m |
| `none` | `Uniform` (a constant count cancels in a softmax); negative sampling, where log Q is part of what is learned | |
"""

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
