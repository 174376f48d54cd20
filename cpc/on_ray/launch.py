"""`cpc ray`: start `cpc pretrain` on machines of a Ray cluster; it starts the ranks of its machine.

`ray.train.torch.TorchTrainer` runs the training in a thread of its worker, where no signal can be handled, and ends the
workers at Ctrl-C: a run would stop without saving.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Annotated, Any

from cpc.config.argument_rules import Count, Range, checked
from cpc.on_ray.spread import enter, import_ray, reserved

_LISTEN_SECONDS = 0.5


@checked
def launch(
    command: Sequence[str],
    *,
    num_ranks: Count,
    cpus_per_rank: Count = 1,
    gpus_per_rank: Annotated[int, Range(0, 1)] = 0,
    address: str | None = None,
) -> None:
    """`cpc ray`: start the ranks of a pretraining in a Ray cluster, print their output, and wait until they end.

    After SIGTERM or Ctrl-C all ranks finish their step and save a checkpoint. All machines must see the same files
    under the same paths, and have cpc installed.

    Args:
        command: pretrain and its options, without `--trainer.devices` and `--trainer.num_nodes`.
        num_ranks: number of processes, equally many on each machine.
        cpus_per_rank: CPUs reserved for each rank. This is also the number of threads of a rank, unless OMP_NUM_THREADS
            is set on its machine.
        gpus_per_rank: GPUs reserved for each rank, 0 or 1; a rank does not see other GPUs.
        address: address of the cluster. If not given: RAY_ADDRESS, or the cluster on this machine, or a new cluster
            that ends with the run.

    Raises:
        ValueError: if the command is not pretrain, or the cluster lacks resources.
        SystemExit: if a rank fails or a signal ends the run, with the exit code of the machine that ended first.
    """
    if command[:1] != ["pretrain"]:
        raise ValueError(f"only pretrain runs in ranks: write cpc ray --num_ranks {num_ranks} pretrain --config ...")
    if given := [word for word in command if word.startswith(("--trainer.devices", "--trainer.num_nodes"))]:
        raise ValueError(f"{given[0]} follows from `num_ranks`: leave it out")
    with reserved("num_ranks", num_ranks, num_cpus=cpus_per_rank, num_gpus=gpus_per_rank, address=address) as options:
        ray = import_ray()
        remote = ray.remote(max_concurrency=2)(_Machine)  # `stop` must run while `read` waits
        actors = [remote.options(**actor_options).remote() for actor_options in options]
        node_ids, addresses, gpus = zip(*ray.get([actor.place.remote() for actor in actors]), strict=True)
        nodes = group_by_node(node_ids)
        starts = []
        for number, ranks in enumerate(nodes):
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu for rank in ranks for gpu in gpus[rank])}
            starts.append((actors[ranks[0]], addresses[0] | visible | {"NODE_RANK": str(number)}))
        trainer = [f"--trainer.devices={len(nodes[0])}", f"--trainer.num_nodes={len(nodes)}"]
        ray.get([actor.start.remote([*command, *trainer], each, os.getcwd()) for actor, each in starts])
        if code := _follow_all(ray, [actor for actor, _ in starts]):
            raise SystemExit(code)


def group_by_node(node_ids: Sequence[str]) -> list[list[int]]:
    """Return the ranks on each machine, from the id of each rank's machine."""
    nodes: dict[str, list[int]] = {}
    for rank, node_id in enumerate(node_ids):
        nodes.setdefault(node_id, []).append(rank)
    counts = ", ".join(str(len(ranks)) for ranks in nodes.values())
    if len({len(ranks) for ranks in nodes.values()}) > 1:
        machines = f"{len(nodes)} machines of the Ray cluster as {counts}"
        raise ValueError(
            f"`num_ranks`={len(node_ids)} are distributed over {machines}, but must be equally many on each"
        )
    return list(nodes.values())


class _Machine:
    """An actor that runs `cpc pretrain` on its machine."""

    def place(self) -> tuple[str, dict[str, str], list[str]]:
        """Return the id of the machine, an address of it for ranks, and the indices of the reserved GPUs."""
        ray = import_ray()
        with socket.create_server(("", 0)) as server:
            address = {"MASTER_ADDR": ray.util.get_node_ip_address(), "MASTER_PORT": str(server.getsockname()[1])}
        return ray.get_runtime_context().get_node_id(), address, [str(gpu) for gpu in ray.get_gpu_ids()]

    def start(self, command: list[str], environment: dict[str, str], folder: str) -> None:
        enter(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cpc.cli", *command],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def read(self) -> bytes:
        """Wait for output and return it; an empty result means that the process has ended."""
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), 65536)

    def wait(self) -> int:
        return self._process.wait()

    def stop(self) -> None:
        self._process.terminate()  # Ctrl-C is blocked in processes that Ray starts


def _follow_all(ray: Any, actors: Sequence[Any]) -> int:
    """Print the output of all machines until they end; return the first exit code that is not 0, or 0."""
    code, has_stopped = 0, False
    with ThreadPoolExecutor(len(actors)) as threads, _collect_signals() as signals:
        running = {threads.submit(_follow, ray, actor): actor for actor in actors}
        while running:
            for ended in wait(running, _LISTEN_SECONDS, FIRST_COMPLETED).done:
                del running[ended]
                code = code or ended.result()
            if (code or signals) and not has_stopped:
                has_stopped = True
                for actor in running.values():
                    actor.stop.remote()
    return code


def _follow(ray: Any, actor: Any) -> int:
    try:
        while output := ray.get(actor.read.remote()):
            sys.stderr.buffer.write(output)
            sys.stderr.flush()
        return ray.get(actor.wait.remote())
    except ray.exceptions.RayError as error:
        print(f"cpc: a Ray worker is lost ({type(error).__name__}): is its machine down?", file=sys.stderr)
        return 1


@contextmanager
def _collect_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in a list; after the first Ctrl-C another one raises KeyboardInterrupt."""
    signals: list[int] = []

    def collect(signal_number: int, _: Any) -> None:
        signals.append(signal_number)
        if signal_number == signal.SIGINT:
            signal.signal(signal_number, signal.default_int_handler)

    previous = {number: signal.signal(number, collect) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
