"""The device of an estimator's model."""

from copy import deepcopy
from typing import Any

from cpc.model import CPC


def models_on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an estimator with copies of its models on the CPU: any machine can read its pickle."""
    return {name: deepcopy(value).cpu() if isinstance(value, CPC) else value for name, value in state.items()}
