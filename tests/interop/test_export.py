"""Graphs for ONNX Runtime compute what the model does, at any length, also as a stream."""

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from refusals import refuses

from cpc import CPC, save_pretrained
from cpc.contexts import GRU, LSTM, Bidirectional, CausalTransformer, Identity, PixelCNN, StateSpace
from cpc.encoders import AudioEncoder, FrameEncoder, MelEncoder, PatchEncoder, SignalEncoder, TinyTrunk, TokenEncoder
from cpc.interop.export import Graph, _check, encoder_graph, export
from cpc.predictors import Bilinear

PIXELS = torch.randint(0, 256, (3, 4, 1, 16, 16), dtype=torch.uint8)
LAYERS: dict[str, Any] = {"widths": (4, 3), "kernels": (4, 3), "strides": (2, 2)}
DOCUMENT = Path(__file__).parents[2] / "docs" / "library.md"


def saved(folder: Path, encoder: Any, context: Any, x: torch.Tensor) -> CPC:
    torch.manual_seed(0)
    model = CPC(encoder, context, Bilinear(1)).eval()
    model.initialise_from(x)
    save_pretrained(model, folder)
    return model


def exported(folder: Path) -> str:
    """Run the command in a process without run-time type checks, which exporters cannot trace; return its output."""
    command = [sys.executable, "-m", "cpc.cli", "export", str(folder / "model"), "--out", str(folder / "graphs")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(path: Path, **inputs: torch.Tensor) -> list[torch.Tensor]:
    session = onnxruntime.InferenceSession(path)
    return [torch.from_numpy(each) for each in session.run(None, {k: np.asarray(v) for k, v in inputs.items()})]


@pytest.mark.slow
def test_a_stream_of_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's files, chunk by chunk and whole, are the model; metadata say how to prepare audio."""
    encoder = AudioEncoder(8)
    encoder.set_statistics(0.5, 2.0)
    model = saved(tmp_path / "model", encoder, GRU(256), torch.randn(2, 3200))
    assert "context.onnx written" in exported(tmp_path)
    x = torch.randn(2, 5001)
    z, c, state = model.encode(x)
    (found,) = run(tmp_path / "graphs" / "encoder.onnx", x=x)
    torch.testing.assert_close(found, z.detach(), rtol=0, atol=1e-5)
    hidden, pieces = torch.zeros(2, 1, 256), []
    for chunk in found.split(7, 1):
        piece, hidden = run(tmp_path / "graphs" / "context.onnx", z=chunk, state=hidden)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), c.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(hidden, state[0].detach(), rtol=0, atol=1e-5)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(encoder = onnx.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    names = {"onnxruntime": onnxruntime, "np": np, "chunks": np.split(x[:1, :4800].numpy(), 3, 1)}
    exec(block, names)
    assert names["c"].shape == (1, 10, 256)
    metadata = onnxruntime.InferenceSession(tmp_path / "graphs" / "encoder.onnx").get_modelmeta().custom_metadata_map
    assert (metadata["cpc.sample_rate_hz"], metadata["cpc.hop_samples"]) == ("16000", "160")
    assert (metadata["cpc.receptive_field_samples"], metadata["cpc.shortest_samples"]) == ("465", "159")


@pytest.mark.slow
def test_a_stream_of_signals(tmp_path: Path) -> None:
    """Chunks that begin `past_samples` earlier give the model's contexts, also if samples are missing."""
    encoder = SignalEncoder(3, 8, sample_rate_hz=50)
    encoder.set_statistics([0.5, 0.0, -1.0], [2.0, 1.0, 0.5], [0.1, 0.2, 0.1])
    x = torch.randn(2, 400, 3)
    x[1, 100:140] = x[0, 7, 1] = math.nan
    model = saved(tmp_path / "model", encoder, GRU(8), torch.randn(2, 400, 3))
    assert "context.onnx written" in exported(tmp_path)
    metadata = onnxruntime.InferenceSession(tmp_path / "graphs" / "encoder.onnx").get_modelmeta().custom_metadata_map
    assert metadata["cpc.hop_samples"] == "8"
    assert float(metadata["cpc.sample_rate_hz"]) == 50
    margin = -(-int(metadata["cpc.past_samples"]) // 8) * 8
    hidden, pieces = torch.zeros(2, 1, 8), []
    for start in range(0, 400, 80):
        first = max(0, start - margin)
        (found,) = run(tmp_path / "graphs" / "encoder.onnx", x=x[:, first : start + 80])
        piece, hidden = run(tmp_path / "graphs" / "context.onnx", z=found[:, (start - first) // 8 :], state=hidden)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), model.encode(x)[1].detach(), rtol=0, atol=1e-5)
    for num_samples in (1, 7, 8, 9):
        (found,) = run(tmp_path / "graphs" / "encoder.onnx", x=x[:, :num_samples])
        torch.testing.assert_close(found, model.encoder(x[:, :num_samples]).detach(), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_stream_through_a_state_space(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", SignalEncoder(3, 8), StateSpace(8, 2, 3), torch.randn(2, 400, 3))
    assert "context.onnx written" in exported(tmp_path)
    z, c, state = model.encode(torch.randn(2, 400, 3))
    hidden, pieces = torch.zeros(2, 2, 2, 3, 8), []
    for chunk in z.detach().split([1, 30, 19], 1):
        piece, hidden = run(tmp_path / "graphs" / "context.onnx", z=chunk, state=hidden)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), c.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(hidden, state[0].detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "context", "x", "files"),
    [
        (AudioEncoder(8, norm="layer"), LSTM(8, 2), torch.randn(3, 3200), 2),
        (MelEncoder(8), CausalTransformer(8, num_heads=2), torch.randn(3, 6400), 1),
        (PatchEncoder(TinyTrunk(8, 1), patch_size=16, stride=8), PixelCNN(6, 2, 6), torch.rand(3, 1, 64, 64), 2),
        (FrameEncoder((16, 16), 6, **LAYERS), Identity(), PIXELS, 2),
        (SignalEncoder(3, 8, causal=False, front="level"), Bidirectional(LSTM(4)), torch.randn(3, 64, 3), 2),
    ],
    ids=["layer norm", "mel", "images", "frames", "signals"],
)
def test_every_kind_of_model(tmp_path: Path, encoder: Any, context: Any, x: torch.Tensor, files: int) -> None:
    model = saved(tmp_path / "model", encoder, context, x)
    assert exported(tmp_path).count("written") == files
    (found,) = run(tmp_path / "graphs" / "encoder.onnx", x=x[:1])
    torch.testing.assert_close(found, model.encoder(x[:1]).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("encoder", "metadata"),
    [  # 465 = 10 + 7 * 5 + 3 * 20 + 3 * 40 + 3 * 80 samples; of Mel 25 ms
        (AudioEncoder(8), {"receptive_field_samples": 465, "shortest_samples": 159, "hop_samples": 160}),
        (MelEncoder(8), {"receptive_field_samples": 400, "shortest_samples": 160, "hop_samples": 160}),
    ],
)
@torch.no_grad()
def test_metadata_holds_what_chunks_need(encoder: Any, metadata: dict[str, int]) -> None:
    """The metadata holds the figures of docs/library.md: the shortest input, and the receptive field."""
    model = CPC(encoder, GRU(4), Bilinear(1)).eval()
    model.initialise_from(torch.randn(2, 3200))
    found = encoder_graph(model).metadata
    assert metadata.items() <= found.items()
    assert model.encode(torch.randn(1, found["shortest_samples"]))[0].shape[1] == 1
    refuses("too few", model.encode, torch.randn(1, found["shortest_samples"] - 1))
    x, hop = torch.randn(1, 8000), found["hop_samples"]
    num_more = math.ceil(found["receptive_field_samples"] / 2 / hop)
    chunk = x[:, (20 - num_more) * hop : (27 + num_more) * hop]
    torch.testing.assert_close(encoder(chunk)[:, num_more : num_more + 7], encoder(x)[:, 20:27], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "wrong", [lambda x: x * torch.nan, lambda x: x[:2], lambda x: x + 1e-4], ids=["NaN", "a shape", "a value"]
)
def test_graphs_that_compute_something_else_are_refused(wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def draw(draws: torch.Generator) -> list[torch.Tensor]:
        return [torch.rand(3, generator=draws)]

    graph = Graph(torch.nn.Identity(), {"x": torch.zeros(3)}, {"x": {0: "length"}}, draw, {})
    _check("encoder.onnx", graph, lambda x: [x.clone()])
    refuses(r"differs from the model by (nan|inf|1.0e-04) on", _check, "encoder.onnx", graph, lambda x: [wrong(x)])


def test_refusals(tmp_path: Path) -> None:
    saved(tmp_path / "model", AudioEncoder(4), GRU(4), torch.randn(2, 3200))
    refuses("already exists", export, tmp_path / "model", tmp_path)
    saved(tmp_path / "words", TokenEncoder(5, 4), GRU(4), torch.zeros(1, 3, dtype=torch.long))
    refuses("TokenEncoder has no `random_input`", export, tmp_path / "words", tmp_path / "graphs")
    assert not (tmp_path / "graphs").exists()
