"""The flow runs one way: a file in cpc/ imports only from its own stage and from earlier ones."""

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
STAGES = (
    "encoders",
    "data",
    "contexts",
    "predictors",
    "candidates",
    "losses",
    "bounds",
    "pages",
    "bounds.calibration",
    "model",
    "checkpoint",
    "evaluation",
    "probes",
    "interop",
    "pretraining",
    "sklearn",
    "agents",
    "monitor",
    "quickstart",
    "cli",
)
# Beside the flow: rooms and files that import nothing of it, so that any stage may import them.
FOR_ALL = ("__version__", "config", "native", "on_ray", "interop.hub", "pretrained", "data.tensors")
OUTSIDE = ("__init__", "config", "native", "on_ray", "pretrained")  # cpc/__init__.py loads its names on first use
LIGHTNING_MAY_APPEAR_FROM = "probes"


def imported_modules(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, at any depth of the file; `from cpc import x` counts as `cpc.x`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = list(path.parts[: len(path.parts) - node.level]) if node.level else []
            origin = ".".join([*package, *([node.module] if node.module else [])])
            if origin == "cpc":
                yield from ((node.lineno, f"cpc.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, origin


def stage_of(module: str) -> str:
    """`cpc.data.audio.pack` -> `data`; the package itself -> `__init__`."""
    first, second, *_ = *module.split(".")[1:], "", ""
    return f"{first}.{second}" if f"{first}.{second}" in STAGES else first or "__init__"


def violations(path: Path, source: str) -> list[str]:
    """What a file, given by its path relative to the repository, imports against the flow."""
    own = stage_of(".".join(path.with_suffix("").parts))
    allowed = STAGES[: STAGES.index(own) + 1] if own in STAGES else ()
    found = []
    for line, module in imported_modules(path, source):
        is_for_all = any(f"{module}.".startswith(f"cpc.{each}.") for each in FOR_ALL)
        if module.split(".")[0] == "cpc" and stage_of(module) not in allowed and not is_for_all:
            found.append(f"{path}:{line} imports {module}, which does not stand before {own}")
        is_lightning = module.split(".")[0] in ("lightning", "pytorch_lightning")
        if is_lightning and LIGHTNING_MAY_APPEAR_FROM not in allowed:
            found.append(f"{path}:{line} imports {module}: Lightning is known from {LIGHTNING_MAY_APPEAR_FROM} on")
        if module.split(".")[0] == "ray" and own != "on_ray":
            found.append(f"{path}:{line} imports {module}: Ray is known in on_ray alone")
        if module.split(".")[0] in ("datasets", "tests", "benchmarks"):
            found.append(f"{path}:{line} imports {module}, which is not part of the package")
    return found


def test_every_file_imports_only_from_earlier_stages() -> None:
    files = sorted((REPOSITORY / "cpc").rglob("*.py"))
    assert files
    paths = [file.relative_to(REPOSITORY) for file in files]
    homeless = [str(path) for path in paths if path.with_suffix("").parts[1] not in (*STAGES, *OUTSIDE)]
    assert not homeless, f"give {homeless} a place in the flow (STAGES)"
    found = [each for path in paths for each in violations(path, (REPOSITORY / path).read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)
