"""What pretraining saves: probes with few labels, of CPC, of hand-made features, and of the same network without CPC.

python -m benchmarks.few_labels [--data DIR] [--out DIR] [--only ROW ...] [--seeds N] [--draws N] [--curves PNG]
                               [--normalise]

DIR of --data has a folder for each corpus: an4, timit_dev, hapt, watch, ludb, caltech101_small, cifar10_jpeg, mnist.
`untrained` and `CPC` are linear probes of the same feature of the untrained and the pretrained network. `labels only`
trains this network by the labels, and `fine-tuned` the pretrained one, with the cuts and mirrors of pretraining, on all
latents of an image if the probes read a whole grid. Both use their whole budget, or are `stopped`: trained as long as
gave a network without a fifth of the few labels the lowest loss on this fifth. Each network is made with N seeds.
Labels are drawn N times for each seed, always others. --normalise takes out each person's mean and deviation, in the
rows with labels of few people. --curves also measures other numbers of labels, with the first seed and whole budgets,
and draws them. Runs and reports that an earlier call finished are kept. Set OMP_NUM_THREADS=1.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from benchmarks.ablations import keep_options, train
from benchmarks.pretrained import sources
from benchmarks.pretrained.recipes import CONFIGS, RECIPES, Recipe, Source
from benchmarks.signals import COMPANDED
from cpc.checkpoint import load_pretrained, read_config
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.probes.comparison import Comparison
from cpc.probes.reading import Reading
from cpc.probes.store import Extraction, build_untrained, open_probe_data
from cpc.probes.supervised import SupervisedProtocol
from cpc.probes.task import Task

Parts = list[tuple[np.ndarray, np.ndarray]]  # rows for training and for test, of each draw
STOPPED = ", stopped"
WAYS = ((0.0, ""), (0.2, STOPPED))  # of training by labels: the held-out share, and what a column's name ends with
COLUMNS = (
    "hand-made",
    "untrained",
    "labels only",
    f"labels only{STOPPED}",
    "fine-tuned",
    f"fine-tuned{STOPPED}",
    "CPC",
)
Draw = Callable[[Task, int, range], Parts]  # (task, number of labelled units, draws)
PIECE_SECONDS = {2: 2.0, 5: 2.5}  # of the pieces that make two and five seconds of a speaker


def from_people(task: Task, num_people: int, draws: range, column: str = "") -> Parts:
    """Return the rows of people, of others in each draw, and the test rows of all people but these."""
    person_of_row = task.probe_data.labels(column or str(task.column), task.rows).of_row
    person = np.array([person_of_row[row] for row in task.train.tolist()])
    people = np.random.default_rng(0).permutation(np.unique(person))
    chosen = [people[(draw * num_people + np.arange(num_people)) % len(people)] for draw in draws]
    trained = [task.train[np.isin(person, each)] for each in chosen]
    return [(rows, np.setdiff1d(task.test, rows)) for rows in trained]


def from_classes(task: Task, num_rows: int, draws: range) -> Parts:
    """Return this number of rows of each class, and the test rows."""
    label = task.train_codes()
    parts = []
    for draw in draws:
        order = np.random.default_rng(draw).permutation(len(label))
        rows = [order[label[order] == each][:num_rows] for each in np.unique(label)]
        parts.append((task.train[np.concatenate(rows)], task.test))
    return parts


def from_sentences(task: Task, num_seconds: int, draws: range) -> Parts:
    """Return pieces of one or two sentences of each speaker, of others in each draw, and all sentences but these."""
    manifest = task.probe_data.corpus.table  # type: ignore[attr-defined]
    speaker, stem = np.array(manifest.column("speaker")), np.array([Path(path).stem for path in manifest.paths])
    sentences = [task.test[speaker[task.test] == each] for each in set(speaker)]
    num_pieces = round(num_seconds / PIECE_SECONDS[num_seconds])
    parts = []
    for draw in draws:
        rows = np.concatenate([np.roll(each, -draw * num_pieces)[:num_pieces] for each in sentences])
        pieces = [f"{name}-{num_seconds}" for name in stem[rows]]
        parts.append((task.train[np.isin(stem[task.train], pieces)], np.setdiff1d(task.test, rows)))
    return parts


def pieces_of_sentences(data: Path, out: Path) -> Path:
    """Write a manifest of the sentences of the TIMIT sample (split `test`) and of their first seconds (`train`)."""
    rows = []
    for row in sources.read(sources.timit(data, out) / "manifest.csv"):
        rows.append(row | {"split": "test"})
        waveform, rate = soundfile.read(row["path"])
        for num_seconds, piece_seconds in PIECE_SECONDS.items():
            path = out / "pieces" / row["speaker"] / f"{Path(row['path']).stem}-{num_seconds}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            piece = waveform[: round(piece_seconds * rate)]
            soundfile.write(path, piece, rate)
            rows.append(row | {"split": "train", "path": str(path), "num_samples": str(len(piece))})
    return sources.write(out / "timit_pieces", rows)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        recipe: how the network is pretrained.
        task: arguments of `Task`.
        draw: chooses the labels.
        number: number of labelled units.
        feature: the feature that is read, untrained and pretrained.
        hand: the hand-made feature, if there is one.
        figure: the figure of `ProbeResult`.
        probed: prepares the corpus of the probe, if it is not that of pretraining.
        options: options of the data.
        num_steps: steps of networks that are trained by the labels.
        numbers: numbers of labelled units on the curve; none: no curve.
        unit: what a labelled unit is, on the curve.
    """

    recipe: Recipe
    task: Mapping[str, Any]
    draw: Draw
    number: int
    feature: str
    hand: str | None = None
    figure: str = "accuracy_percent"
    num_steps: int = 600
    probed: Source | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    numbers: Sequence[int] = ()
    unit: str = "people"


