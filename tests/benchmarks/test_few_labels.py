"""The labels of `benchmarks.few_labels`: which rows they are."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import few_labels

PEOPLE = np.array(list("aabbccddaabb"))
CLASSES = np.arange(12) % 3


@pytest.fixture
def task() -> Any:
    """Twelve rows of four people and three classes; the last four are the test split, if there is one."""
    data = SimpleNamespace(labels=lambda _, rows: SimpleNamespace(of_row={row: PEOPLE[row] for row in rows.tolist()}))
    return SimpleNamespace(
        column="person",
        rows=np.arange(12),
        train=np.arange(8),
        test=np.arange(12),
        probe_data=data,
        train_codes=lambda: CLASSES[:8],
    )


@pytest.mark.parametrize("num_people", [1, 2])
def test_people_are_others_in_each_draw(task: Any, num_people: int) -> None:
    parts = few_labels.from_people(task, num_people, range(4 // num_people))
    chosen = [set(PEOPLE[train]) for train, _ in parts]
    assert sorted(person for people in chosen for person in people) == list("abcd")
    for (train, test), people in zip(parts, chosen, strict=True):
        assert len(people) == num_people
        assert set(train) == {row for row in range(8) if PEOPLE[row] in people}
        assert set(test) == set(range(12)) - set(train)


def test_every_class_has_as_many_rows(task: Any) -> None:
    (first, test), (second, _) = few_labels.from_classes(task, 2, range(2))
    for rows in (first, second):
        assert np.bincount(CLASSES[rows]).tolist() == [2, 2, 2]
        assert set(rows) <= set(task.train)
    assert set(first) != set(second)
    assert test is task.test
