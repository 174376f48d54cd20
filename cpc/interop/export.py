"""Models as graphs for other programs: the encoder, and the context with its state.

B batch, S samples, T latents, H and W rows and columns of a grid, D latent dim, C context dim, L layers.
"""

import contextlib
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim

from cpc import __version__
from cpc.checkpoint import load_pretrained
from cpc.config.argument_rules import OutFolder, Range, checked
from cpc.config.extras import install_hint
from cpc.contexts import GRU, LSTM, Identity, PixelCNN
from cpc.data.store.atomic import json_text
from cpc.data.store.atomic_folder import build_atomically
from cpc.model import CPC

OLDEST_OPSET = 18  # of torch's exporter
NUM_CHECKS = 20
TOLERANCE = 1e-5  # of the largest value, or of 1


class Graph(NamedTuple):
    """What becomes a file.

    Attributes:
        module: tensors -> tensors.
        inputs: examples, by name.
        axes: of each input and output, those of any length.
        draw: inputs of other lengths, to check with.
        told: what a user has to know of it.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    axes: dict[str, dict[int, str]]
    draw: Callable[[torch.Generator], list[Tensor]]
    told: dict[str, Any]


@checked
def export(
    model_folder: str | Path,
    out: OutFolder,
    format: Literal["onnx"] = "onnx",
    opset: Annotated[int, Range(OLDEST_OPSET)] | None = None,
    *,
    trusted_packages: Sequence[str] = ("cpc",),
) -> list[Path]:
    """`cpc export`: write `encoder.onnx`, x -> z, and `context.onnx`, z and state -> c and the next state.

    Batch and time are of any length, of images batch, rows and columns. Standardisation is in the graph; sample rate,
    hop and what else inputs need is in its metadata. Audio needs `shortest_samples` of these for a latent: the model
    refuses less, but a graph cannot, and gives a latent of padding. A stream begins with a state of zeros and goes on
    with the state that came back. Each graph is run on 20 inputs of random shapes beside the model.

    A context that is no GRU, LSTM, PixelCNN or identity is left out, and a line says so: its state has no fixed size.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        out: folder to write; it must not exist yet.
        format: onnx (`uv sync --extra onnx`). For another use, `torch.export.export(model.encoder, ...)` takes
            encoders with dynamic axes.
        opset: of ONNX, from 18 on; null: the exporter's own.
        trusted_packages: packages whose classes the model may name.

    Returns:
        The files written.

    Raises:
        ValueError: before `out` exists: if it does already, the extra is missing, the opset is too old,
            the model encodes no audio, images or frames, or a graph's results differ from the model's.
    """
    out = Path(out)
    if out.exists():
        raise ValueError(f"{out} exists already: name another folder")
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise ValueError(f"`format` onnx needs onnx, onnxscript and onnxruntime: {install_hint('onnx')}")
    model = load_pretrained(model_folder, trusted_packages=tuple(trusted_packages))
    graphs = {"encoder": encoder_graph(model)}
    if isinstance(model.context, GRU | LSTM | PixelCNN | Identity):
        graphs["context"] = context_graph(model)
    else:
        kind = type(model.context).__name__
        print(f"{kind} is left out: its state has no fixed size; only the encoder is written", file=sys.stderr)
    names = [f"{name}.{format}" for name in graphs]
    with build_atomically(out, lambda folder: all((folder / name).exists() for name in names), "out") as folder:
        for name, graph in zip(names, graphs.values(), strict=True):
            _check(name, graph, _write_onnx(graph, folder / name, opset))
    return [out / name for name in names]


def describe_result(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return the lines that the command line prints."""
    return "\n".join(f"{path} written" for path in paths)


def encoder_graph(model: CPC) -> Graph:
    """The encoder, x -> z.

    Raises:
        ValueError: on observations that are neither audio nor images nor frames.
    """
    encoder, told = model.encoder, {"modality": model.encoder.modality, **model.encoder.geometry}
    if encoder.modality == "audio":
        shortest = encoder.shortest_samples

        def sizes(draws: torch.Generator) -> tuple[int, ...]:
            return _draw(1, 5, draws), shortest + _draw(0, 40 * encoder.hop_samples, draws)

        dynamic = {0: "batch", 1: "samples"}
        told |= {name: getattr(encoder, name) for name in ("first_centre_samples", "receptive_field_samples")}
        told |= {"shortest_samples": shortest}
    elif encoder.modality == "image":

        def sizes(draws: torch.Generator) -> tuple[int, ...]:
            sides = (encoder.patch_size + encoder.stride * _draw(1, 6, draws) for _ in range(2))
            return _draw(1, 5, draws), encoder.num_channels, *sides

        dynamic = {0: "batch", 2: "height", 3: "width"}
    elif encoder.modality == "frames":

        def sizes(draws: torch.Generator) -> tuple[int, ...]:
            return _draw(1, 5, draws), _draw(1, 9, draws), encoder.num_frames, *encoder.frame_size

        dynamic = {0: "batch", 1: "time"}
    else:
        raise ValueError(f"there is no graph of an encoder of {encoder.modality}: it is for audio, images and frames")

    def draw(draws: torch.Generator) -> list[Tensor]:
        if encoder.modality == "frames":
            return [torch.randint(256, sizes(draws), generator=draws, dtype=torch.uint8)]
        return [torch.rand(sizes(draws), generator=draws)]

    of_latents = {0: "batch", 1: "rows", 2: "columns"} if encoder.modality == "image" else {0: "batch", 1: "time"}
    return Graph(encoder, {"x": _example(draw, dynamic)[0]}, {"x": dynamic, "z": of_latents}, draw, told)


