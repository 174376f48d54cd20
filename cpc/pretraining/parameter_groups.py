"""The parameter groups of an optimiser: time constants have no weight decay."""

from typing import Any

from torch import nn

from cpc.contexts.context import time_constants

UNDECAYED = {"weight_decay": 0.0}


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return a group of the parameters, followed by one of the time constants if the model has any.

    Weight decay would move a step towards 1 and a frequency towards 0, whatever the data need.
    """
    exempt = time_constants(model)
    groups: dict[bool, list[nn.Parameter]] = {False: []}
    for name, parameter in model.named_parameters():
        groups.setdefault(name in exempt, []).append(parameter)
    return [{"params": parameters} | (UNDECAYED if is_exempt else {}) for is_exempt, parameters in groups.items()]