def image_recipe(config: str, corpus: str) -> Recipe:
    source = lambda data, out: sources.prepare(corpus, data / corpus, out / corpus)  # noqa: E731
    options = ("--trainer.precision=bf16-mixed", "--model.loss.compute=bf16", "--trainer.callbacks=[]")
    return Recipe(config, source, "source", "", corpus, {}, options)


VOICES = Recipe(  # negatives of other recordings: contexts have to know who speaks
    "small_speech.yaml",
    sources.an4,
    "manifest",
    "",
    "voices",
    {},
    (
        "--model.loss.init_args.negatives=mixed",
        "--model.context.init_args.dim=256",
        "--data.augmentation=null",
        "--data.sampler=uniform",
        "--data.speakers_per_batch=null",
        "--data.batch_size=16",
        "--trainer.max_steps=300",
    ),
)
SPEECH, ACTIVITY, ECG = RECIPES["speech-small"], RECIPES["activity-small"], RECIPES["ecg-small"]
PHOTOS = RECIPES["photographs-small"]
WATCH = Recipe("signals/activity.yaml", sources.npz("watch"), "source", "", "watch", {}, COMPANDED)
CIFAR, MNIST = image_recipe("image/cifar10.yaml", "cifar10_jpeg"), image_recipe("image/mnist.yaml", "mnist")
PHONES: dict[str, Any] = {
    "recipe": SPEECH,
    "draw": from_people,
    "feature": "c",
    "hand": "mfcc",
    "probed": sources.timit_all,
}
SPEAKERS: dict[str, Any] = PHONES | {
    "recipe": VOICES,
    "draw": from_sentences,
    "task": {"name": "speaker", "test_split": "test", "pool": "mean"},
    "probed": pieces_of_sentences,
    "num_steps": 200,
}
PEOPLE: dict[str, Any] = {"draw": from_people, "number": 1, "feature": "c", "hand": "hand"}
PICTURES: dict[str, Any] = {"task": {"name": "class"}, "draw": from_classes, "hand": "hog", "unit": "images of a class"}
ROWS = {
    "phones, 1 speaker": Row(
        **PHONES, task={"name": "phones", "folds": "speaker", "num_folds": 8}, number=1, numbers=(1, 2, 4)
    ),
    "speakers, 2 s of each": Row(**SPEAKERS, number=2),
    "speakers, 5 s of each": Row(**SPEAKERS, number=5),
    "activities, 1 person": Row(
        **PEOPLE,
        recipe=ACTIVITY,
        task={"name": "activity", "folds": "group"},
        options={"window_seconds": 2.56, "hop_seconds": 1.28},
        numbers=(1, 2, 4, 8, 16),
    ),
    "exercises, 1 person": Row(
        **PEOPLE,
        recipe=WATCH,
        task={"name": "label", "folds": "group"},
        options={"window_seconds": 4.0, "hop_seconds": 2.0},
        numbers=(1, 2, 4, 8),
    ),
    "ECG waves, 5 people": Row(
        recipe=ECG,
        task={"name": "label", "test_split": "test"},
        draw=partial(from_people, column="group"),
        number=5,
        feature="c",
        figure="macro_f1_percent",
        numbers=(1, 2, 5, 15, 30),
    ),
    "photographs, 5 of a class": Row(
        **PICTURES,
        recipe=PHOTOS,
        number=5,
        feature="z_grid",
        probed=sources.photographs_of_other_classes,
        numbers=(1, 2, 5, 10, 20),
    ),
    "photographs, 20 of a class": Row(
        **PICTURES, recipe=PHOTOS, number=20, feature="z_grid", probed=sources.photographs_of_other_classes
    ),
    "CIFAR-10, 5 of a class": Row(**PICTURES, recipe=CIFAR, number=5, feature="c_grid", numbers=(5, 20, 100, 500)),
    "CIFAR-10, 20 of a class": Row(**PICTURES, recipe=CIFAR, number=20, feature="c_grid"),
    "MNIST, 10 of a class": Row(**PICTURES, recipe=MNIST, number=10, feature="z_grid", numbers=(1, 3, 10, 30, 100)),
}