def context_graph(model: CPC) -> Graph:
    """The context: z, state -> c, next state; the state `[B, L, C]` of a GRU, two of an LSTM, none of others."""
    context = model.context
    num_states = {GRU: 1, LSTM: 2}.get(type(context), 0)
    is_grid = context.latents == "grids"
    dynamic = {0: "batch", 1: "rows", 2: "columns"} if is_grid else {0: "batch", 1: "time"}
    states = ("state", "cell")[:num_states]
    of_states = {name: {0: "batch"} for name in states}

    def draw(draws: torch.Generator) -> list[Tensor]:
        batch, *lengths = (_draw(1, 9, draws) for _ in dynamic)
        z = torch.randn(batch, *lengths, model.encoder.dim, generator=draws)
        return [z, *(torch.randn(batch, context.num_layers, context.dim, generator=draws) / 2 for _ in states)]

    return Graph(
        _Streaming(context),
        dict(zip(("z", *states), _example(draw, dynamic), strict=True)),
        {"z": dynamic, **of_states, "c": dynamic, **{f"next_{name}": axes for name, axes in of_states.items()}},
        draw,
        {"streams": num_states > 0 or isinstance(context, Identity)},
    )


class _Streaming(nn.Module):
    """A context of tensors alone."""

    def __init__(self, context: nn.Module) -> None:
        super().__init__()
        self.context = context

    def forward(self, z: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        contexts, after = self.context(z, state or None)
        return (contexts, *(after if state else ()))


def _draw(low: int, high: int, draws: torch.Generator) -> int:
    return int(torch.randint(low, high, (), generator=draws))


def _example(draw: Callable[[torch.Generator], list[Tensor]], axes: Iterable[int]) -> list[Tensor]:
    """Inputs whose dynamic axes have lengths beyond 2: exporters would keep shorter ones."""
    draws = torch.Generator().manual_seed(1)
    while True:
        inputs = draw(draws)
        if min(inputs[0].shape[axis] for axis in axes) > 2:
            return inputs


def _dynamic_shapes(graph: Graph) -> dict[str, Any] | tuple[Any, ...]:
    first, *states = (dict.fromkeys(graph.axes[name], Dim.DYNAMIC) for name in graph.inputs)
    return {"z": first, "state": tuple(states)} if states else (first,)


def _write_onnx(graph: Graph, path: Path, opset: int | None) -> Callable[..., list[Tensor]]:
    import onnx
    import onnxruntime  # type: ignore[import-untyped]

    with _quietly():
        program = torch.onnx.export(
            graph.module,
            tuple(graph.inputs.values()),
            input_names=list(graph.inputs),
            output_names=list(graph.axes)[len(graph.inputs) :],
            dynamic_shapes=_dynamic_shapes(graph),
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    made = program.model_proto
    (written,) = (each.version for each in made.opset_import if each.domain == "")
    if opset not in (None, written):
        raise ValueError(
            f"`opset` {opset}: torch {torch.__version__} writes these graphs in opset {written}; choose another, or "
            "leave it out"
        )
    for each, value in (graph.told | {"cpc": __version__}).items():
        entry = made.metadata_props.add()
        entry.key, entry.value = f"cpc.{each}", json_text(value)
    # A recurrence is traced at one length, which the exporter would tell of what comes out.
    del made.graph.value_info[:]
    for each in (*made.graph.input, *made.graph.output):
        for axis, name in graph.axes[each.name].items():
            each.type.tensor_type.shape.dim[axis].dim_param = name
    onnx.checker.check_model(made)
    onnx.save(made, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> list[Tensor]:
        given = {name: each.numpy() for name, each in zip(graph.inputs, inputs, strict=True)}
        return [torch.from_numpy(each) for each in session.run(None, given)]

    return run


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """What exporters say of their own code is nothing to a user."""
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@torch.no_grad()
def _check(name: str, graph: Graph, run: Callable[..., list[Tensor]]) -> None:
    draws = torch.Generator().manual_seed(0)
    for _ in range(NUM_CHECKS):
        inputs = graph.draw(draws)
        expected = graph.module(*inputs)
        for found, wanted in zip(run(*inputs), [expected] if isinstance(expected, Tensor) else expected, strict=True):
            is_there = found.shape == wanted.shape
            difference = float((found - wanted).abs().max()) if is_there else math.inf
            if not difference <= TOLERANCE * max(1.0, float(wanted.abs().max())):  # nor is NaN
                raise ValueError(
                    f"{name} computes something else than the model: {difference:.1e} away on an input "
                    f"{tuple(inputs[0].shape)}; nothing is written"
                )
