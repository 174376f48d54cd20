"""InfoNCE on M queries and M candidates of 256 channels, forward and backward: ours against materialised scores.

python -m benchmarks.loss [--rounds N] [--sizes 1024 8192 ...]
python -m benchmarks.loss --rule       (from how many candidates per drawn negative on it pays to gather)

Each figure is the median over rounds in which every variant starts once, in a process of its own. The reference is
`F.cross_entropy(queries @ candidates.T)` under glibc's default allocator, beside it under one that keeps freed memory
(`pinned`), and with the processor's settings that `cpc` chooses as well (`prepared`: on AMD, float32 products through
oneDNN instead of MKL). Ours runs as `cpc` starts it.
"""

import argparse
import json

import torch
import torch.nn.functional as F

from benchmarks.machine import gemm_peak_gflops, machine_state, median_seconds, peak_extra_mib
from benchmarks.processes import Variant, alternate
from benchmarks.reference import materialised_info_nce
from cpc.losses import info_nce
from cpc.losses.engine import tiles
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor

SIZES = (1024, 4096, 8192, 16384, 65536)
LARGEST_MATERIALISED = 16384  # 65536 would need 64 GiB
DIM, TEMPERATURE = 256, 0.1
METHODS = ("materialised", "materialised-prepared", "float32", "bf16")


def measure(method: str, size: int) -> dict[str, float]:
    """Seconds, extra memory and GEMM peak of one variant in this process."""
    if method != "materialised":
        keep_freed_memory()
        prepare_processor()
    torch.manual_seed(0)
    queries, candidates = (F.normalize(torch.randn(size, DIM), dim=1).requires_grad_() for _ in range(2))
    positives = torch.arange(size)

    def step() -> None:
        if method.startswith("materialised"):
            loss = materialised_info_nce(queries / TEMPERATURE, candidates, positives)
        else:
            loss = info_nce(queries, candidates, positives, temperature=TEMPERATURE, compute=method).loss
        torch.autograd.grad(loss, (queries, candidates))

    extra_mib = peak_extra_mib(step)
    repetitions = 31 if size <= 1024 else 5 if size <= 8192 else 1
    seconds = median_seconds(step, repetitions, num_warmups=3 if size <= 8192 else 0)
    return {"seconds": seconds, "extra_mib": extra_mib, "gemm_peak_gflops": gemm_peak_gflops()}


def variants_of(size: int) -> dict[str, Variant]:
    def variant(method: str, pinned: bool = False) -> Variant:
        return Variant("benchmarks.loss", ("--method", method, "--size", str(size)), pinned)

    ours = {method: variant(method) for method in ("float32", "bf16")}
    if size > LARGEST_MATERIALISED:
        return ours
    return ours | {
        "materialised": variant("materialised"),
        "materialised, pinned": variant("materialised", pinned=True),
        "materialised, prepared": variant("materialised-prepared"),
    }


def seconds_with_drawn(num_candidates: int, num_negatives: int, num_rows: int = 2048) -> list[float]:
    """Of contrasting with drawn negatives: scoring all and counting, and the drawn ones alone in C."""
    queries, candidates = (torch.randn(length, DIM, requires_grad=True) for length in (num_rows, num_candidates))
    positives = torch.randint(num_candidates, (num_rows,))
    others = torch.randint(1, num_candidates, (num_rows, num_negatives))
    negatives = (positives[:, None] + others) % num_candidates

    def step() -> None:
        loss = info_nce(queries, candidates, positives, negatives=negatives).loss
        torch.autograd.grad(loss, (queries, candidates))

    seconds = []
    for tiles.DRAWN_BEYOND in (10**9, 0):
        seconds.append(median_seconds(step, 5))
    return seconds


def print_rule() -> None:
    """Times from which `DRAWN_BEYOND` of `cpc.losses.engine.tiles` follows."""
    keep_freed_memory()
    prepare_processor()
    for num_negatives in (16, 128):
        for num_candidates in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768):
            count, drawn = seconds_with_drawn(num_candidates, num_negatives)
            ratio = num_candidates / num_negatives
            print(
                f"{num_candidates:6} candidates, {num_negatives:4} negatives, {ratio:6.0f} per negative: "
                f"all scores {count:.4f} s, in C {drawn:.4f} s"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--method", choices=METHODS, help="measure this variant alone, in this process")
    parser.add_argument("--size", type=int)
    parser.add_argument("--rule", action="store_true")
    options = parser.parse_args()
    if options.rule:
        return print_rule()
    if options.method:
        print(json.dumps(measure(options.method, options.size)))
        return
    state = machine_state(allocator_keeps_memory=False)
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    figures: dict[str, float] = {}
    for size in options.sizes:
        found = alternate(variants_of(size), options.rounds if size <= LARGEST_MATERIALISED else 1)
        for name, result in found.items():
            percent = 100 * 6 * size**2 * DIM / result["seconds"] / 1e9 / result["gemm_peak_gflops"]
            print(
                f"{size:6} {name:22} {result['seconds']:9.4f} s {percent:6.1f} % of the GEMM peak "
                f"({result['gemm_peak_gflops']:.0f} GFLOP/s) {result['extra_mib']:8.0f} MiB extra",
                flush=True,
            )
            if name == "float32":
                figures[f"percent_of_peak_{size}"] = percent
                figures[f"extra_mib_{size}"] = result["extra_mib"]
                figures[f"seconds_{size}"] = result["seconds"]
        if "materialised" in found:
            for method, suffix in (("float32", "fp32"), ("bf16", "bf16")):
                for reference in ("", ", pinned", ", prepared"):
                    ratio = found[f"materialised{reference}"]["seconds"] / found[method]["seconds"]
                    figures[f"ratio_{size}_{suffix}{reference.replace(', ', '_')}"] = ratio
    if "ratio_1024_fp32" in figures:
        figures["ratio_1024"] = figures["ratio_1024_fp32"]
    print(json.dumps({name: round(value, 4) for name, value in figures.items()} | {"machine": state}))


if __name__ == "__main__":
    main()
