"""How many labels a representation saves: the same probe, and the same network, on ever fewer of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn
from tqdm import tqdm

from cpc.probes.images.network import NetworkProtocol, train_network
from cpc.probes.images.task import ImageTask
from cpc.probes.linear import ProbeProtocol

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def label_efficiency(
    task: ImageTask,
    features: Mapping[str, tuple[np.ndarray, np.ndarray]],
    networks: Mapping[str, nn.Module],
    *,
    shares: Sequence[float] = SHARES,
    probe: ProbeProtocol,
    network: NetworkProtocol,
    device: str = "cpu",
    progress: bool = True,
) -> dict[str, Any]:
    """Accuracy by the share of labels, which are the same for all, smaller shares within larger ones.

    Args:
        task: the classes and all labels.
        features: training and test features `[n, D]` by the name of what they come from; probed.
        networks: encoders by name, trained for the labels; `fine_tuned` is taken as pretrained.
        shares: of each class's labels.
        probe: how probes are trained.
        network: how networks are.
        device: where networks are trained.
        progress: show a progress bar.

    Returns:
        `shares`, `num_labels`, `accuracy_percent` of each name, and of each network `num_steps`: fewer than planned
        where `network.seconds` were over first.

    Raises:
        ValueError: on shares outside 0 < share <= 1.
    """
    chosen = [task.subset(share) for share in shares]
    accuracy: dict[str, list[float]] = {name: [] for name in (*features, *networks)}
    num_steps: dict[str, list[int]] = {name: [] for name in networks}
    for rows in tqdm(chosen, desc="label efficiency", unit="share", disable=not progress):
        titles = {name: f"{name}: {len(rows)} labels" if progress else None for name in accuracy}
        for name, (train, test) in features.items():
            accuracy[name].append(task.probe(train, test, probe, rows, title=titles[name]).accuracy_percent)
        for name, encoder in networks.items():
            answers, taken = train_network(
                encoder,
                task,
                network,
                rows=rows,
                is_pretrained=name == "fine_tuned",
                device=device,
                title=titles[name],
            )
            accuracy[name].append(task.judge([answers], len(rows)).accuracy_percent)
            num_steps[name].append(taken)
    return {
        "shares": list(shares),
        "num_labels": [len(rows) for rows in chosen],
        "accuracy_percent": accuracy,
        "num_steps": num_steps,
    }
