"""The small models that ship with cpc, and `cpc models`, which lists them.

Each model is a folder here: config.json, model.safetensors in float16, README.md (the card) and the probe*.json of its
figures. `python -m benchmarks.pretrained NAME` makes the folder. Every function and command that takes a model folder
also takes the name of a model.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpc.config.argument_rules import Choices

FOLDER = Path(__file__).parent
_CARD_NAME = "README.md"


def shipped_names() -> list[str]:
    """Return the names of the models, in alphabetical order."""
    return sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def is_shipped(model: str | Path) -> bool:
    """Return whether this is the name of a shipped model; a local folder or file of the same name takes precedence."""
    return str(model) in shipped_names() and not Path(model).exists()


def models(*, card: str | None = None) -> list[dict[str, Any]]:
    """List the models that ship with cpc.

    Args:
        card: print the card of this model: its data, recipe, bound, probes, and what it is not good for.

    Returns:
        For each model its name, modality, data, steps of training, held-out `log N - L` and ceiling in nats (of the
        strategy `mixed_excluding`, the mean over prediction steps), size in MB, and folder.
    """
    if card is not None:
        Choices(tuple(shipped_names())).check("`card`", card)
    return [_facts(name) for name in shipped_names()]


def describe_result(listed: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
    """Return the card, or the table of models, that the command line prints."""
    if card := options.get("card"):
        return (FOLDER / card / _CARD_NAME).read_text(encoding="utf-8")
    lines = [f"{'model':18} {'modality':8} {'log N - L of ceiling':>21} {'MB':>5}  data"]
    for model in listed:
        bound = f"{model['bound_nats']:.2f} of {model['ceiling_nats']:.2f} nats"
        lines.append(f"{model['name']:18} {model['modality']:8} {bound:>21} {model['megabytes']:5.1f}  {model['data']}")
    return "\n".join([*lines, "cpc models --card NAME prints a model's card; cpc embed NAME DIR --out OUT uses it"])


def _facts(name: str) -> dict[str, Any]:
    folder = FOLDER / name
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    provenance = config["provenance"]
    record = next(line for line in provenance["held_out"] if line["strategy"] == "mixed_excluding")
    return {
        "name": name,
        "modality": config["modality"],
        "data": provenance["data_name"],
        "num_training_steps": provenance["step"],
        "bound_nats": _mean(record["mi_bound_nats"]),
        "ceiling_nats": _mean(record["mi_ceiling_nats"]),
        "megabytes": (folder / "model.safetensors").stat().st_size / 1e6,
        "folder": str(folder),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
