from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from cpc.config.yaml_rules import check_yaml
from cpc.data.store.untrusted import read_yaml

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_subnormal=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
)


def is_finite(value: object) -> bool:
    if isinstance(value, list | dict):
        return all(map(is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or abs(value) < float("inf")


@given(VALUES)
def test_what_a_dumper_wrote_is_refused_if_it_is_not_finite_and_only_then(value: object) -> None:
    text = yaml.safe_dump(value)
    if is_finite(value):
        check_yaml(text)
    else:
        refuses("must be a finite number", check_yaml, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:\n  seed: 1\n  x: 2\n  seed: 1\n", "line 4: 'seed' repeats line 2"),
        ("a: &one {b: 1}\nc: *one\na: 3\n", "line 3: 'a' repeats line 1"),
        ("- {b: 1}\n- [{c: 1,\n    'c': 2}]\n", "line 3: 'c' repeats line 2"),
        ("a:\n- 1\n- -.INF\n", "line 3: -.INF must be a finite number"),
    ],
)
def test_the_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    refuses(f"config.yaml: .*{message}", read_yaml, tmp_path / "config.yaml")


def test_merged_mappings_and_texts_are_legal() -> None:
    check_yaml("a: &one {b: 1}\nc:\n  <<: *one\n  b: 2\n  d: '.inf'\n")


@pytest.mark.parametrize("value", ["1.0e+999", "-1.0e+400", "+.INF", ".NaN"])
def test_numbers_beyond_what_a_float_holds_are_refused(value: str) -> None:
    refuses(r"line 2: .* must be a finite number", check_yaml, f"a: 1.0e+300\nb: [{value}]")
