"""A model is one graph of `torch.compile`: `test_compiled.py` runs this in a process without runtime type checks."""

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from cpc.contexts import GRU, PixelCNN, StateSpace
from cpc.encoders import AudioEncoder, PatchEncoder, TinyTrunk
from cpc.model import CPC
from cpc.predictors import Bilinear


def models() -> list[tuple[CPC, torch.Tensor]]:
    audio = torch.randn(3, 1600, dtype=torch.float64)
    grids = (TinyTrunk(6, 1, strides=(2, 1), widths=(4, 4)), PixelCNN(6, 2, 6, ("down", "left")))
    return [
        (CPC(AudioEncoder(6), GRU(6, num_layers=2), Bilinear(2)), audio),
        (CPC(AudioEncoder(6), StateSpace(7, num_layers=2), Bilinear(steps=[1, 4])), audio),
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
    torch.manual_seed(0)
    for model, x in models():
        torch.compiler.reset()
        a_model_is_one_graph(model, x)
    encoders_are_exported_for_any_length()
