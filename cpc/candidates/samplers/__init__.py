"""Samplers Q: they sample candidates from the classes, and return the expected count of each.

An accidental hit is a sampled candidate that is a target of its query. Treatment of hits by each sampler:

| sampler | keep | remove | exclude |
|---|---|---|---|
| `All` | yes | yes | the same as remove |
| `Uniform`, `LogUniform`, `Unigram`, `LearnedUnigram`, with `shared=False` | yes | yes | exact |
| the samplers of the previous row, shared | yes | yes | only if all queries of the batch have the same targets |
| `TwoLevel` | yes | yes | exact |
| `Partition` | as the proposal samplers; as `All` if a whole part is taken | | |

`cpc.losses.objectives` lists the samplers and corrections that each objective accepts. Whether a correction is exact
depends on the sampler:

| correction | treatment of hits | exact for | approximate for |
|---|---|---|---|
| `importance`: E[Z'] = Z | removed, excluded | replacement; `counts="gumbel"` | other counts: biased. \
`Partition`: ignores other parts |
| `posterior`, softmax | removed | `Uniform` without replacement | all others, at finite m |
| `posterior`, logistic (NCE: kept) | removed, kept | replacement | all others, at finite m |
| `none` | any | objectives without log Q: negative sampling, InfoNCE | |
"""

from cpc.candidates.samplers.all import All
from cpc.candidates.samplers.block_mass import BlockMass, CentroidMass, FeatureMass
from cpc.candidates.samplers.learned_unigram import LearnedUnigram
from cpc.candidates.samplers.log_uniform import LogUniform
from cpc.candidates.samplers.partition import Partition
from cpc.candidates.samplers.proposal import Counts, ProposalSampler
from cpc.candidates.samplers.query_sampler import QuerySampler
from cpc.candidates.samplers.sampler import HITS, NO_TARGET, Draw, Hits, Request, Sampler, drop_hits
from cpc.candidates.samplers.two_level import TwoLevel
from cpc.candidates.samplers.uniform import Uniform
from cpc.candidates.samplers.unigram import Unigram

__all__ = [
    "HITS",
    "NO_TARGET",
    "All",
    "BlockMass",
    "CentroidMass",
    "Counts",
    "Draw",
    "FeatureMass",
    "Hits",
    "LearnedUnigram",
    "LogUniform",
    "Partition",
    "ProposalSampler",
    "QuerySampler",
    "Request",
    "Sampler",
    "TwoLevel",
    "Uniform",
    "Unigram",
    "drop_hits",
]