PEOPLE_ROWS = [name for name, row in ROWS.items() if row.draw not in (from_classes, from_sentences)]


def trained(row: Row, seed: int, where: argparse.Namespace) -> str | Path:
    """Return the run folder of a row and a seed, pretrained; the first seed is the shipped model, if there is one."""
    recipe = row.recipe
    if seed == 0 and recipe.figures:
        return next(name for name, each in RECIPES.items() if each is recipe)
    folder: Path = where.out / f"{recipe.data_name.split(',')[0].replace(' ', '_')}_{seed}"
    config, source = CONFIGS / recipe.config, recipe.source(where.data, where.out / "corpora")
    extra = [*recipe.options, f"--seed_everything={seed}", f"--data.seed={seed}"]
    keep_options(folder, config, extra)
    train(folder, ["--config", str(config), f"--data.{recipe.source_option}={source}", *extra])
    return folder


def measure(row: Row, folder: str | Path, number: int, seed: int, where: argparse.Namespace) -> dict[str, Any]:
    """Return the results of all columns by their names in a report, for the run of one seed.

    Networks are only stopped with the number of labels of the table, not with those of curves.
    """
    model, config = load_pretrained(folder), read_config(folder)
    source = (row.probed or row.recipe.source)(where.data, where.out / "corpora")
    options = dict(row.options)
    if row.task["name"] == "phones":
        options["alignments"] = where.data / "timit_dev"
    split = None if "folds" in row.task else "train"
    extraction = Extraction(progress=False)
    data = open_probe_data(config, model, source, extraction, split, data_options=options)
    if row.feature.endswith("_grid"):
        data.supervised_feature = "z_grid"
    whole = Task(probe_data=data, **row.task)
    task = whole.drawn(row.draw(whole, number, range(seed * where.draws, (seed + 1) * where.draws)))
    networks: dict[str, Any] = {**(data.supervised or {}), "seconds": None, "num_epochs": None, "seed": seed}
    networks |= {"num_steps": row.num_steps, "augment": True}
    data.prepare()
    features, found = [row.feature, *filter(None, [row.hand])], dict[str, Any]()
    for held_out_share, words in WAYS if number == row.number else WAYS[:1]:
        comparison = Comparison(
            data,
            features=[] if words else features,
            baselines=["supervised", "fine_tuned", *["random"] * (not words)],
            supervised=SupervisedProtocol(**networks, held_out_share=held_out_share),
            extraction=extraction,
            reading=Reading("speaker" if where.normalise else None),
        )
        comparison.check(task)
        comparison.measure([task], model, lambda random: build_untrained(config, data, ("cpc",), 100 * seed + random))
        found |= {f"{name}{words}": each for name, each in comparison.results[task.name].items()}
    return {name: asdict(result) | {"confusion": None} for name, result in found.items()}


