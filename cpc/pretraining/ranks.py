"""What the other ranks learn when one of them fails: in seconds, and what it said.

A collective tells no more than "connection closed by peer", and waits half an hour for a rank whose machine is gone or
whose process is stopped. So every rank keeps a line to rank 0, over which it shows once a second that it is alive, and
over which its last words go. Rank 0 passes them on to all others.
"""

import hmac
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import NamedTuple

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from cpc.data.store.atomic import json_text

_BEAT_SECONDS = 1.0
_SILENT_BEATS = 20  # a thread beats: a step may take as long as it likes
_GRACE_SECONDS = 6.0  # for the main thread to leave its collective by itself, of the 30 s until all ranks have ended
_HEARSAY_SECONDS = 2.0  # a collective's error may be faster than the word of why
_START_SECONDS = 60.0
_BEAT, _END = b"\n", b"end\n"


class RankError(OSError):
    """What ended a run of several ranks: which rank failed, what it said, how to go on."""


class Failure(NamedTuple):
    """The first failure of a run.

    Attributes:
        rank: that failed.
        event: as `events.jsonl` has it.
        message: what it said.
    """

    rank: int
    event: str
    message: str


class Ranks:
    """The line between this rank and the others; of a single process it is silent.

    Args:
        on_stuck: called from another thread with the trainer and a failure elsewhere, before this process is ended
            because its main thread does not come out of a collective.
    """

    def __init__(self, on_stuck: Callable[[pl.Trainer, Failure], None]) -> None:
        self.rank, self.num_ranks = 0, 1
        self._on_stuck = on_stuck
        self._failure: Failure | None = None
        self._started: list[subprocess.Popen] = []  # by this process
        self._thread: threading.Thread | None = None

    def connect(self, trainer: pl.Trainer) -> None:
        """Open the lines and watch them; every rank calls it at the same time.

        Args:
            trainer: whose process group stands.

        Raises:
            OSError: if rank 0 cannot be reached.
        """
        if trainer.world_size == 1:
            return
        self.rank, self.num_ranks, self._trainer = trainer.global_rank, trainer.world_size, trainer
        self._heard, self._main_has_ended, self._leaving = threading.Event(), threading.Event(), threading.Event()
        self._own: Failure | None = None
        self._lines = self._accepted() if self.rank == 0 else self._called()
        if isinstance(trainer.strategy.launcher, _SubprocessScriptLauncher):
            # Lightning's observer kills rank 0 as soon as another's process fails, before it can say why: it looks at
            # this very list.
            self._started = list(trainer.strategy.launcher.procs)
            trainer.strategy.launcher.procs.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="ranks")
        self._thread.start()

    def first_failure(self, own: Failure) -> Failure:
        """Tell the others that this rank fails, unless another one did before: that is then the reason.

        Returns:
            The failure to name.
        """
        if self._thread is None:
            return own
        self._main_has_ended.set()
        if not self._heard.wait(_HEARSAY_SECONDS):
            self._own = own
            self._leaving.set()
            self._thread.join()
        return self._failure or own

    def disconnect(self) -> None:
        """This rank has ended; without `first_failure` before, as it should."""
        if self._thread is not None:
            self._main_has_ended.set()
            self._leaving.set()
            self._thread.join()

    def _accepted(self) -> dict[int, socket.socket]:
        family = socket.getaddrinfo(os.environ["MASTER_ADDR"], None)[0][0]
        secret = secrets.token_hex(16)
        with socket.create_server(("", 0), family=family, backlog=self.num_ranks) as server:
            dist.broadcast_object_list([server.getsockname()[1], secret])
            server.settimeout(_START_SECONDS)
            lines: dict[int, socket.socket] = {}
            while len(lines) < self.num_ranks - 1:
                line, _ = server.accept()
                line.settimeout(_GRACE_SECONDS)
                try:
                    said, _, rank = line.makefile("rb").readline(64).decode().strip().partition(" ")
                    if not hmac.compare_digest(said, secret):
                        raise ValueError("a stranger")
                    lines[int(rank)] = line
                except (OSError, ValueError, TypeError):
                    line.close()
            return lines

    def _called(self) -> dict[int, socket.socket]:
        place = [None, None]
        dist.broadcast_object_list(place)
        line = socket.create_connection((os.environ["MASTER_ADDR"], place[0]), timeout=_START_SECONDS)
        line.settimeout(_GRACE_SECONDS)
        line.sendall(f"{place[1]} {self.rank}\n".encode())
        return {0: line}

    def _watch(self) -> None:
        """The thread: only it reads and writes."""
        self._failure = self._failure_heard()
        if self._failure is None:
            self._say(_END if self._own is None else _line(self._own))
            self._wait_until_heard()
            return
        self._heard.set()
        self._say(_line(self._failure))
        for line in self._lines.values():
            line.close()
        if not self._main_has_ended.wait(_GRACE_SECONDS):
            self._on_stuck(self._trainer, self._failure)
            sys.stderr.flush()
            for process in self._started:  # one that is stopped would stay for ever
                process.kill()
            os._exit(2)

    def _failure_heard(self) -> Failure | None:
        """What another rank said, or that it is lost; None: this rank leaves first."""
        silent_beats = dict.fromkeys(self._lines, 0)
        received = dict.fromkeys(self._lines, b"")
        next_beat = time.monotonic()
        while not self._leaving.is_set():
            for rank, line in self._readable(0.2):
                read = _read(line)
                if not read:
                    return Failure(rank, "failed", "its process ended without a word: killed, or out of memory?")
                silent_beats[rank] = 0
                *said, received[rank] = (received[rank] + read).split(b"\n")
                for words in filter(None, said):
                    if words + b"\n" != _END:
                        return Failure(*json.loads(words))
                    self._lines.pop(rank).close()
            if time.monotonic() < next_beat:
                continue
            # Beats are counted, not seconds: after Ctrl-Z and fg no rank has been heard of for long.
            next_beat = time.monotonic() + _BEAT_SECONDS
            self._say(_BEAT)
            for rank in self._lines:
                silent_beats[rank] += 1
                if silent_beats[rank] > _SILENT_BEATS:
                    return Failure(rank, "failed", f"no sign of life for {_SILENT_BEATS} s: its machine or network?")
        return None

    def _readable(self, seconds: float) -> list[tuple[int, socket.socket]]:
        ready = wait(list(self._lines.values()), seconds)
        return [(rank, line) for rank, line in self._lines.items() if line in ready]

    def _say(self, words: bytes) -> None:
        for line in self._lines.values():
            try:
                line.sendall(words)
            except OSError:  # reading tells why
                continue

    def _wait_until_heard(self) -> None:
        """Those who have heard close their end: only then may this process go, and collectives break."""
        until = time.monotonic() + (_GRACE_SECONDS if self._own else 0)
        while self._lines and time.monotonic() < until:
            for rank, line in self._readable(0.2):
                if not _read(line):
                    self._lines.pop(rank).close()
        for line in self._lines.values():
            line.close()


def _line(failure: Failure) -> bytes:
    return json_text(failure).encode() + b"\n"


def _read(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except OSError:
        return b""
