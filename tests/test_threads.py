"""Parts on threads: what they compute with, what they return, and how they fail."""

import threading
from collections.abc import Callable

import pytest
import torch

from cpc.threads import run_parts, shares


@pytest.fixture(autouse=True)
def two_threads(set_num_threads: Callable[[int], None]) -> None:
    set_num_threads(2)


@pytest.mark.parametrize(("num", "most"), [(0, None), (1, None), (2, None), (7, None), (7, 1), (7, 0), (1, 5)])
def test_shares_hold_every_item_once(num: int, most: int | None) -> None:
    parts = shares(num, most)
    assert [i for part in parts for i in range(num)[part]] == list(range(num))
    assert len(parts) == max(1, min(2, num, num if most is None else most))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_parts_run_at_the_same_time_with_one_thread_each_and_results_keep_their_order() -> None:
    both = threading.Barrier(2, timeout=30)

    def part(index: int) -> tuple[int, int, int]:
        both.wait()  # a part that waited for the other to end would break the barrier
        return index, torch.get_num_threads(), len(shares(10))

    assert run_parts(part, [0, 1]) == [(0, 1, 1), (1, 1, 1)]
    assert torch.get_num_threads() == 2
    fresh: list[int] = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [2]  # threads that others start keep the process's number


@pytest.mark.parametrize("has_grad", [True, False])
@pytest.mark.parametrize("has_autocast", [True, False])
def test_gradient_mode_and_autocast_are_the_callers(has_grad: bool, has_autocast: bool) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with torch.set_grad_enabled(has_grad), torch.autocast("cpu", torch.bfloat16, enabled=has_autocast):
        products = run_parts(lambda _: x @ x, [0, 1])
    assert [each.requires_grad for each in products] == [has_grad] * 2
    assert [each.dtype for each in products] == [torch.bfloat16 if has_autocast else torch.float32] * 2


def test_an_error_is_raised_after_all_parts_have_ended() -> None:
    has_failed, has_ended = threading.Event(), threading.Event()

    def part(index: int) -> None:
        if index == 0:
            has_failed.set()
            raise KeyError("first")
        has_failed.wait(30)
        threading.Event().wait(0.05)
        has_ended.set()

    with pytest.raises(KeyError, match="first"):
        run_parts(part, [0, 1])
    assert has_ended.is_set()
