"""Benchmark variants that run alternately in separate processes, so that no variant changes the caches of another.

A variant is a module of this folder with arguments; its process prints one JSON object as the last line.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The settings of `cpc.native.allocator.keep_freed_memory` as environment variables of glibc.
PINNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


@dataclass(frozen=True)
class Variant:
    """A module with its arguments, under the default allocator or one that keeps freed memory."""

    module: str
    arguments: tuple[str, ...]
    pinned: bool = False

    def run(self, variables: Mapping[str, str] = {}) -> dict[str, Any]:
        """Run the process and return the JSON object that it printed last.

        Raises:
            RuntimeError: with the end of the process's error output, if the process failed.
        """
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
    """Run every variant once per round.

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
