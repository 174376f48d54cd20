"""The fit of a probe to frozen features: a linear probe is solved, a probe with a hidden layer is trained."""

import torch
from tqdm import tqdm

from cpc.probes.classifier import Probe, ProbeProtocol, standardise
from cpc.probes.convex import Coordinates, solve
from cpc.probes.hidden_layer import fit_hidden
from cpc.probes.penalty import choose_l2
from cpc.probes.task import Examples

_TOLERANCE_CHOSEN = 0.01  # tolerance, in standard errors, if the penalty was chosen on a coarse grid
_TOLERANCE_GIVEN = 0.001  # tolerance with which weights equal scikit-learn's


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
    """Fit a probe to frozen features, standardised by the training examples.

    The linear probe minimises the sum of the cross-entropies + l2 / 2 |W|^2, the objective of scikit-learn's
    LogisticRegression (see `cpc.probes.convex.solve`); its optimum does not depend on the seed. `title` is that of the
    progress bar, None for no bar; `penalty_chosen_by` is the criterion of `cpc.data.probe_data.ProbeData`.
    """
    if protocol.hidden:
        return fit_hidden(train, num_classes, protocol, seed, device, title)
    mean, scale = standardise(train)
    coordinates = Coordinates(train.values, train.indices, mean, scale, device)
    l2, start, tolerance = protocol.l2, None, _TOLERANCE_GIVEN
    with tqdm(total=2, desc=title, unit="step", disable=title is None) as bar:
        if l2 is None:
            l2, start = choose_l2(coordinates, train.labels, train.groups, num_classes, penalty_chosen_by)
            tolerance = _TOLERANCE_CHOSEN
        bar.update()
        solution = solve(coordinates, train.labels, num_classes, l2, start, tolerance)
        bar.update()
    probe = Probe(train.values.shape[1], num_classes, l2=l2).requires_grad_(False)
    fitted = (coordinates.feature_weights(solution.weight), solution.bias, mean, scale)
    for parameter, values in zip((probe.weights[0], probe.biases[0], probe.mean, probe.scale), fitted, strict=True):
        parameter.copy_(values)
    return probe.to(device)
