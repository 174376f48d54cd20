"""What `test_compiled.py` runs in a process of its own, where no checks of types are in a compiler's way.

`torch.compile` takes the model and the loss as one graph each, and keeps it whatever the batch.
"""

import sys

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from cpc.contexts import GRU, PixelCNN
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder, PatchEncoder, TinyTrunk
from cpc.losses import Contrastive, ContrastiveOutput
from cpc.losses.contrastive import Key
from cpc.losses.definition import CandidateSet
from cpc.losses.ranks import gather_batch
from cpc.model import CPC
from cpc.predictors import Bilinear, Output

NUM_BATCHES = 50


def ragged(seed: int) -> Batch:
    """8 windows of a few speakers, of any length and two of them perhaps of one file."""
    draws = torch.Generator().manual_seed(seed)
    return Batch.of(torch.randn(8, 1600, generator=draws, dtype=torch.float64))._replace(
        num_valid=torch.randint(480, 1601, (8,), generator=draws),
        sequence_id=torch.randint(30, (8,), generator=draws),
        group_id=torch.randint(4, (8,), generator=draws),
    )


LOSSES: list[tuple[str, dict]] = [
    ("mixed", {"auxiliary_negatives": {"sequence_only": 0.5}}),
    ("same_speaker", {"num_negatives": 4}),
    ("mixed_excluding", {}),
]


def ragged_batches_share_a_graph_of_the_loss(strategy: str, options: dict) -> None:
    """Losses and gradients are those of eager mode."""
    torch.manual_seed(0)
    model = CPC(AudioEncoder(6), GRU(6), Bilinear(3), Contrastive(strategy, **options)).double()
    graphs = CompileCounterWithBackend("aot_eager")
    part = model.loss_part

    def device_part(output: Output, candidate_sets: dict[Key, CandidateSet]) -> ContrastiveOutput:
        return part.reduce(part.row_losses(output, candidate_sets), candidate_sets, len(output.latents))

    loss = torch.compile(device_part, fullgraph=True, dynamic=True, backend=graphs)
    parameters = list(model.parameters())
    for seed in range(NUM_BATCHES):
        batch, draws = ragged(seed), torch.Generator().manual_seed(seed)
        eager = model.loss(batch, draws)
        output = model(batch.x)
        candidate_sets = part.candidate_sets(gather_batch(output, model.lengths_in_latents(batch)))
        candidate_sets = part.draw_negatives(candidate_sets, output.latents.device, draws.manual_seed(seed))
        found = loss(output, candidate_sets)
        for ours, expected in zip(found, eager, strict=True):
            torch.testing.assert_close(ours, expected)
        gradients = [torch.autograd.grad(each.loss, parameters, allow_unused=True) for each in (found, eager)]
        for ours, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    assert graphs.frame_count == 1


def models() -> list[tuple[CPC, torch.Tensor]]:
    audio = torch.randn(3, 1600, dtype=torch.float64)
    grids = (TinyTrunk(6, 1, strides=(2, 1), widths=(4, 4)), PixelCNN(6, 2, 6, ("down", "left")))
    return [
        (CPC(AudioEncoder(6), GRU(6, num_layers=2), Bilinear(2)), audio),
        (CPC(PatchEncoder(grids[0], patch_size=4, stride=2), grids[1], Bilinear(2)), torch.rand(3, 1, 12, 10).double()),
    ]


def a_model_is_one_graph(model: CPC, x: torch.Tensor) -> None:
    model = model.double().eval()
    model.initialise_from(x)
    expected = model(x)
    of_eager = torch.autograd.grad(sum(each.square().sum() for each in expected.queries.values()), model.parameters())
    graphs = CompileCounterWithBackend("aot_eager")
    model.compile(fullgraph=True, backend=graphs)
    found = model(x)
    assert sum(len(each.graph.nodes) > 0 for each in graphs.graphs) == 1
    torch.testing.assert_close(found[:3], expected[:3], rtol=1e-10, atol=1e-12)
    gradients = torch.autograd.grad(sum(each.square().sum() for each in found.queries.values()), model.parameters())
    torch.testing.assert_close(gradients, of_eager, rtol=1e-9, atol=1e-10)


def encoders_are_exported_for_any_length() -> None:
    encoder = AudioEncoder(4).eval()
    axes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(encoder, (torch.randn(3, 3200),), dynamic_shapes=(axes,)).module()
    x = torch.randn(2, 5001)
    torch.testing.assert_close(program(x), encoder(x), rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "loss":
        for strategy, options in LOSSES:
            torch.compiler.reset()
            ragged_batches_share_a_graph_of_the_loss(strategy, options)
    else:
        torch.manual_seed(0)
        for model, x in models():
            torch.compiler.reset()
            a_model_is_one_graph(model, x)
        encoders_are_exported_for_any_length()
