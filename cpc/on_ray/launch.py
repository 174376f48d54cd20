"""`cpc ray`: the ranks of a pretraining in a Ray cluster. A rank is the process that torchrun would start.

The processes have torchrun's environment variables, so that Lightning and `cpc/pretraining/ranks.py` need no code for
Ray.
"""

import argparse
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cpc.config.argument_rules import Count, Range, checked
from cpc.on_ray.places import import_ray, reserved

_LISTEN_SECONDS = 0.5
_GRACE_SECONDS = 10.0  # between a failure and the kill of other ranks; ranks that wait for the failed rank end in 6 s
_RANK_0_GRACE_SECONDS = 2.0  # the same if rank 0 fails; it ends last, so ranks that still run are stuck
_TAIL_BYTES = 4000  # number of bytes at the end of a rank's output that are kept for the report


class Place(NamedTuple):
    """The reserved place of a rank in the cluster.

    Attributes:
        node: Ray's id of the machine.
        address: network address of the machine.
        port: a free port of the machine.
        gpus: indices of the reserved GPUs on the machine.
    """

    node: str
    address: str
    port: int
    gpus: list[str]


@checked
def launch(
    command: Sequence[str],
    *,
    num_ranks: Count,
    cpus_per_rank: Count = 1,
    gpus_per_rank: Annotated[int, Range(0, 1)] = 0,
    address: str | None = None,
) -> None:
    """`cpc ray`: start the ranks of a pretraining in a Ray cluster, and wait until they end.

    The output of rank 0 is printed; the output of other ranks is printed if they fail. After SIGTERM or Ctrl-C all
    ranks finish their step and save a checkpoint; a second Ctrl-C ends them at once. All machines must see the same
    files under the same paths, and have cpc installed.

    Args:
        command: pretrain and its options. `--trainer.devices` and `--trainer.num_nodes` are filled in; leave them out.
        num_ranks: number of processes, equally many on each machine.
        cpus_per_rank: CPUs reserved for each rank. This is also the number of threads of a rank, unless OMP_NUM_THREADS
            is set on its machine.
        gpus_per_rank: GPUs reserved for each rank, 0 or 1; a rank does not see other GPUs.
        address: address of the cluster. If not given: RAY_ADDRESS, or the cluster on this machine, or a new cluster
            that ends with the run.

    Raises:
        ValueError: if the command is not pretrain, the cluster lacks resources, or the options of the trainer
            contradict the placement of the ranks.
        SystemExit: if a rank fails, with the exit code of rank 0, or else of the first rank that failed; 128 plus the
            signal's number if a signal ended the rank.
    """
    if command[:1] != ["pretrain"]:
        raise ValueError(f"only pretrain runs in ranks: write cpc ray --num_ranks {num_ranks} pretrain --config ...")
    with reserved("num_ranks", num_ranks, num_cpus=cpus_per_rank, num_gpus=gpus_per_rank, address=address) as options:
        ray = import_ray()
        remote = ray.remote(max_concurrency=2)(_Rank)  # `send` must run while `read_output` waits
        actors = [remote.options(**actor_options).remote() for actor_options in options]
        environments = torchrun_environments(ray.get([actor.place.remote() for actor in actors]))
        complete = [*command, *trainer_options(command, environments[0])]
        ranks = [
            actor for _, actor in sorted(zip(environments, actors, strict=True), key=lambda pair: int(pair[0]["RANK"]))
        ]
        environments.sort(key=lambda environment: int(environment["RANK"]))
        folder = os.getcwd()
        ray.get([rank.start.remote(complete, env, folder) for rank, env in zip(ranks, environments, strict=True)])
        codes = _Watch(ray, ranks).wait()
    failed = [code for _, code in sorted(codes.items()) if code]
    if failed:
        raise SystemExit(failed[0] if failed[0] > 0 else 128 - failed[0])


def torchrun_environments(places: Sequence[Place]) -> list[dict[str, str]]:
    """Return, for the rank at each place, the environment variables of torchrun, and the GPUs of its machine.

    Raises:
        ValueError: if machines have different numbers of ranks.
    """
    node_places: dict[str, list[Place]] = {}
    for place in places:
        node_places.setdefault(place.node, []).append(place)
    counts = [len(others) for others in node_places.values()]
    if len(set(counts)) > 1:
        raise ValueError(
            f"`num_ranks`={len(places)} are distributed over {len(counts)} machines of the Ray cluster as "
            f"{', '.join(map(str, counts))}, but all machines must have the same number: change `num_ranks`, or raise "
            "`cpus_per_rank` until the same number fits on each machine"
        )
    first, run_id = places[0], secrets.token_hex(8)
    environments, num_local_ranks = [], dict.fromkeys(node_places, 0)
    for place in places:
        node, local_rank = list(node_places).index(place.node), num_local_ranks[place.node]
        num_local_ranks[place.node] += 1
        environments.append(
            {
                "RANK": str(node * counts[0] + local_rank),
                "WORLD_SIZE": str(len(places)),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(counts[0]),
                "GROUP_RANK": str(node),
                "GROUP_WORLD_SIZE": str(len(counts)),
                "MASTER_ADDR": first.address,
                "MASTER_PORT": str(first.port),
                "TORCHELASTIC_RUN_ID": run_id,  # tells Lightning not to start the ranks
                # As under torchrun, a rank sees the devices of all ranks of its machine, and rank i of the machine uses
                # device i.
                "CUDA_VISIBLE_DEVICES": ",".join(gpu for other in node_places[place.node] for gpu in other.gpus),
            }
        )
    return environments


