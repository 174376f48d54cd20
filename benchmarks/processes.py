"""Variants side by side: each in a process of its own, taking turns, so that none inherits what another warmed or used.

A variant is a module of this folder with arguments; its process prints one JSON object as the last line.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What `cpc.native.allocator.keep_freed_memory` asks of glibc, as the environment says it.
PINNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


@dataclass(frozen=True)
class Variant:
    """A module with its arguments, under the default allocator or one that keeps freed memory."""

    module: str
    arguments: tuple[str, ...]
    pinned: bool = False

    def run(self, variables: Mapping[str, str] = {}) -> dict[str, Any]:
        """What its process printed last; raises RuntimeError with the end of its complaints if it failed."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        environment = inherited | dict(variables)
        command = [sys.executable, "-m", self.module, *self.arguments]
        done = subprocess.run(
            command, env=environment | (PINNED if self.pinned else {}), capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def alternate(variants: Mapping[str, Variant], rounds: int) -> dict[str, dict[str, Any]]:
    """Run every variant once a round.

    Returns:
        For each variant the median of every number it printed; other values as the last run had them.
    """
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for turn in range(rounds):
        for name, variant in variants.items():
            runs[name].append(variant.run())
            print(f"  round {turn + 1} of {rounds}: {name} {runs[name][-1]}", file=sys.stderr, flush=True)
    return {name: _medians(results) for name, results in runs.items()}


def _medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    medians = dict(results[-1])
    for key, value in medians.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            medians[key] = sorted(result[key] for result in results)[len(results) // 2]
    return medians
