"""`cpc export`: models as ONNX graphs. One graph is the encoder, one the context with its state.

B batch, S samples, T latents, H and W rows and columns of a grid, D latent dim, C context dim, L layers, N modes.
"""

import io
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim

from cpc import __version__
from cpc.checkpoint import load_pretrained
from cpc.config.argument_rules import NewFolder, checked
from cpc.config.extras import import_extra
from cpc.contexts import GRU, LSTM, Bidirectional, Identity, PixelCNN, StateSpace
from cpc.data.store.atomic import build_atomically, json_text
from cpc.model import CPC
from cpc.pages.report import written

NUM_CHECKS = 20  # random inputs on which a graph is compared with the model
describe_result = written
_LATENT_AXES = {"sequences": {0: "batch", 1: "time"}, "grids": {0: "batch", 1: "rows", 2: "columns"}}
_ENCODER_FACTS = ("first_centre_samples", "receptive_field_samples", "past_samples", "shortest_samples")
TOLERANCE = 1e-5  # largest difference, relative to the largest value (to 1, if that is less)


class Graph(NamedTuple):
    """A module to export, whose inputs and outputs are tensors."""

    module: nn.Module
    inputs: dict[str, Tensor]  # examples by name
    axes: dict[str, dict[int, str]]  # for each input and output, the axes of variable length and their names
    draw: Callable[[torch.Generator], list[Tensor]]  # returns random inputs of other lengths, for checks
    metadata: dict[str, Any]  # facts for users of the graph


@checked
def export(model_folder: str | Path, out: NewFolder, *, trusted_packages: Sequence[str] = ("cpc",)) -> list[Path]:
    """`cpc export`: write `encoder.onnx`, x -> z, and `context.onnx`, z and state -> c and the next state.

    Batch and time have variable length; for images, batch, rows and columns have variable length. Standardisation is
    part of the graph. The metadata holds sample rate, hop and other facts about the inputs. Audio shorter than
    `shortest_samples` is an error for the model, but not for the graph, which returns a latent of padding. A stream
    begins with a state of zeros and continues with the returned state. Each graph is compared with the model on 20
    inputs of random shapes. For other formats, call `torch.export.export(model.encoder, ...)`.

    The contexts GRU, LSTM, StateSpace, PixelCNN and Identity are exported, and the first three in both directions.
    Others are left out with a message, since their state has no fixed size.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        out: folder to write; it must not exist yet.
        trusted_packages: packages whose classes the model may name.

    Returns:
        The files written.

    Raises:
        ValueError: before `out` is written: if it exists, the extra is missing, the encoder has
            no `variable_axes` and `random_input` (those of audio, signals, images and frames have them), or results of
            a graph differ from the model's.
    """
    out = Path(out)
    for module in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(module, "onnx", "cpc export needs onnx, onnxscript and onnxruntime")
    model = load_pretrained(model_folder, trusted_packages=tuple(trusted_packages))
    graphs = {"encoder": encoder_graph(model)}
    context = model.context.context if isinstance(model.context, Bidirectional) else model.context
    if isinstance(context, GRU | LSTM | StateSpace | PixelCNN | Identity):
        graphs["context"] = context_graph(model)
    else:
        cls = type(model.context).__name__
        print(f"{cls} is left out: its state has no fixed size; only the encoder is written", file=sys.stderr)
    names = [f"{name}.onnx" for name in graphs]
    with build_atomically(out, lambda folder: all((folder / name).exists() for name in names), "out") as folder:
        for name, graph in zip(names, graphs.values(), strict=True):
            _check(name, graph, _write_onnx(graph, folder / name))
    return [out / name for name in names]


def encoder_graph(model: CPC) -> Graph:
    """Return the graph of the encoder, x -> z."""
    encoder = model.encoder
    if not hasattr(encoder, "random_input"):
        raise ValueError(f"{type(encoder).__name__} has no `random_input`, which a graph of an encoder needs")
    facts = {name: getattr(encoder, name) for name in _ENCODER_FACTS if hasattr(encoder, name)}

    def draw(generator: torch.Generator) -> list[Tensor]:
        return [encoder.random_input(generator)]

    return Graph(
        encoder,
        {"x": _example(draw, encoder.variable_axes)[0]},
        {"x": encoder.variable_axes, "z": _LATENT_AXES[encoder.latents]},
        draw,
        {"modality": encoder.modality, **encoder.geometry, **facts},
    )


