"""`cpc ray`: the ranks of a pretraining in a Ray cluster, each the process that torchrun would start.

Lightning and the lines between ranks (`cpc/pretraining/ranks.py`) meet torchrun's environment and need to know no Ray.
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
_GRACE_SECONDS = 10.0  # after a failure: the others know of it at once and end in 6 s, if they stood in line already
_LAST_GRACE_SECONDS = 2.0  # after that of rank 0, which leaves when the others have heard: who stays is stuck
_LAST_WORDS_BYTES = 4000


class Place(NamedTuple):
    """Where a rank will live.

    Attributes:
        node: the machine, by Ray's name.
        address: the machine's in the network.
        port: a free one.
        gpus: that are reserved, by their numbers on the machine.
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
    """`cpc ray`: start the ranks of a pretraining in a Ray cluster, and end with them.

    Rank 0 speaks here; others are heard when they fail. SIGTERM and Ctrl-C let all ranks end their step and save; a
    second Ctrl-C ends them at once. All machines must see the same files in the same places, and have cpc.

    Args:
        command: pretrain and its options, without `--trainer.devices` and `--trainer.num_nodes`, which are filled in.
        num_ranks: processes; on each machine as many.
        cpus_per_rank: reserved for each; its threads, unless OMP_NUM_THREADS is set on its machine.
        gpus_per_rank: reserved for each, 0 or 1; it sees no others.
        address: of the cluster; that of RAY_ADDRESS or of this machine if not given, else one is started for the run.

    Raises:
        ValueError: on another command, if the cluster does not have as much, or the options of the trainer contradict
            where ranks lie.
        SystemExit: with the exit code of rank 0 if that failed, or of the first that did; 128 and the signal's number
            for one that a signal ended.
    """
    if command[:1] != ["pretrain"]:
        raise ValueError(f"only pretrain runs in ranks: write cpc ray --num_ranks {num_ranks} pretrain --config ...")
    with reserved("num_ranks", num_ranks, num_cpus=cpus_per_rank, num_gpus=gpus_per_rank, address=address) as options:
        ray = import_ray()
        remote = ray.remote(max_concurrency=2)(_Rank)  # it takes a signal while it is listened to
        actors = [remote.options(**each).remote() for each in options]
        environments = torchrun_environments(ray.get([actor.place.remote() for actor in actors]))
        complete = [*command, *trainer_options(command, environments[0])]
        ranks = [
            actor for _, actor in sorted(zip(environments, actors, strict=True), key=lambda of: int(of[0]["RANK"]))
        ]
        environments.sort(key=lambda environment: int(environment["RANK"]))
        folder = os.getcwd()
        ray.get([rank.start.remote(complete, of, folder) for rank, of in zip(ranks, environments, strict=True)])
        codes = _Watch(ray, ranks).codes()
    failed = [code for _, code in sorted(codes.items()) if code]
    if failed:
        raise SystemExit(failed[0] if failed[0] > 0 else 128 - failed[0])


def torchrun_environments(places: Sequence[Place]) -> list[dict[str, str]]:
    """What torchrun would set in the environment of the rank at each place, and the GPUs of its machine.

    Raises:
        ValueError: if machines have different numbers of ranks.
    """
    on_node: dict[str, list[Place]] = {}
    for place in places:
        on_node.setdefault(place.node, []).append(place)
    counts = [len(others) for others in on_node.values()]
    if len(set(counts)) > 1:
        raise ValueError(
            f"`num_ranks`={len(places)} lie on {len(counts)} machines of the Ray cluster as "
            f"{', '.join(map(str, counts))}, but each must have as many: change `num_ranks`, or raise `cpus_per_rank` "
            "until as many fit on each"
        )
    first, run = places[0], secrets.token_hex(8)
    environments, seen = [], dict.fromkeys(on_node, 0)
    for place in places:
        node, local = list(on_node).index(place.node), seen[place.node]
        seen[place.node] += 1
        environments.append(
            {
                "RANK": str(node * counts[0] + local),
                "WORLD_SIZE": str(len(places)),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(counts[0]),
                "GROUP_RANK": str(node),
                "GROUP_WORLD_SIZE": str(len(counts)),
                "MASTER_ADDR": first.address,
                "MASTER_PORT": str(first.port),
                "TORCHELASTIC_RUN_ID": run,  # by which Lightning knows that it need not start ranks itself
                # As under torchrun, rank i of a machine takes its i-th device: all that the ranks there have.
                "CUDA_VISIBLE_DEVICES": ",".join(gpu for other in on_node[place.node] for gpu in other.gpus),
            }
        )
    return environments