def kept(name: str, number: int, seed: int, where: argparse.Namespace) -> dict[str, Any]:
    """Return the results of a row, or those that an earlier call found."""
    row, normalised = ROWS[name], ", normalised" * where.normalise
    folder = trained(row, seed, where)  # also refuses a folder of other options
    report = where.out / f"{name}, {row.feature}, {number}, seed {seed}{normalised}.json"
    if not report.exists():
        report.write_text(json.dumps(measure(row, folder, number, seed, where)))
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def by_column(row: Row, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of one seed by the columns of the table."""
    prefixes = {"random": "untrained", "cpc": "CPC"}
    found = {
        column: next(each for name, each in results.items() if name.startswith(p)) for p, column in prefixes.items()
    }
    names = {"supervised": "labels only", "fine_tuned": "fine-tuned"}
    networks = {f"{name}{words}": f"{column}{words}" for name, column in names.items() for _, words in WAYS}
    found |= {column: results[name] for name, column in networks.items() if name in results}
    return found if row.hand is None else {"hand-made": results[row.hand]} | found


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a Markdown table: means over seeds and draws, the smallest and largest over seeds in brackets."""
    lines = [f"| labels | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, seeds in found.items():
        cells = dict.fromkeys(COLUMNS, "")
        results = [by_column(ROWS[name], each) for each in seeds]
        for column in results[0]:
            values = [each[column][ROWS[name].figure] for each in results]
            spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
            cells[column] = f"{np.mean(values):.1f}{spread}"
        lines.append(f"| {name} | {' | '.join(cells.values())} |")
    return "\n".join(lines)


def curve(name: str, where: argparse.Namespace) -> dict[str, list[float]]:
    """Return the figures of a row by column, for each of its numbers of labels: the first seed, with whole budgets."""
    row = ROWS[name]
    results = [by_column(row, kept(name, number, 0, where)) for number in row.numbers]
    columns = [column for column in COLUMNS if column in results[0] and not column.endswith(STOPPED)]
    return {column: [each[column][row.figure] for each in results] for column in columns}


def draw_curves(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Any:
    """Return a figure with a panel for each row: its columns by the number of labels."""
    from matplotlib.figure import Figure

    colours = {column: f"C{index}" for index, column in enumerate(c for c in COLUMNS if not c.endswith(STOPPED))}
    figure, drawn = Figure(figsize=(4.0 * len(found), 4.0), layout="constrained"), dict[str, Any]()
    for index, (name, columns) in enumerate(found.items(), start=1):
        row, axes = ROWS[name], figure.add_subplot(1, len(found), index)
        for column, values in columns.items():
            (drawn[column],) = axes.plot(row.numbers, values, "o-", color=colours[column])
        axes.set(
            title=name.split(",")[0], xscale="log", xlabel=f"labels: {row.unit}", ylabel=row.figure.replace("_", " ")
        )
        axes.set_xticks(row.numbers, map(str, row.numbers))
        axes.minorticks_off()
    named = [column for column in colours if column in drawn]
    figure.legend([drawn[column] for column in named], named, loc="outside upper center", ncols=len(named))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/few_labels"))
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="ROW")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--normalise", action="store_true", help="take out each person's mean and deviation")
    parser.add_argument("--curves", type=Path, help="draw figures by the number of labels")
    where = parser.parse_args()
    where.only = where.only or (PEOPLE_ROWS if where.normalise else list(ROWS))
    if where.normalise and (others := set(where.only) - set(PEOPLE_ROWS)):
        parser.error(f"--normalise {min(others)!r}: it is legal for {', '.join(map(repr, PEOPLE_ROWS))}")
    if where.curves and not any(ROWS[name].numbers for name in where.only):
        parser.error(f"--curves: none of {', '.join(map(repr, where.only))} has several numbers of labels")
    where.data = where.data.resolve()
    keep_freed_memory()
    prepare_processor()
    found = {}
    for name in where.only:
        found[name] = [kept(name, ROWS[name].number, seed, where) for seed in range(where.seeds)]
        print(table({name: found[name]}).splitlines()[-1], flush=True)
    print(table(found))
    if where.curves is None:
        return
    curves = {name: curve(name, where) for name in where.only if ROWS[name].numbers}
    for name, columns in curves.items():
        print(f"\n| {name.split(',')[0]}, labels: {ROWS[name].unit} | {' | '.join(map(str, ROWS[name].numbers))} |")
        print(f"|---|{'---|' * len(ROWS[name].numbers)}")
        for column, values in columns.items():
            print(f"| {column} | {' | '.join(f'{value:.1f}' for value in values)} |")
    draw_curves(curves).savefig(where.curves)


if __name__ == "__main__":
    main()
