"""What YAML must not hold: a key that is there twice, of which readers drop one, and numbers that are not finite."""

from pathlib import Path
from typing import Any

import yaml


def check_yaml(text: str) -> None:
    """Refuse keys that are there twice, and numbers that are not finite.

    Raises:
        ValueError: naming the line.
        yaml.YAMLError: if the text is no YAML.
    """
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
        elif node.tag == "tag:yaml.org,2002:float" and node.value.lower().strip("+-") in (".nan", ".inf"):
            raise ValueError(f"line {node.start_mark.line + 1}: {node.value} must be a finite number")


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