def trainer_options(command: Sequence[str], environment: dict[str, str]) -> list[str]:
    """The options that tell Lightning where ranks lie.

    Raises:
        ValueError: if the command says otherwise.
    """
    said = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    is_so = {
        "--trainer.devices": environment["LOCAL_WORLD_SIZE"],
        "--trainer.num_nodes": environment["GROUP_WORLD_SIZE"],
    }
    for option in is_so:
        said.add_argument(option)
    for option, given in zip(is_so, vars(said.parse_known_args(command)[0]).values(), strict=True):
        if given not in (None, is_so[option]):
            raise ValueError(
                f"{option} {given}, but `num_ranks`={environment['WORLD_SIZE']} lie on {is_so['--trainer.num_nodes']} "
                f"machines with {is_so['--trainer.devices']} each: leave it out, it is filled in"
            )
    return [f"{option}={value}" for option, value in is_so.items()]


class _Rank:
    """In a place, the process of a rank."""

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
        self._speaking: list[Any] = [self._process.stdout, self._process.stderr]

    def heard(self) -> tuple[bytes, bytes, int | None]:
        """What came on stdout and stderr; with nothing more to come, the exit code."""
        code = self._process.poll()  # before listening, so that last words are heard first
        said: dict[Any, bytes] = {self._process.stdout: b"", self._process.stderr: b""}
        for pipe in select.select(self._speaking, [], [], _LISTEN_SECONDS)[0]:
            said[pipe] = os.read(pipe.fileno(), 65536)
            if not said[pipe]:
                self._speaking.remove(pipe)
        out, err = said.values()
        return out, err, None if out or err else code

    def send(self, number: int) -> None:
        self._process.send_signal(number)


class _Watch:
    """Listens to all ranks until they have ended."""

    def __init__(self, ray: Any, ranks: Sequence[Any]) -> None:
        self._ray, self._ranks = ray, ranks
        self._last_words = [b""] * len(ranks)
        self._codes: dict[int, int] = {}
        self._stuck: set[int] = set()

    def codes(self) -> dict[int, int]:
        """The exit code of each rank."""
        hearing = {rank.heard.remote(): number for number, rank in enumerate(self._ranks)}
        until = float("inf")
        with _signals_noted() as saved_settings:
            while hearing:
                while saved_settings:
                    saved_settings.clear()
                    self._send(signal.SIGTERM)  # SIGINT is blocked below Ray's own processes
                ready, _ = self._ray.wait(list(hearing), timeout=_LISTEN_SECONDS)
                for result in ready:
                    number = hearing.pop(result)
                    if self._hear(number, result):
                        hearing[self._ranks[number].heard.remote()] = number
                if any(self._codes.values()):
                    has_failed = 0 < self._codes.get(0, 0) < 128  # beyond: it was asked to end
                    until = min(until, time.monotonic() + (_LAST_GRACE_SECONDS if has_failed else _GRACE_SECONDS))
                if time.monotonic() > until:
                    self._stuck |= set(range(len(self._ranks))) - set(self._codes)
                    self._send(signal.SIGKILL)
        self._report()
        return self._codes

    def _hear(self, number: int, result: Any) -> bool:
        """Take in what a rank said; whether it goes on."""
        try:
            out, err, code = self._ray.get(result)
        except self._ray.exceptions.RayError as error:
            lost = f"cpc: its Ray worker is lost ({type(error).__name__}): was it killed, or its machine?\n"
            out, err, code = b"", lost.encode(), 1
        if number == 0:
            for stream, said in ((sys.stdout, out), (sys.stderr, err)):
                stream.flush()
                stream.buffer.write(said)
                stream.flush()
        self._last_words[number] = (self._last_words[number] + out + err)[-_LAST_WORDS_BYTES:]
        if code is not None:
            self._codes[number] = code
        return code is None

    def _send(self, number: int) -> None:
        for rank in range(len(self._ranks)):
            if rank not in self._codes:
                self._ranks[rank].send.remote(number)

    def _report(self) -> None:
        """What ranks that failed said last, save what was said before: as a rule they all name the same failure."""
        known = self._last_words[0].split(b"\n")
        for number, code in sorted(self._codes.items()):
            lines = self._last_words[number].rstrip().split(b"\n")
            if code and number and lines[-1] not in known:
                known += lines
                print(*(f"rank {number}: {line.decode(errors='replace')}" for line in lines), sep="\n", file=sys.stderr)
            if code < 0 and number not in self._stuck:
                print(f"cpc: rank {number} was ended by {signal.Signals(-code).name}", file=sys.stderr)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Signals that ask for an end, in a list; after the first Ctrl-C another one interrupts."""
    saved_settings: list[int] = []

    def note(number: int, _: Any) -> None:
        saved_settings.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield saved_settings
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
