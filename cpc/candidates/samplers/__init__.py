"""Samplers Q: which classes of a pool a query meets, and how often each is expected.

What becomes of hits, drawn candidates that are the query's target:

| sampler | keep | remove | exclude |
|---|---|---|---|
| `All` | yes | yes | the same as remove |
| `Bernoulli` | yes | yes | the same as remove: coins are independent |
| `Uniform`, `LogUniform`, `Unigram`, `LearnedUnigram`, `UniformMixture`, with `shared=False` | yes | yes | exact |
| these, shared | yes | yes | refused, unless all queries of the batch have the same targets |
| `SoftmaxSampler`, `TwoLevel` | yes | yes | exact |
| `Partition` | as these; parts drawn whole as `All` | | |

`cpc.losses.objectives` says which of them an objective takes, and with which corrections. What a correction is worth
depends on the draw:

| correction | with hits | exact for | approximate for |
|---|---|---|---|
| `importance`: E[Z'] = Z | removed, excluded | `Bernoulli`; replacement; `counts="gumbel"` | other counts: biased. \
`Partition`: blind to other parts |
| `posterior`, softmax | removed | `Bernoulli`; `Uniform` without replacement | all else, at finite m |
| `posterior`, logistic (NCE: kept) | removed, kept | `Bernoulli`; replacement | all else, at finite m |
| `none` | any | where no log Q is wanted: negative sampling, InfoNCE | |
"""

from cpc.candidates.samplers.all import All
from cpc.candidates.samplers.bernoulli import Bernoulli
from cpc.candidates.samplers.block_mass import BlockMass, CentroidMass, FeatureMass
from cpc.candidates.samplers.learned_unigram import LearnedUnigram
from cpc.candidates.samplers.log_uniform import LogUniform
from cpc.candidates.samplers.partition import Partition
from cpc.candidates.samplers.proposal import COUNTS, ProposalSampler
from cpc.candidates.samplers.query_sampler import QuerySampler
from cpc.candidates.samplers.sampler import HITS, NO_TARGET, Draw, Hits, Sampler, drop_hits
from cpc.candidates.samplers.softmax import SoftmaxSampler
from cpc.candidates.samplers.two_level import TwoLevel
from cpc.candidates.samplers.uniform import Uniform
from cpc.candidates.samplers.uniform_mixture import UniformMixture
from cpc.candidates.samplers.unigram import Unigram

__all__ = [
    "COUNTS",
    "HITS",
    "NO_TARGET",
    "All",
    "Bernoulli",
    "BlockMass",
    "CentroidMass",
    "Draw",
    "FeatureMass",
    "Hits",
    "LearnedUnigram",
    "LogUniform",
    "Partition",
    "ProposalSampler",
    "QuerySampler",
    "Sampler",
    "SoftmaxSampler",
    "TwoLevel",
    "Uniform",
    "UniformMixture",
    "Unigram",
    "drop_hits",
]
