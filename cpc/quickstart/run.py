"""The quickstart: synthesise, pretrain, measure the bound, probe beside every baseline, report."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc.checkpoint import build, load_pretrained
from cpc.data.audio.alignments import read_alignments, window_labels
from cpc.data.audio.files import AudioFiles
from cpc.data.audio.manifest import Manifest
from cpc.data.made.speech import synthesize
from cpc.data.store.atomic import write_json
from cpc.data.store.records import read_records
from cpc.evaluation import evaluate
from cpc.model import CPC
from cpc.pretraining.command import pretrain
from cpc.probes.clock import Clock
from cpc.probes.comparison import Extraction
from cpc.probes.features import Features
from cpc.probes.linear import ProbeProtocol
from cpc.probes.report import format_report, probe_report
from cpc.probes.supervised import SupervisedProtocol
from cpc.quickstart.budget import Pace, Precision, measure_pace, require_extras, require_new
from cpc.quickstart.page import ContextsMap, write_page

# The corpus of seed 0 is the one whose test frames the recipe was chosen on. This is one whose test speakers share no
# variant of espeak-ng's voices with its test speakers: docs/decisions.md.
FIRST_CORPUS_SEED = 63
RECIPE_CHOSEN_ON = (
    "Recipe and probe's rate were chosen on test frames of the corpus of seed 0. This is the corpus of seed {}: its "
    "speakers, its recordings and which sentences are tested were drawn anew; espeak-ng, its accents and voice "
    "variants, and the text that all sentences come from are the same."
)
LATENT_DIM, CONTEXT_DIM = 256, 512
BATCH_SIZE = 8
# Of the candidates of the own sequence alone phones are learnt, of others' the speaker: docs/results.md.
AUXILIARY_NEGATIVES = {"sequence_only": 0.85}
SPEAKERS_PER_BATCH = 4
WINDOW_SAMPLES = 20480
PRETRAINING_SECONDS = 320.0  # of bare steps; loading, recording and held-out evaluations add a fifth
SUPERVISED_SECONDS = 40.0
PROBE_TRAIN_MINUTES = 24.0
PROBE_EPOCHS = 10  # half of the protocol's, for half of the time
NUM_MAP_POINTS = 2000
EXTRAS = {"espeakng_loader": "speech", "plotly.offline": "dashboard"}  # what is imported, and what brings it
ACCURACIES = ("majority", "random", "mfcc", "cpc", "cpc_z", "supervised")


def quickstart(out: Path, corpus: Path, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
    """Run everything and write `report.json` and `report.html` into `out`.

    Args:
        out: a new folder for run and reports.
        corpus: the synthesised corpus; made if it is not there.
        seed: of model and batches, and with `FIRST_CORPUS_SEED` added to it of the corpus.
        steps: optimiser steps; None: as many as this machine does in `PRETRAINING_SECONDS`.

    Returns:
        The content of report.json: accuracies in percent, the bound per step in nats, seconds per stage.

    Raises:
        ValueError: if `out` already holds a quickstart, or the extras are not installed.
    """
    require_new(out, ("config.yaml", "bound.jsonl", "probe.jsonl", "checkpoints", "model", "tensorboard"))
    require_extras(EXTRAS)
    out.mkdir(parents=True, exist_ok=True)
    clock = Clock()

    with clock("synthesise"):
        corpus_seed = FIRST_CORPUS_SEED + seed
        manifest = synthesize(corpus, seed=corpus_seed)
    with clock("pretrain"):
        pace = measure_pace(_model, (BATCH_SIZE, WINDOW_SAMPLES))
        steps = steps or pace.num_steps(PRETRAINING_SECONDS)
        print(f"pretraining: {steps} steps in {pace}", flush=True)
        pretrain(_config(out, corpus, seed, steps, pace.precision))
    with clock("bound"):
        measured = evaluate(out, corpus, num_batches=48)
    with clock("probes"):
        probed = probe_report(
            out,
            corpus,
            ("phones", "speaker"),
            train_minutes=PROBE_TRAIN_MINUTES,
            protocol=ProbeProtocol(num_epochs=PROBE_EPOCHS, num_seeds=1),
            supervised=SupervisedProtocol(seconds=SUPERVISED_SECONDS, precision=pace.precision.probes),
            extraction=Extraction(precision=pace.precision.probes),
            held_out=measured["bounds"],
            out=out / "probe.json",
        )
        print(format_report(probed))
    report = _report(manifest, probed, measured, corpus_seed, steps, pace, clock)
    write_json(report, out / "report.json")
    with clock("page"):
        write_page(
            out / "report.html", report, read_records(out / "bound.jsonl"), _map_of_contexts(out, manifest, corpus)
        )
    report["seconds"] = clock.seconds | {"total": clock.total}
    write_json(report, out / "report.json")
    print(f"{report['seconds']['total']:.0f} seconds; {out / 'report.html'} shows it, {out / 'report.json'} holds it")
    return report


def _config(out: Path, corpus: Path, seed: int, steps: int, precision: Precision) -> dict[str, Any]:
    """The config of `cpc pretrain`; configs/cpu_small.yaml has model and rates for other corpora."""
    return {
        "seed_everything": seed,
        "run_dir": str(out),
        "record_every_steps": 20,
        "eval_every_steps": 200,
        "checkpoint_every_steps": 200,
        "model": {
            **_parts(precision.loss),
            "learning_rate": 4e-3,
            "betas": [0.9, 0.98],
            "warmup_steps": 100,
            "schedule": "cosine",
        },
        "data": {
            "manifest": str(corpus),
            "window_samples": WINDOW_SAMPLES,
            "batch_size": BATCH_SIZE,
            "sampler": "same_speaker",
            "speakers_per_batch": SPEAKERS_PER_BATCH,
            "eval_batches": 8,
            "seed": seed,
        },
        "trainer": {"max_steps": steps, "precision": precision.trainer, "accelerator": "cpu", "gradient_clip_val": 1.0},
    }


def _parts(compute: str) -> dict[str, Any]:
    loss = {"negatives": "mixed", "auxiliary_negatives": AUXILIARY_NEGATIVES, "compute": compute}
    return {
        "encoder": {"class_path": "cpc.encoders.AudioEncoder", "init_args": {"dim": LATENT_DIM}},
        "context": {"class_path": "cpc.contexts.GRU", "init_args": {"dim": CONTEXT_DIM}},
        "predictor": {"class_path": "cpc.predictors.Bilinear", "init_args": {"num_steps": 12}},
        "loss": {"class_path": "cpc.losses.Contrastive", "init_args": loss},
    }


def _model(compute: str) -> CPC:
    """A model to time."""
    return CPC(*(build(part) for part in _parts(compute).values()))


def _report(
    manifest: Manifest, probed: dict, measured: dict, corpus_seed: int, steps: int, pace: Pace, clock: Clock
) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for task in ("phones", "speaker"):
        results = probed["tasks"][task]["results"]
        report[task] = {name: round(results[name]["accuracy_percent"], 2) for name in ACCURACIES}
        report[f"{task}_interval"] = {name: results[name]["accuracy_interval_percent"] for name in ACCURACIES}
        report[f"{task}_num_steps"] = {"supervised": results["supervised"]["num_network_steps"]}
    trained_with = measured["bounds"][0]
    seconds = manifest.num_samples / manifest.sample_rate_hz
    return report | {
        "mi_bound_nats": trained_with["mi_bound_nats"],
        "mi_ceiling_nats": trained_with["mi_ceiling_nats"],
        "negatives": trained_with["strategy"],
        "steps": trained_with["steps"],
        "reading": trained_with["reading"],
        "bounds": measured["bounds"],
        "seconds": dict(clock.seconds),
        "recipe_chosen_on": RECIPE_CHOSEN_ON.format(corpus_seed),
        "corpus_seed": corpus_seed,
        "corpus_minutes": round(float(seconds.sum()) / 60, 1),
        "num_speakers": len(set(manifest.column("speaker"))),
        "latent_dim": LATENT_DIM,
        "context_dim": CONTEXT_DIM,
        "num_train_steps": steps,
        **pace.record(),
        "num_threads": torch.get_num_threads(),
    }


def _map_of_contexts(out: Path, manifest: Manifest, corpus: Path) -> ContextsMap:
    """Contexts of held-out speakers in two dimensions (t-SNE of their first 30 principal components)."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    features = Features("c", load_pretrained(out))
    alignments = read_alignments(corpus / "alignments.csv")
    classes = {label: i for i, label in enumerate(alignments.labels)}
    files = manifest.select("test").take(range(0, len(manifest.select("test")), 4))
    audio = AudioFiles.from_manifest(files, features.sample_rate_hz)
    contexts, labels = [], []
    for index, path in enumerate(files.paths):
        frames = features(audio.read(index, 0, int(audio.num_samples[index])))
        contexts.append(frames)
        labels.append(window_labels(alignments.segments(path), features, 0, len(frames), classes))
    x, y = np.concatenate(contexts), np.concatenate(labels)
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(y >= 0))[:NUM_MAP_POINTS]
    standardised = (x[chosen] - x.mean(0)) / (x.std(0) + 1e-6)
    principal = PCA(30, random_state=0).fit_transform(standardised)
    points = TSNE(2, random_state=0, init="pca", perplexity=40).fit_transform(principal)
    names = alignments.labels
    return ContextsMap(points, [names[i] for i in y[chosen]], "t-SNE of their first 30 principal components")
