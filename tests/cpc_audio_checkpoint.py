"""Checkpoints as CPC_audio writes them, small, of weights drawn at random."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

DIM, WIDTH, NUM_STEPS = 16, 12, 5
SHAPES = [(10, 5, 3), (8, 4, 2), (4, 2, 1), (4, 2, 1), (4, 2, 1)]  # kernel, stride, padding


def random_weights(context: str, norm: str, num_layers: int = 1) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    weights: dict[str, Tensor] = {}
    for index, (kernel, _, _) in enumerate(SHAPES):
        in_dim = DIM if index else 1
        weights[f"gEncoder.conv{index}.weight"] = torch.randn(DIM, in_dim, kernel) / (in_dim * kernel) ** 0.5
        weights[f"gEncoder.conv{index}.bias"] = torch.randn(DIM) / 4
        shape = (1, DIM, 1) if norm == "layerNorm" else (DIM,)
        if norm != "ID":
            weights[f"gEncoder.batchNorm{index}.weight"] = 1 + torch.rand(shape)
            weights[f"gEncoder.batchNorm{index}.bias"] = torch.randn(shape) / 4
        if norm == "batchNorm":
            weights[f"gEncoder.batchNorm{index}.running_mean"] = torch.randn(DIM) / 4
            weights[f"gEncoder.batchNorm{index}.running_var"] = 0.5 + torch.rand(DIM)
            weights[f"gEncoder.batchNorm{index}.num_batches_tracked"] = torch.tensor(7)
    recurrent = {"GRU": nn.GRU, "LSTM": nn.LSTM, "RNN": nn.RNN}[context](DIM, WIDTH, num_layers, batch_first=True)
    weights |= {f"gAR.baseNet.{name}": value for name, value in recurrent.state_dict().items()}
    criterion = {f"wPrediction.predictors.{k}.weight": torch.randn(DIM, WIDTH) for k in range(NUM_STEPS)}
    return weights, criterion


def save(folder: Path, weights: Any, criterion: Any = None, arguments: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"gEncoder": weights, "cpcCriterion": criterion, "optimizer": {"state": {}}, "best": weights}
    torch.save(content, folder / "checkpoint_3.pt")
    if arguments is not None:
        (folder / "checkpoint_args.json").write_text(json.dumps(arguments))
    return folder / "checkpoint_3.pt"
