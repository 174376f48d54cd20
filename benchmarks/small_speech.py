"""Ablations of configs/small_speech.yaml on real speech: each line of the table changes one part.

python -m benchmarks.small_speech [--an4 DIR] [--timit DIR] [--fsdd DIR] [--synthesised DIR] [--out DIR]
                                  [--only NAME ...] [--seeds N] [--option=value ...]   (more options go to cpc pretrain)

Each folder contains a manifest; `timit` also contains its alignments. Every line pretrains on AN4 for 1000 steps unless
its options change this, and is probed on phones of other speakers (4 folds of the TIMIT sample), on digits of another
corpus (FSDD), and on the speakers of AN4. Lines that an earlier call finished are not run again. A line takes seven
minutes of one thread: set OMP_NUM_THREADS=1 and run two halves at the same time with `--only`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ablations import is_probed, keep_options, train
from cpc.data.store.atomic import read_records
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.probes.report import probe

CONFIG = Path(__file__).parents[1] / "configs" / "small_speech.yaml"
NUM_STEPS = 1000
SPEAKER_MINUTES = 10.0  # training minutes of the speaker probe; with all of AN4 the probe takes minutes

STRIDED = (
    "--model.encoder=cpc.encoders.AudioEncoder",
    "--model.encoder.dim=256",
    "--model.learning_rate=4e-3",
    "--model.betas=[0.9,0.98]",
    "--model.warmup_steps=100",
)
ONE_FRAME = ("--model.encoder.num_frames=1", "--model.loss.skip_steps=0")
MIXTURE = ("--model.loss.negatives=mixed", "--model.loss.auxiliary_negatives={sequence_only: 0.85}")
NO_DROPOUT = ("--model.encoder.dropout=0", "--model.predictor.dropout=0")
UNCHANGED = ("--data.augmentation=null",)


def changed(**changes: Any) -> tuple[str, ...]:
    """Return the option for another augmentation."""
    return (f"--data.augmentation={json.dumps({'applied_to': 'past'} | changes)}",)


def attention(shared: str) -> str:
    """Return the option for transformer predictors with a layer for each step, or one that all steps share."""
    init_args = f"{{num_steps: 12, dropout: 0.2, shared_across_steps: {shared}}}"
    return f"--model.predictor={{class_path: cpc.predictors.TransformerPredictor, init_args: {init_args}}}"


# Lines with slower steps get fewer steps, so that they take as long as 1000 steps of the config.
LINES: dict[str, tuple[str, ...]] = {
    "strided, nothing else": (
        *STRIDED,
        "--model.predictor.dropout=0",
        "--model.loss.skip_steps=0",
        *UNCHANGED,
        "--trainer.max_steps=450",
    ),
    "one log-mel frame, mixture": (*ONE_FRAME, *NO_DROPOUT, *UNCHANGED, *MIXTURE),
    "one frame, same_speaker": (*ONE_FRAME, *NO_DROPOUT, *UNCHANGED, "--model.loss.negatives=same_speaker"),
    "one frame, sequence_only": (*ONE_FRAME, *NO_DROPOUT, *UNCHANGED),
    "one frame, skip_steps 2": (ONE_FRAME[0], *NO_DROPOUT, *UNCHANGED),
    "five frames": (*NO_DROPOUT, *UNCHANGED),
    "strided, all changes": (*STRIDED, "--model.predictor.dropout=0.2", "--trainer.max_steps=330"),
    "mixture": MIXTURE,
    "pitch 200": changed(pitch_cents=200),
    "pitch 400, both": changed(pitch_cents=400, applied_to="both"),
    "noise 15 to 30 dB": changed(pitch_cents=400, noise_snr_db=[15, 30], noise="pink"),
    "rooms 50 to 200 ms": changed(pitch_cents=400, reverb_ms=[50, 200]),
    "band drop 500 Hz": changed(pitch_cents=400, band_drop_hz=500),
    "time drop 50 ms": changed(pitch_cents=400, time_drop_ms=50),
    "one transformer": (attention("true"), "--trainer.max_steps=770"),
    "transformers": (attention("false"), "--trainer.max_steps=210"),
    "synthesised first": (),  # --init_from the line below
    "synthesised alone": (),
    "dropout": UNCHANGED,
    "config (pitch 400)": (),
}
SEEDS = {"dropout": 3, "config (pitch 400)": 3}
UNTRAINED = ("strided, all changes", "config (pitch 400)")


def run(name: str, seed: int, where: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """Pretrain and probe one line, or read what an earlier call found."""
    folder = folder_of(name, seed, where)
    corpus, extra = where.an4, [f"--trainer.max_steps={NUM_STEPS}", *LINES[name]]
    if name == "synthesised alone":
        corpus = where.synthesised
    if name == "synthesised first":
        run("synthesised alone", seed, where, options)
        extra += [f"--init_from={folder_of('synthesised alone', seed, where)}"]
    extra += [f"--seed_everything={seed}", f"--data.seed={seed}", "--eval_every_steps=500", *options]
    keep_options(folder, CONFIG, extra)
    train(folder, ["--config", str(CONFIG), f"--data.manifest={corpus}", *extra])
    if not is_probed(folder):  # it checks probe.json, so the phones are probed last
        c: Any = {"features": ("c",), "baselines": ()}
        probe(folder, where.an4, ("speaker",), train_minutes=SPEAKER_MINUTES, out=folder / "speaker.json", **c)
        probe(folder, where.fsdd, ("digit",), test_split="test", out=folder / "digit.json", **c)
        probe(
            folder,
            where.timit,
            ("phones",),
            features=("c", "z"),
            baselines=("random",) if name in UNTRAINED and seed == 0 else (),
            folds="speaker",
            alignments=where.timit,
        )
    task_results = {
        task: json.loads((folder / file).read_text())["tasks"][task]["results"]
        for task, file in (("phones", "probe.json"), ("digit", "digit.json"), ("speaker", "speaker.json"))
    }
    independent = [r for r in read_records(folder / "bound.jsonl") if r["strategy"] == "mixed_excluding"]
    phones = task_results["phones"]
    return {
        "phones_c": phones["cpc"]["accuracy_percent"],
        "interval": phones["cpc"]["accuracy_interval_percent"],
        "phones_z": phones["cpc_z"]["accuracy_percent"],
        "untrained_c": phones["random"]["accuracy_percent"] if "random" in phones else None,
        "digits_c": task_results["digit"]["cpc"]["accuracy_percent"],
        "speakers_c": task_results["speaker"]["cpc"]["accuracy_percent"],
        "mi_bound_nats": float(np.mean(independent[-1]["mi_bound_nats"])),
        "steps": independent[-1]["step"],
        "trained_seconds": read_records(folder / "health.jsonl")[-1]["trained_seconds"],
    }


def folder_of(name: str, seed: int, where: argparse.Namespace) -> Path:
    """Return the run folder of a line and a seed."""
    folder: Path = where.out / f"{name} {seed}".replace(",", "").replace(" ", "_")
    return folder


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return a Markdown table with a row per line, the mean over its seeds."""
    lines = [
        "| | seeds | steps | seconds | phones, z | phones, c | untrained c | digits, c | speakers, c | bound, nats |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, results in found.items():
        averaged = ("steps", "trained_seconds", "phones_z", "digits_c", "speakers_c", "mi_bound_nats")
        steps, seconds, z, digits, speakers, bound = (np.mean([result[key] for result in results]) for key in averaged)
        low, high = results[0]["interval"]
        phones = ", ".join(f"{result['phones_c']:.1f}" for result in results)
        interval = f" ({low:.1f} to {high:.1f})" if len(results) == 1 else ""
        untrained = "" if results[0]["untrained_c"] is None else f"{results[0]['untrained_c']:.1f}"
        lines.append(
            f"| {name} | {len(results)} | {steps:.0f} | {seconds:.0f} | {z:.1f} | {phones}{interval} | {untrained} | "
            f"{digits:.1f} | {speakers:.1f} | {bound:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for corpus in ("an4", "timit", "fsdd", "synthesised"):
        parser.add_argument(f"--{corpus}", type=Path, default=Path("data") / corpus)
    parser.add_argument("--out", type=Path, default=Path("runs/small_speech_ablations"))
    parser.add_argument("--only", nargs="+", choices=LINES, default=list(LINES), metavar="NAME")
    parser.add_argument("--seeds", type=int, help="seeds of every line, in place of the lines' own numbers")
    where, options = parser.parse_known_args()
    keep_freed_memory()
    prepare_processor()
    found = {
        name: [run(name, seed, where, options) for seed in range(where.seeds or SEEDS.get(name, 1))]
        for name in where.only
    }
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
