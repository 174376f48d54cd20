"""Fit a probe to frozen features: the linear one is solved, one with a hidden layer trained."""

import torch
from tqdm import tqdm

from cpc.probes.classifier import Probe, ProbeProtocol, standardise
from cpc.probes.convex import Coordinates, solve
from cpc.probes.hidden_layer import fit_hidden
from cpc.probes.penalty import choose_l2
from cpc.probes.task import Examples

_TOLERANCE_CHOSEN = 0.01  # standard errors from the optimum, where the penalty is a point of a coarse grid
_TOLERANCE_GIVEN = 0.001  # weights are those of scikit-learn


def fit_probe(
    train: Examples,
    num_classes: int,
    protocol: ProbeProtocol,
    seed: int = 0,
    device: str | torch.device = "cpu",
    *,
    title: str | None = None,
    penalty_chosen_by: str = "likelihood",
) -> Probe:
    """Fit a probe to features, which stay as they are: no gradient reaches what they come from.

    Features are standardised by the training examples. The linear probe minimises the sum of the cross-entropies +
    l2 / 2 |W|^2, the objective of scikit-learn's LogisticRegression (see `cpc.probes.convex.solve`), to its optimum,
    which no seed changes.

    Args:
        train: the training examples.
        num_classes: Y.
        protocol: see there.
        seed: of the initial weights and the order of the examples, with a hidden layer.
        device: where to compute.
        title: of a progress bar; None: none.
        penalty_chosen_by: as `cpc.data.probe_data.ProbeData` has it.
    """
    if protocol.hidden:
        return fit_hidden(train, num_classes, protocol, seed, device, title)
    mean, scale = standardise(train)
    coordinates = Coordinates(train.values, train.rows, mean, scale, device)
    l2, start, tolerance = protocol.l2, None, _TOLERANCE_GIVEN
    with tqdm(total=2, desc=title, unit="step", disable=title is None) as bar:
        if l2 is None:
            l2, start = choose_l2(coordinates, train.labels, train.groups, num_classes, penalty_chosen_by)
            tolerance = _TOLERANCE_CHOSEN
        bar.update()
        solution = solve(coordinates, train.labels, num_classes, l2, start, tolerance)
        bar.update()
    probe = Probe(train.values.shape[1], num_classes, l2=l2).requires_grad_(False)
    fitted = (coordinates.in_features(solution.weight), solution.bias, mean, scale)
    for parameter, values in zip((probe.weights[0], probe.biases[0], probe.mean, probe.scale), fitted, strict=True):
        parameter.copy_(values)
    return probe.to(device)
