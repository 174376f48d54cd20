"""Rules for YAML: no repeated keys (readers silently drop them), finite numbers, and a limited size.

The size is limited with aliases expanded, because a few hundred bytes of aliases can expand to gigabytes.
"""

import math
from collections.abc import Iterator
from typing import Any

import yaml

MOST_YAML_BYTES, MOST_YAML_DEPTH = 2**20, 64
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser, if it is installed, is ten times as fast


def check_yaml(text: str) -> None:
    """Check a YAML text for repeated keys, numbers that are not finite, and its size."""
    check_size(yaml.parse(text, YAML_LOADER))
    constructor = yaml.constructor.SafeConstructor()
    waiting: list[Any] = [yaml.compose(text, YAML_LOADER)]
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
                    raise ValueError(f"line {line}: {name!r} repeats line {lines[name]}: leave one out")
                lines[name] = line
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif node.tag == "tag:yaml.org,2002:float" and not math.isfinite(constructor.construct_yaml_float(node)):
            raise ValueError(f"line {node.start_mark.line + 1}: {node.value} must be a finite number")


def check_size(events: Iterator[yaml.Event]) -> None:
    """Raise ValueError if the text is too long with aliases expanded, or nested too deeply."""
    sizes: dict[str, int] = {}  # size by anchor
    inner: list[tuple[str | None, int]] = []  # for each open node its anchor and its size so far
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            inner.append((event.anchor, 1))
            if len(inner) > MOST_YAML_DEPTH:
                raise ValueError(f"it is nested more than {MOST_YAML_DEPTH} levels deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = inner.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"the alias *{event.anchor} has no anchor before it, or lies within its own anchor")
            anchor, size = None, sizes[event.anchor]
        else:  # start or end of the stream or a document
            continue
        if anchor is not None:
            sizes[anchor] = size
        if inner:
            inner[-1] = inner[-1][0], inner[-1][1] + size
            size = inner[-1][1]
        if size > MOST_YAML_BYTES:
            raise ValueError(f"with expanded aliases it has more than {MOST_YAML_BYTES} characters")
