"""Rules for YAML: each key once, since readers drop others, finite numbers, and a limited size.

A few hundred bytes of aliases can stand for gigabytes.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MOST_YAML_BYTES, MOST_YAML_DEPTH = 2**20, 64


def check_yaml(text: str) -> None:
    """Refuse keys that are there twice, numbers that are not finite, and more than `check_size` allows.

    Raises:
        ValueError: naming the line.
        yaml.YAMLError: if the text is no YAML.
    """
    check_size(yaml.parse(text, yaml.SafeLoader))
    constructor = yaml.constructor.SafeConstructor()
    waiting: list[Any] = [yaml.compose(text, yaml.SafeLoader)]
    seen = {id(None)}
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in lines:
                    raise ValueError(f"line {line}: {name!r} is there again, after line {lines[name]}: leave one out")
                lines[name] = line
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif node.tag == "tag:yaml.org,2002:float" and not math.isfinite(constructor.construct_yaml_float(node)):
            raise ValueError(f"line {node.start_mark.line + 1}: {node.value} must be a finite number")


def check_size(events: Iterator[yaml.Event]) -> None:
    """Refuse nodes that take more characters with every alias written out than a file may have, and deep ones.

    Raises:
        ValueError: saying which limit.
    """
    sizes: dict[str, int] = {}  # of nodes with an anchor
    inner: list[tuple[str | None, int]] = []  # of each open node: its anchor and its size so far
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            inner.append((event.anchor, 1))
            if len(inner) > MOST_YAML_DEPTH:
                raise ValueError(f"it is nested more than {MOST_YAML_DEPTH} deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = inner.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"the alias *{event.anchor} has no anchor before it, or lies within its own")
            anchor, size = None, sizes[event.anchor]
        else:  # the beginnings and ends of stream and document
            continue
        if anchor is not None:
            sizes[anchor] = size
        if inner:
            inner[-1] = inner[-1][0], inner[-1][1] + size
            size = inner[-1][1]
        if size > MOST_YAML_BYTES:
            raise ValueError(f"with its aliases written out it has more than {MOST_YAML_BYTES} characters")


def read_yaml(path: Path) -> Any:
    """The content of a file.

    Raises:
        ValueError: naming the file, and the line if there is one.
        OSError: if it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        check_yaml(text)
        return yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8, which YAML must be here: {error}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error