def trainer_options(command: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Return the options of Lightning's trainer for the number of machines and of ranks on each.

    Raises:
        ValueError: if the command has other values for these options.
    """
    options = {
        "--trainer.devices": environment["LOCAL_WORLD_SIZE"],
        "--trainer.num_nodes": environment["GROUP_WORLD_SIZE"],
    }
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option)
    for option, given in zip(options, vars(parser.parse_known_args(command)[0]).values(), strict=True):
        if given not in (None, options[option]):
            raise ValueError(
                f"{option} {given}, but `num_ranks`={environment['WORLD_SIZE']} are on "
                f"{options['--trainer.num_nodes']} machines with {options['--trainer.devices']} each: leave {option} "
                "out, since it is filled in"
            )
    return [f"{option}={value}" for option, value in options.items()]


class _Rank:
    """An actor that runs the process of a rank."""

    def place(self) -> Place:
        ray = import_ray()
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        context = ray.get_runtime_context()
        return Place(
            context.get_node_id(), ray.util.get_node_ip_address(), port, [str(gpu) for gpu in ray.get_gpu_ids()]
        )

    def start(self, command: list[str], environment: dict[str, str], folder: str) -> None:
        if not Path(folder).is_dir():
            raise ValueError(f"{socket.gethostname()} has no folder {folder}, where `cpc ray` was started")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cpc.cli", *command],
            env=os.environ | environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._open_pipes: list[Any] = [self._process.stdout, self._process.stderr]

    def read_output(self) -> tuple[bytes, bytes, int | None]:
        """Wait for output. Return new bytes of stdout and stderr, and, after the last output, the exit code."""
        code = self._process.poll()  # poll before reading, so that the code is not returned before the last output
        output: dict[Any, bytes] = {self._process.stdout: b"", self._process.stderr: b""}
        for pipe in select.select(self._open_pipes, [], [], _LISTEN_SECONDS)[0]:
            output[pipe] = os.read(pipe.fileno(), 65536)
            if not output[pipe]:
                self._open_pipes.remove(pipe)
        out, err = output.values()
        return out, err, None if out or err else code

    def send(self, signal_number: int) -> None:
        self._process.send_signal(signal_number)


class _Watch:
    """Reads the output of all ranks until they have ended."""

    def __init__(self, ray: Any, ranks: Sequence[Any]) -> None:
        self._ray, self._ranks = ray, ranks
        self._tails = [b""] * len(ranks)  # last output of each rank
        self._codes: dict[int, int] = {}  # exit codes of the ranks that have ended
        self._killed: set[int] = set()

    def wait(self) -> dict[int, int]:
        """Wait until all ranks have ended, and return the exit code of each rank."""
        reads = {actor.read_output.remote(): rank for rank, actor in enumerate(self._ranks)}
        deadline = float("inf")
        with _collect_signals() as signals:
            while reads:
                while signals:
                    signals.clear()
                    self._send(signal.SIGTERM)  # SIGINT is blocked in processes that Ray starts
                ready, _ = self._ray.wait(list(reads), timeout=_LISTEN_SECONDS)
                for result in ready:
                    rank = reads.pop(result)
                    if self._handle_output(rank, result):
                        reads[self._ranks[rank].read_output.remote()] = rank
                if any(self._codes.values()):
                    has_failed = 0 < self._codes.get(0, 0) < 128  # codes from 128 on: a signal ended rank 0
                    grace_seconds = _RANK_0_GRACE_SECONDS if has_failed else _GRACE_SECONDS
                    deadline = min(deadline, time.monotonic() + grace_seconds)
                if time.monotonic() > deadline:
                    self._killed |= set(range(len(self._ranks))) - set(self._codes)
                    self._send(signal.SIGKILL)
        self._report()
        return self._codes

    def _handle_output(self, rank: int, result: Any) -> bool:
        """Print or keep the output of a rank, and return True if the rank is still running."""
        try:
            out, err, code = self._ray.get(result)
        except self._ray.exceptions.RayError as error:
            lost = f"cpc: its Ray worker is lost ({type(error).__name__}): was it killed, or is its machine down?\n"
            out, err, code = b"", lost.encode(), 1
        if rank == 0:
            for stream, output in ((sys.stdout, out), (sys.stderr, err)):
                stream.flush()
                stream.buffer.write(output)
                stream.flush()
        self._tails[rank] = (self._tails[rank] + out + err)[-_TAIL_BYTES:]
        if code is not None:
            self._codes[rank] = code
        return code is None

    def _send(self, signal_number: int) -> None:
        for rank in range(len(self._ranks)):
            if rank not in self._codes:
                self._ranks[rank].send.remote(signal_number)

    def _report(self) -> None:
        """Print the last output of failed ranks, without failures that another rank has already printed."""
        printed = self._tails[0].split(b"\n")
        for rank, code in sorted(self._codes.items()):
            lines = self._tails[rank].rstrip().split(b"\n")
            if code and rank and lines[-1] not in printed:
                printed += lines
                print(*(f"rank {rank}: {line.decode(errors='replace')}" for line in lines), sep="\n", file=sys.stderr)
            if code < 0 and rank not in self._killed:
                print(f"cpc: rank {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr)


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