def context_graph(model: CPC) -> Graph:
    """Return the graph of the context: z, state -> c, next state.

    The state is one tensor for a GRU, `[B, L, C]`, and for a state space, `[B, L, 2, N, C]`; two tensors for an LSTM;
    and empty for other contexts.
    """
    context = model.context
    num_states = {GRU: 1, LSTM: 2, StateSpace: 1}.get(type(context), 0)
    axes = _LATENT_AXES[context.latents]
    states = ("state", "cell")[:num_states]
    state_axes = {name: {0: "batch"} for name in states}

    def draw(generator: torch.Generator) -> list[Tensor]:
        batch, *lengths = (int(torch.randint(1, 9, (), generator=generator)) for _ in axes)
        before, z = (torch.randn(batch, *lengths, model.encoder.dim, generator=generator) for _ in range(2))
        with torch.no_grad():
            return [z, *(context(before)[1] if states else ())]

    return Graph(
        _Streaming(context),
        dict(zip(("z", *states), _example(draw, axes), strict=True)),
        {"z": axes, **state_axes, "c": axes, **{f"next_{name}": axes for name, axes in state_axes.items()}},
        draw,
        {"streams": num_states > 0 or isinstance(context, Identity)},
    )


class _Streaming(nn.Module):
    """A context whose inputs and outputs are tensors only."""

    def __init__(self, context: nn.Module) -> None:
        super().__init__()
        self.context = context

    def forward(self, z: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        contexts, next_state = self.context(z, state or None)
        return (contexts, *(next_state if state else ()))


def _example(draw: Callable[[torch.Generator], list[Tensor]], axes: Iterable[int]) -> list[Tensor]:
    """Return inputs whose dynamic axes are longer than 2, since exporters treat shorter axes as fixed."""
    generator = torch.Generator().manual_seed(1)
    while True:
        inputs = draw(generator)
        if min(inputs[0].shape[axis] for axis in axes) > 2:
            return inputs


def _write_onnx(graph: Graph, path: Path) -> Callable[..., list[Tensor]]:
    import onnx
    import onnxruntime  # type: ignore[import-untyped]

    first, *states = (dict.fromkeys(graph.axes[name], Dim.DYNAMIC) for name in graph.inputs)
    hidden = io.StringIO()  # messages of the exporters are about their own code
    with torch.no_grad(), warnings.catch_warnings(action="ignore"), redirect_stdout(hidden), redirect_stderr(hidden):
        program = torch.onnx.export(
            graph.module,
            tuple(graph.inputs.values()),
            input_names=list(graph.inputs),
            output_names=list(graph.axes)[len(graph.inputs) :],
            dynamic_shapes={"z": first, "state": tuple(states)} if states else (first,),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    for key, value in (graph.metadata | {"cpc": __version__}).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = f"cpc.{key}", json_text(value)
    # Tracing unrolls a recurrence at one length, and the exporter would declare this length as the only one.
    del proto.graph.value_info[:]
    for tensor in (*proto.graph.input, *proto.graph.output):
        for axis, name in graph.axes[tensor.name].items():
            tensor.type.tensor_type.shape.dim[axis].dim_param = name
    onnx.checker.check_model(proto)
    onnx.save(proto, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in zip(graph.inputs, inputs, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    return run


@torch.no_grad()
def _check(name: str, graph: Graph, run: Callable[..., list[Tensor]]) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(NUM_CHECKS):
        inputs = graph.draw(generator)
        expected = graph.module(*inputs)
        for actual, wanted in zip(run(*inputs), [expected] if isinstance(expected, Tensor) else expected, strict=True):
            difference = float((actual - wanted).abs().max()) if actual.shape == wanted.shape else math.inf
            if not difference <= TOLERANCE * max(1.0, float(wanted.abs().max())):  # `not <=` is also true for NaN
                raise ValueError(f"{name} differs from the model by {difference:.1e} on {tuple(inputs[0].shape)}")
