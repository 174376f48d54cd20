"""Propagation of a rank's failure to all other ranks, within seconds and with its error message.

If a rank fails, a collective of the other ranks reports only "connection closed by peer". If its machine is gone or its
process is stopped, the collective waits for half an hour. So every rank keeps a connection to rank 0. Over this
connection the rank sends a heartbeat once a second, and its error message if it fails. Rank 0 forwards the message to
all other ranks.
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
_MAX_MISSED_BEATS = 20  # a thread sends heartbeats, so that steps may take any time
_GRACE_SECONDS = 6.0  # time for the main thread to leave its collective; all ranks end within 30 s
_CAUSE_SECONDS = 2.0  # the error of a collective may arrive before the message that explains it
_START_SECONDS = 60.0
_BEAT, _END = b"\n", b"end\n"


class RankError(OSError):
    """An error that names the rank that failed, its message, and how to continue."""


class Failure(NamedTuple):
    """The first failure of a run.

    Attributes:
        rank: the rank that failed.
        event: event of `events.jsonl`.
        message: error message of the rank.
    """

    rank: int
    event: str
    message: str


class Ranks:
    """The connections between this rank and the other ranks; a single process has none.

    Args:
        on_stuck: called from another thread with the trainer and the failure of another rank, before this process
            exits because its main thread is stuck in a collective.
    """

    def __init__(self, on_stuck: Callable[[pl.Trainer, Failure], None]) -> None:
        self.rank, self.num_ranks = 0, 1
        self._on_stuck = on_stuck
        self._failure: Failure | None = None
        self._children: list[subprocess.Popen] = []  # processes of other ranks that this process started
        self._thread: threading.Thread | None = None

    def connect(self, trainer: pl.Trainer) -> None:
        """Open the connections and watch them; every rank calls this at the same time.

        Args:
            trainer: the trainer, with a process group.

        Raises:
            OSError: if rank 0 cannot be reached.
        """
        if trainer.world_size == 1:
            return
        self.rank, self.num_ranks, self._trainer = trainer.global_rank, trainer.world_size, trainer
        self._has_received, self._main_has_ended, self._leaving = (threading.Event() for _ in range(3))
        self._own_failure: Failure | None = None
        self._sockets = self._accept_all() if self.rank == 0 else self._connect_to_rank_0()
        if isinstance(trainer.strategy.launcher, _SubprocessScriptLauncher):
            # Lightning's observer kills rank 0 as soon as a process of this list fails, before rank 0 prints the cause.
            self._children = list(trainer.strategy.launcher.procs)
            trainer.strategy.launcher.procs.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="ranks")
        self._thread.start()

    def first_failure(self, own: Failure) -> Failure:
        """Send the failure of this rank to the others, unless another rank failed before.

        Returns:
            The first failure, which caused the later ones.
        """
        if self._thread is None:
            return own
        self._main_has_ended.set()
        if not self._has_received.wait(_CAUSE_SECONDS):
            self._own_failure = own
            self._leaving.set()
            self._thread.join()
        return self._failure or own

    def disconnect(self) -> None:
        """Close the connections. Unless `first_failure` was called, other ranks take this for an end without error."""
        if self._thread is not None:
            self._main_has_ended.set()
            self._leaving.set()
            self._thread.join()

    def _accept_all(self) -> dict[int, socket.socket]:
        family = socket.getaddrinfo(os.environ["MASTER_ADDR"], None)[0][0]
        secret = secrets.token_hex(16)
        with socket.create_server(("", 0), family=family, backlog=self.num_ranks) as server:
            dist.broadcast_object_list([server.getsockname()[1], secret])
            server.settimeout(_START_SECONDS)
            sockets: dict[int, socket.socket] = {}
            while len(sockets) < self.num_ranks - 1:
                connection, _ = server.accept()
                connection.settimeout(_GRACE_SECONDS)
                try:
                    received, _, rank = connection.makefile("rb").readline(64).decode().strip().partition(" ")
                    if not hmac.compare_digest(received, secret):
                        raise ValueError("wrong secret")
                    sockets[int(rank)] = connection
                except (OSError, ValueError, TypeError):
                    connection.close()
            return sockets

    def _connect_to_rank_0(self) -> dict[int, socket.socket]:
        port_and_secret = [None, None]
        dist.broadcast_object_list(port_and_secret)
        port, secret = port_and_secret
        connection = socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=_START_SECONDS)
        connection.settimeout(_GRACE_SECONDS)
        connection.sendall(f"{secret} {self.rank}\n".encode())
        return {0: connection}

    def _watch(self) -> None:
        """Run the watching thread. No other thread reads or writes the sockets."""
        self._failure = self._receive_failure()
        if self._failure is None:
            self._send(_END if self._own_failure is None else _encode(self._own_failure))
            self._wait_for_receivers()
            return
        self._has_received.set()
        self._send(_encode(self._failure))
        for connection in self._sockets.values():
            connection.close()
        if not self._main_has_ended.wait(_GRACE_SECONDS):
            self._on_stuck(self._trainer, self._failure)
            sys.stderr.flush()
            for process in self._children:  # so that a stopped process does not stay for ever
                process.kill()
            os._exit(2)

    def _receive_failure(self) -> Failure | None:
        """Wait for the failure or loss of another rank, and return it; None if this rank leaves first."""
        num_missed = dict.fromkeys(self._sockets, 0)
        buffers = dict.fromkeys(self._sockets, b"")
        next_beat = time.monotonic()
        while not self._leaving.is_set():
            for rank, connection in self._readable(0.2):
                received = _receive(connection)
                if not received:
                    return Failure(
                        rank, "failed", "its process ended without a message: was it killed, or out of memory?"
                    )
                num_missed[rank] = 0
                *messages, buffers[rank] = (buffers[rank] + received).split(b"\n")
                for message in filter(None, messages):
                    if message + b"\n" != _END:
                        return Failure(*json.loads(message))
                    self._sockets.pop(rank).close()
            if time.monotonic() < next_beat:
                continue
            # Missed beats are counted instead of seconds. So a run that is paused by Ctrl-Z and continued by fg goes
            # on.
            next_beat = time.monotonic() + _BEAT_SECONDS
            self._send(_BEAT)
            for rank in self._sockets:
                num_missed[rank] += 1
                if num_missed[rank] > _MAX_MISSED_BEATS:
                    text = f"no sign of life for {_MAX_MISSED_BEATS} s: is its machine or network down?"
                    return Failure(rank, "failed", text)
        return None

    def _readable(self, seconds: float) -> list[tuple[int, socket.socket]]:
        ready = wait(list(self._sockets.values()), seconds)
        return [(rank, connection) for rank, connection in self._sockets.items() if connection in ready]

    def _send(self, message: bytes) -> None:
        for connection in self._sockets.values():
            try:
                connection.sendall(message)
            except OSError:  # the next read from the socket shows the cause
                continue

    def _wait_for_receivers(self) -> None:
        """Wait until the other ranks have read a failure and closed their sockets, before collectives break."""
        until = time.monotonic() + (_GRACE_SECONDS if self._own_failure else 0)
        while self._sockets and time.monotonic() < until:
            for rank, connection in self._readable(0.2):
                if not _receive(connection):
                    self._sockets.pop(rank).close()
        for connection in self._sockets.values():
            connection.close()


def _encode(failure: Failure) -> bytes:
    return json_text(failure).encode() + b"\n"


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""
