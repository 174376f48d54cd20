"""The lines between ranks, of three processes without a training: rank 0 passes on what one says to the others."""

import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from cpc.pretraining.ranks import Failure, Ranks


def work(rank: int, folder: Path, what: str, heard: Any) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=3)
    ranks = Ranks(on_stuck=lambda trainer, failure: heard.put((rank, failure)))
    ranks.connect(SimpleNamespace(world_size=3, global_rank=rank, strategy=SimpleNamespace(launcher=None)))  # type: ignore[arg-type]
    if rank == 2 and what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "end":
        ranks.disconnect()
        heard.put((rank, None))
    else:
        own = Failure(rank, "failed", "of rank 2" if rank == 2 else "a collective broke")
        if rank != 2:
            ranks._has_received.wait(20)
        heard.put((rank, ranks.first_failure(own)))
        ranks.disconnect()
    heard.close()
    heard.join_thread()
    os._exit(0)  # its group is not taken down in order


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("error", "of rank 2"),
        ("kill", "its process ended without a message: was it killed, or out of memory?"),
        ("end", None),
    ],
)
def test_what_befalls_one_rank_is_heard_by_all(
    tmp_path: Path, what: str, message: str | None, unchecked_types: None
) -> None:
    context = multiprocessing.get_context("fork")
    heard = context.Queue()
    processes = [context.Process(target=work, args=(rank, tmp_path, what, heard)) for rank in range(3)]
    for process in processes:
        process.start()
    speaking = 2 if what == "kill" else 3
    found = dict(heard.get(timeout=60) for _ in range(speaking))
    for process in processes:
        process.join(60)
    expected = None if message is None else Failure(2, "failed", message)
    assert found == dict.fromkeys(range(speaking), expected)
    assert [process.exitcode for process in processes] == [0, 0, -signal.SIGKILL if what == "kill" else 0]
