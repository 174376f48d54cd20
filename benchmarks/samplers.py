"""Samplers that depend on the query: time compared with exact sampling, and distance of the proposals from the softmax.

`exact` is `SoftmaxSampler`; `plain exact` is a direct implementation: product, softmax, cumulative sum, searchsorted,
in float32. A figure is the median wall time of sampling m = 10 classes for each of 10 queries, targets excluded, and of
the forward pass of their loss; all variants take turns in one process, on one thread. The median processor time leaves
out preemption by other processes, but not their effect on the caches, so the lowest processor time is printed too.

`sampled_over_full_793k` says how many training steps of the sampled softmax fit into one of the full softmax.

    python -m benchmarks.samplers [--rounds 40] [--no-class-step]
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import class_step
from benchmarks.extreme.kernel_tree import KernelTree
from benchmarks.extreme.kernels import PositiveRandomFeatures, Quadratic
from benchmarks.extreme.softmax import SoftmaxSampler
from benchmarks.machine import machine_state
from benchmarks.proposals import TEMPERATURE, Scene, chi_square, clustered, sphere
from cpc.candidates.kernels import RandomFourier
from cpc.candidates.samplers import CentroidMass, Draw, FeatureMass, QuerySampler, TwoLevel
from cpc.candidates.samplers.two_level import SOURCE
from cpc.native.allocator import keep_freed_memory
from cpc.native.compiled import compiled
from cpc.native.processor import prepare_processor

DIM, NUM_QUERIES, NUM_SAMPLED = 64, 10, 10
SECONDS_A_TURN = 0.03
THE_FIRST = torch.zeros(NUM_QUERIES, dtype=torch.long)  # candidate is the target
BLOCK_SIZES = {50: 96, 200: 128, 1000: 384}  # by the number of frequencies: what was fastest of some


def sampled_loss(scene: Scene, draw: Draw) -> Tensor:
    """The sampled softmax with `importance`; `class_loss` forms gradients besides, which is no part of Table 2."""
    chosen = F.embedding(torch.cat([scene.targets[:, None], draw.ids], dim=1), scene.classes)
    scores = torch.bmm(chosen, scene.queries[:, :, None])[:, :, 0].div_(TEMPERATURE)
    scores[:, 1:].sub_(draw.log_count_sampled)
    return F.cross_entropy(scores, THE_FIRST)


def plain_exact(scene: Scene, generator: torch.Generator) -> Draw:
    """Exact draws, as one writes them down."""
    scores = scene.queries @ scene.classes.T / TEMPERATURE
    scores.scatter_(1, scene.targets[:, None], -torch.inf)
    p = scores.softmax(1)
    cumulated = p.cumsum(1)
    uniform = torch.rand(NUM_QUERIES, NUM_SAMPLED, generator=generator) * cumulated[:, -1:]
    ids = torch.searchsorted(cumulated, uniform).clamp(max=len(scene.classes) - 1)
    return Draw(ids, p.gather(1, ids).log() + math.log(NUM_SAMPLED), torch.empty(0))


class Seconds(NamedTuple):
    """Medians of wall and of processor time, and the lowest of the latter."""

    wall: float
    processor: float
    lowest: float


def medians(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    """Of each variant; all take their turn, of some calls, in every round."""
    wall: dict[str, list[float]] = {name: [] for name in variants}
    processor: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            call()  # what the others have pushed out of the caches
            end = time.perf_counter() + SECONDS_A_TURN
            while time.perf_counter() < end:
                start, start_processor = time.perf_counter(), time.thread_time()
                call()
                processor[name].append(time.thread_time() - start_processor)
                wall[name].append(time.perf_counter() - start)
    return {
        name: Seconds(statistics.median(wall[name]), statistics.median(processor[name]), min(processor[name]))
        for name in variants
    }


def times(num_classes: int, rounds: int, generator: torch.Generator) -> dict[str, Seconds]:
    scene = sphere(num_classes, DIM, generator, NUM_QUERIES)
    samplers: dict[str, QuerySampler] = {"exact": SoftmaxSampler(num_classes, DIM, TEMPERATURE)}
    for num_frequencies, block_size in BLOCK_SIZES.items():
        mass = FeatureMass(RandomFourier(DIM, num_frequencies))
        samplers[f"two-level, RFF {num_frequencies}"] = TwoLevel(
            num_classes, DIM, TEMPERATURE, mass, "ids", block_size if num_classes > 10**5 else 64
        )
    samplers["two-level, means"] = TwoLevel(num_classes, DIM, TEMPERATURE, CentroidMass(has_variance=False))
    samplers["two-level"] = TwoLevel(num_classes, DIM, TEMPERATURE)
    samplers["tree, RFF 50"] = KernelTree(num_classes, RandomFourier(DIM, 50))
    variants: dict[str, Callable[[], object]] = {
        "plain exact": lambda: sampled_loss(scene, plain_exact(scene, generator))
    }
    for name, sampler in samplers.items():
        start = time.perf_counter()
        sampler.refresh(scene.classes)
        built = time.perf_counter() - start
        memory = sum(buffer.nbytes for buffer in sampler.buffers()) / 2**20
        print(
            f"{num_classes:7} {name:22} built in {built:6.2f} s, {memory:7.1f} MiB with its copy of the table",
            flush=True,
        )

        def draw_and_score(sampler: QuerySampler = sampler) -> Tensor:
            draw = sampler.sample(scene.queries, NUM_SAMPLED, scene.targets, "exclude", generator)
            return sampled_loss(scene, draw)

        variants[name] = draw_and_score
    found = medians(variants, rounds)
    for name, seconds in found.items():
        columns = [
            f"{1e3 * own:8.3f} ms {exact / own:7.1f}x exact {plain / own:7.1f}x plain"
            for own, exact, plain in zip(seconds, found["exact"], found["plain exact"], strict=True)
        ]
        print(f"{num_classes:7} {name:22} wall {columns[0]}   processor {columns[1]}   lowest {columns[2]}", flush=True)
    ids = torch.randperm(num_classes, generator=generator)[:110]
    moved = medians({name: lambda s=s: s.update(ids, scene.classes[ids]) for name, s in samplers.items()}, rounds)
    for name, seconds in moved.items():
        print(f"{num_classes:7} {name:22} {1e3 * seconds.wall:8.3f} ms for an update of 110 classes", flush=True)
    return found


def qualities(name: str, scene: Scene) -> dict[str, float]:
    """Median chi-square of every proposal, hits kept."""
    num_classes = len(scene.classes)
    fourier = RandomFourier(DIM, 1000)
    samplers: dict[str, QuerySampler] = {
        "quadratic": KernelTree(num_classes, Quadratic(DIM), 0.0),
        "RFF 100": KernelTree(num_classes, RandomFourier(DIM, 100)),
        "RFF 1000": KernelTree(num_classes, fourier),
        "RFF 1000, share 0.01": KernelTree(num_classes, fourier, 0.01),
        "RFF 1000, share 1e-4": KernelTree(num_classes, fourier, 1e-4),
        "positive 1000": KernelTree(num_classes, PositiveRandomFeatures(DIM, 1000, 4.0)),
        "two-level, RFF 1000, random": TwoLevel(num_classes, DIM, TEMPERATURE, FeatureMass(fourier), "random"),
        "two-level, random": TwoLevel(num_classes, DIM, TEMPERATURE, blocks="random"),
        "two-level, share 0.1": TwoLevel(num_classes, DIM, TEMPERATURE, uniform_share=0.1),
        "two-level, means": TwoLevel(num_classes, DIM, TEMPERATURE, CentroidMass(has_variance=False)),
        "two-level": TwoLevel(num_classes, DIM, TEMPERATURE),
    }
    log_p = scene.log_softmax()
    found = {"uniform": chi_square(log_p, torch.full_like(log_p, -math.log(num_classes)))}
    for proposal, sampler in samplers.items():
        sampler.refresh(scene.classes)
        found[proposal] = chi_square(log_p, sampler.log_prob(scene.queries))
    for proposal, values in found.items():
        print(f"{name:10} {proposal:28} chi-square {values.median():9.3f} (highest {values.max():9.2f})", flush=True)
    return {proposal: float(values.median()) for proposal, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--sizes", type=int, nargs=2, default=(500_000, 10_000), help="smaller ones try the benchmark out"
    )
    parser.add_argument(
        "--class-step",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also a training step on 793k classes, full against sampled (benchmarks.class_step): some minutes",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    prepare_processor()
    state = machine_state(allocator_keeps_memory=True) | {"compiled": compiled(SOURCE) is not None}
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    generator = torch.Generator().manual_seed(0)
    large, small = (times(num_classes, options.rounds, generator) for num_classes in options.sizes)
    generator.manual_seed(0)  # how much of it the timings took depends on the clock
    chi2 = {
        "clustered": qualities("clustered", clustered(10_000, DIM, generator)),
        "sphere": qualities("sphere", sphere(10_000, DIM, generator)),
    }
    figures: dict[str, Any] = {}
    names = {str(size): f"two-level, RFF {size}" for size in BLOCK_SIZES} | {"default": "two-level"}
    for clock in Seconds._fields:
        suffix = "" if clock == "wall" else f"_{clock}"
        for exact in ("exact", "plain exact"):
            prefix = exact.replace(" ", "_")
            ours = {key: getattr(large[name], clock) for key, name in names.items()}
            figures[f"{prefix}_over_two_level_500k{suffix}"] = {
                key: round(getattr(large[exact], clock) / seconds, 1) for key, seconds in ours.items()
            }
            ratio = getattr(small[exact], clock) / getattr(small["two-level"], clock)
            figures[f"{prefix}_over_two_level_10k{suffix}"] = round(ratio, 2)
    figures["chi2"] = {s: {name: round(value, 4) for name, value in values.items()} for s, values in chi2.items()}
    if options.class_step:
        ratios = class_step.full_over_sampled(class_step.compare())
        figures["sampled_over_full_793k"] = {name: round(ratio, 1) for name, ratio in ratios.items()}
    figures["machine"] = state
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
