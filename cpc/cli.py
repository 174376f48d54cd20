"""The command line: `cpc COMMAND ...`. Nothing heavy is imported before a command needs it."""

import argparse
import inspect
import io
import re
import sys
from collections import Counter
from pathlib import Path

from cpc import __version__
from cpc.allocator import keep_freed_memory
from cpc.quickstart import RECIPES

STRATEGY_NAMES = ("mixed", "same_speaker", "mixed_excluding", "same_speaker_excluding", "sequence_only")
ESTIMATOR_NAMES = ("info_nce", "nwj", "tuba", "interpolated", "dv", "mine", "js", "smile", "leave_one_out")
READABLE_NAMES = tuple(name for name in ESTIMATOR_NAMES if name not in ("mine", "leave_one_out"))
GAUSSIAN_TASK_NAMES = ("gaussian", "cubic", "half_cube", "spiral", "vector_ar1")
TASK_NAMES = (*GAUSSIAN_TASK_NAMES, "student", "student_asinh", "uniform", "discrete")
CRITIC_NAMES = ("exact", "separable", "concatenated", "bilinear")


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake ends with a message and exit status 2, not with a traceback.

    The library's messages mark the arguments that they speak of, as `skip_bad`: here they become what the user types.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file need not be UTF-8
    keep_freed_memory()
    typed: dict[str, str] = {}
    try:
        if arguments[:1] == ["pretrain"]:
            _pretrain(arguments[1:], typed)
        else:
            options = _parser().parse_args(arguments)
            typed |= {name: f"--{name}" for name in vars(options)}
            options.run(options)
    except (ValueError, OSError, FloatingPointError) as error:
        message = re.sub(r"`(\w+)`", lambda marked: typed.get(marked[1], marked[0]), str(error))
        print(f"cpc: error: {message}", file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        print("cpc: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _pretrain(arguments: list[str], typed: dict[str, str]) -> None:
    from cpc.pretraining.command import DATA, pretrain
    from cpc.processor import prepare_processor

    prepare_processor()
    typed |= {name: f"--data.{name}" for data in DATA.values() for name in inspect.signature(data).parameters}
    pretrain(arguments)


def _quickstart(options: argparse.Namespace) -> None:
    from cpc.processor import prepare_processor

    prepare_processor()
    from cpc.quickstart.engine import quickstart

    entry = RECIPES[options.modality]
    out, corpus = options.out or entry.out, options.corpus or entry.corpus
    quickstart(entry.load(), out, corpus, seed=options.seed, steps=options.steps)


def _evaluate(options: argparse.Namespace) -> None:
    from cpc.evaluation import evaluate
    from cpc.processor import prepare_processor

    prepare_processor()
    evaluate(
        options.model,
        options.data,
        strategies=options.negatives,
        nums_negatives=options.num_negatives,
        estimators=options.estimators,
        split=options.split,
        num_batches=options.num_batches,
        bank=options.bank,
        bank_latents=options.bank_latents,
        batch_size=options.batch_size,
        window_samples=options.window_samples,
        sampler=options.sampler,
        speakers_per_batch=options.speakers_per_batch,
        image_size=options.image_size,
        load_size=options.load_size,
        chunk_tokens=options.chunk_tokens,
        seed=options.seed,
        cache_dir=options.cache_dir,
        skip_bad=options.skip_bad,
        out=options.out,
    )


def _probe(options: argparse.Namespace) -> None:
    from cpc.probes.report import probe
    from cpc.processor import prepare_processor

    prepare_processor()
    probe(options.model, **{name: value for name, value in vars(options).items() if name not in ("run", "model")})


def _embed(options: argparse.Namespace) -> None:
    from cpc.probes.embed import embed
    from cpc.processor import prepare_processor

    prepare_processor()
    written = embed(
        options.model, **{name: value for name, value in vars(options).items() if name not in ("run", "model")}
    )
    print(f"{len(written)} files written to {options.out}")


def _picture(options: argparse.Namespace) -> None:
    from cpc.probes.images.pictures import write_pictures
    from cpc.processor import prepare_processor

    prepare_processor()
    written = write_pictures(
        options.model,
        options.data,
        options.out,
        split=options.split,
        among=options.among,
        num_images=options.num_images,
        seed=options.seed,
        cache_dir=options.cache_dir,
        skip_bad=options.skip_bad,
    )
    print("\n".join(f"{path} written" for path in written))


def _monitor(options: argparse.Namespace) -> None:
    from cpc.monitor.command import monitor

    monitor(options.runs, host=options.host, port=options.port, export=options.export, prometheus=options.prometheus)


def _index(options: argparse.Namespace) -> None:
    from cpc.data.audio.index import index_folder

    manifest = index_folder(
        options.folder,
        options.out,
        speaker_level=options.speaker_level,
        speaker_pattern=options.speaker_pattern,
        split_level=options.split_level,
        valid_share=options.valid_share,
        test_share=options.test_share,
        split_by=options.split_by,
        seed=options.seed,
        skip_bad=options.skip_bad,
        overwrite=options.overwrite,
    )
    splits = Counter(manifest.columns.get("split", []))
    counts = ", ".join(f"{name} {count}" for name, count in splits.items()) or "no splits"
    print(f"{len(manifest)} files indexed ({counts})")


def _pack(options: argparse.Namespace) -> None:
    from cpc.data.audio.manifest import read_manifest
    from cpc.data.audio.pack import pack

    packed = pack(read_manifest(options.data), options.sample_rate_hz, options.cache_dir, skip_bad=options.skip_bad)
    seconds = int(packed.num_samples.sum()) / packed.sample_rate_hz
    print(f"{packed.num_files} files, {seconds / 3600:.2f} h at {packed.sample_rate_hz} Hz in {packed.folder}")


def _synthesize(options: argparse.Namespace) -> None:
    from cpc.data.made.speech import synthesize

    synthesize(
        options.folder,
        num_speakers=options.num_speakers,
        minutes=options.minutes,
        num_heldout_speakers=options.num_heldout_speakers,
        seed=options.seed,
    )


def _calibrate(options: argparse.Namespace) -> None:
    from cpc.calibration.calibrate import calibrate
    from cpc.processor import prepare_processor

    prepare_processor()
    calibrate(
        options.out,
        tasks=options.tasks,
        estimators=options.estimators,
        critics=options.critics,
        informations_nats=options.mi,
        dims=options.dim,
        nums_candidates=options.num_candidates,
        num_steps=options.steps,
        num_matrices=options.num_matrices,
        seed=options.seed,
    )


def _doctor(options: argparse.Namespace) -> None:
    from cpc import doctor

    doctor.main()


def _number_or_all(text: str) -> int | None:
    return None if text == "all" else int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("cpc", description="Contrastive Predictive Coding.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"cpc {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(
        name: str, run: object, text: str, within: argparse._SubParsersAction = commands
    ) -> argparse.ArgumentParser:
        added = within.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    def computed_where(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--device", default="cpu", help="where networks run: cpu, cuda, cuda:1")
        parser.add_argument(
            "--precision",
            choices=("float32", "bfloat16"),
            default="float32",
            help="of the encoder's products; bfloat16 is faster on many processors that have it, slower on some",
        )

    quickstart = command(
        "quickstart",
        _quickstart,
        "pretrain on a corpus that needs no download, measure the bound, probe; ten minutes, of text one",
    )
    learnt = "; ".join(f"{modality}: {entry.words}" for modality, entry in RECIPES.items())
    quickstart.add_argument("--modality", choices=tuple(RECIPES), default="audio", help=learnt)
    for option, text in (("out", "a new folder for runs and report"), ("corpus", "made if it is not there")):
        defaults = ", ".join(f"{modality}: {getattr(entry, option)}" for modality, entry in RECIPES.items())
        quickstart.add_argument(f"--{option}", type=Path, help=f"{text}; if not given, {defaults}")
    quickstart.add_argument("--steps", type=int, help="optimiser steps; by this machine's speed if not given")
    quickstart.add_argument("--seed", type=int, default=0, help="of model and batches; another seed, another corpus")

    command("pretrain", None, "train a model from a config: see `cpc pretrain --help`")

    evaluate = command("evaluate", _evaluate, "measure the held-out bound log N - L of a model")
    evaluate.add_argument("model", type=Path, help="a model folder, or a run folder that holds one")
    evaluate.add_argument(
        "--data",
        required=True,
        help="manifest CSV, or the folder that holds it; for images a folder, npz or NAME:ROOT; for text a file, a "
        "folder or 'embedded'",
    )
    evaluate.add_argument(
        "--negatives",
        nargs="+",
        choices=STRATEGY_NAMES,
        help="strategies; the model's and mixed_excluding if not given",
    )
    evaluate.add_argument(
        "--num_negatives",
        nargs="+",
        type=_number_or_all,
        metavar="R",
        help="negatives drawn per row, N = R + 1, or all; several are evaluated one by one; the model's if not given",
    )
    evaluate.add_argument(
        "--estimators",
        nargs="+",
        choices=READABLE_NAMES,
        default=("info_nce",),
        help="further readings beside log N - L, which is always measured",
    )
    evaluate.add_argument(
        "--num_batches", type=int, help="batches, one pass over the split at most; 64 if not given; text is read whole"
    )
    evaluate.add_argument(
        "--bank", metavar="SPLIT", help="measure also against latents of this split, all at once: a far higher ceiling"
    )
    evaluate.add_argument("--bank_latents", type=int, help="how many of them, at most; 1,000,000 if not given")
    as_the_run = "; as in the model's run if not given"
    evaluate.add_argument(
        "--split", help="value of the manifest's split column; of text also all, every line" + as_the_run
    )
    evaluate.add_argument("--batch_size", type=int, help="windows per batch" + as_the_run)
    evaluate.add_argument("--window_samples", type=int, help="length of a window" + as_the_run)
    evaluate.add_argument(
        "--sampler", choices=("uniform", "same_speaker"), help="of the model's own strategy's batches" + as_the_run
    )
    evaluate.add_argument("--speakers_per_batch", type=int, help="of same-speaker batches" + as_the_run)
    evaluate.add_argument("--image_size", type=int, help="images: side of the square cut out" + as_the_run)
    evaluate.add_argument("--load_size", type=int, help="images: side they are brought to before" + as_the_run)
    evaluate.add_argument("--chunk_tokens", type=int, help="text: of each lane in a batch" + as_the_run)
    evaluate.add_argument("--cache_dir", type=Path, help="where packed data go; beside the source if not given")
    evaluate.add_argument("--skip_bad", action="store_true", help="go on without files that cannot be used")
    evaluate.add_argument("--seed", type=int, help="of batches and draws; 0 if not given")
    evaluate.add_argument("--out", type=Path, help="JSON file; bound.json in the model's folder if not given")

    probe = command("probe", _probe, "judge features with linear probes, beside baselines and the bound")
    probe.add_argument("model", type=Path, help="a model folder, or a run folder that holds one")
    probe.add_argument(
        "--data", required=True, help="manifest CSV, or the folder that holds it; for images a folder, npz or NAME:ROOT"
    )
    probe.add_argument(
        "--task", nargs="+", required=True, help="phones, speaker, or label columns of the manifest; class for images"
    )
    probe.add_argument(
        "--features",
        nargs="+",
        choices=("c", "z", "z_grid", "c_grid", "mfcc", "logmel", "pixels", "hog"),
        help="what to probe; if not given, c z mfcc, and for images z z_grid c (means over the grid, or all of it)",
    )
    probe.add_argument(
        "--baselines",
        nargs="*",
        choices=("majority", "random", "supervised", "fine_tuned", "neighbours", "pixels", "hog", "mfcc", "logmel"),
        help="none with an empty list; if not given, majority random supervised, and for images pixels too",
    )
    probe.add_argument(
        "--label_shares",
        nargs="+",
        type=float,
        help="also a curve over these shares of the labels, such as 0.01 0.02 0.05 0.1 0.2 0.5 1; not of frames",
    )
    probe.add_argument("--alignments", type=Path, help="for phones; alignments.csv beside the manifest if not given")
    probe.add_argument("--pool", choices=("frames", "mean"), help="every frame, or a file's mean; by task if not given")
    probe.add_argument("--hidden", type=int, choices=(0, 1), default=0, help="hidden layers: 0 is the linear probe")
    probe.add_argument("--hidden_dim", type=int, help="width of the hidden layer of --hidden 1; 512 if not given")
    probe.add_argument("--num_seeds", type=int, default=3, help="probes trained for each result")
    probe.add_argument("--train_split", default="train", help="where probes are trained")
    probe.add_argument("--test_split", help="where they are tested; valid for speaker, else test, if not given")
    probe.add_argument("--train_minutes", type=float, help="train on that much audio of the split, drawn at random")
    probe.add_argument(
        "--supervised_seconds", type=float, default=75.0, help="budget of the supervised baseline, per task"
    )
    computed_where(probe)
    probe.add_argument("--skip_bad", action="store_true", help="leave out files that cannot be used, and count them")
    probe.add_argument("--cache_dir", type=Path, help="of packed audio; .cpc_cache beside the manifest if not given")
    probe.add_argument(
        "--max_ram_gb",
        type=float,
        default=2.0,
        help="features that take more at a time go to temporary files",
    )
    probe.add_argument("--scratch_dir", type=Path, help="folder of these files; the system's if not given")
    probe.add_argument(
        "--dtype", choices=("float32", "float16"), help="of features kept; float32, and float16 of grids, if not given"
    )
    probe.add_argument("--out", type=Path, help="JSON file; probe.json in the model's folder if not given")

    embed = command("embed", _embed, "write features of audio or image files, and where they lie")
    embed.add_argument("model", type=Path, help="a model folder, or a run folder that holds one")
    embed.add_argument("paths", nargs="+", type=Path, help="files or folders of what the model encodes")
    embed.add_argument("--out", type=Path, required=True, help="folder for the features")
    embed.add_argument("--features", choices=("c", "z"), default="c", help="contexts or latents")
    embed.add_argument("--format", choices=("npy", "safetensors"), default="npy", help="file format")
    computed_where(embed)
    embed.add_argument("--skip_bad", action="store_true", help="leave out files that cannot be used, and count them")
    embed.add_argument("--overwrite", action="store_true", help="replace features that are there already")

    picture = command("picture", _picture, "draw an image model's patches, their neighbours in z and a map of contexts")
    picture.add_argument("model", type=Path, help="a model folder, or a run folder that holds one")
    picture.add_argument("--data", required=True, help="a folder of images, npz or NAME:ROOT")
    picture.add_argument("--out", type=Path, required=True, help="folder for patches.png, neighbours.png and map.png")
    picture.add_argument("--split", default="test", help="whose images are shown")
    picture.add_argument("--among", default="train", help="split where the neighbours of their patches are looked for")
    picture.add_argument("--num_images", type=int, default=300, help="of each split, at most, drawn at random")
    picture.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    picture.add_argument("--cache_dir", type=Path, help="where packed images go; beside the images if not given")
    picture.add_argument("--skip_bad", action="store_true", help="go on without files that cannot be used")

    monitor = command("monitor", _monitor, "serve a local page that watches runs while they train")
    monitor.add_argument("runs", nargs="+", type=Path, help="run folders, or folders below which runs lie")
    monitor.add_argument("--port", type=int, default=8050, help="0: any that is free")
    monitor.add_argument(
        "--host", default="127.0.0.1", help="address to serve at; beyond this machine (0.0.0.0) a token is asked for"
    )
    monitor.add_argument("--export", type=Path, help="write the charts into this HTML file instead of serving them")
    monitor.add_argument("--prometheus", action="store_true", help="serve the latest values at /metrics as well")

    data = command("data", None, "index, pack or synthesise a corpus").add_subparsers(metavar="ACTION", required=True)
    index = command("index", _index, "write a folder's manifest.csv; an interrupted run goes on", data)
    index.add_argument("folder", type=Path, help="a folder of audio")
    index.add_argument("--out", type=Path, help="the CSV; manifest.csv in the folder if not given")
    index.add_argument("--speaker_level", type=int, help="folder level that names the speaker, 0 the topmost")
    index.add_argument("--speaker_pattern", help="regular expression on the path; named groups become columns")
    index.add_argument("--split_level", type=int, help="folder level that names the split, instead of drawing it")
    drawn = "share of the files drawn for split %s; 0.1 unless folders or the pattern name the split"
    index.add_argument("--valid_share", type=float, help=drawn % "valid")
    index.add_argument("--test_share", type=float, help=drawn % "test")
    index.add_argument(
        "--split_by", choices=("file", "speaker"), default="file", help="speaker: held-out splits have their own"
    )
    index.add_argument("--seed", type=int, default=0, help="of the drawn splits")
    index.add_argument("--overwrite", action="store_true", help="replace a manifest that is there already")
    index.add_argument("--skip_bad", action="store_true", help="leave out files that cannot be read, and count them")
    pack = command("pack", _pack, "decode a corpus once into an int16 memory map, as training does by itself", data)
    pack.add_argument("data", type=Path, help="manifest CSV, or the folder that holds it")
    pack.add_argument("--sample_rate_hz", type=int, default=16000, help="rate to resample to")
    pack.add_argument("--cache_dir", "--out", type=Path, help="folder; .cpc_cache beside the manifest if not given")
    pack.add_argument("--skip_bad", action="store_true", help="leave out files that cannot be used, and count them")
    synthesize = command(
        "synthesize", _synthesize, "make a speech corpus with exact phone alignments (espeak-ng)", data
    )
    synthesize.add_argument("folder", type=Path, help="where the corpus goes")
    synthesize.add_argument("--num_speakers", type=int, default=48, help="voices in all")
    synthesize.add_argument("--num_heldout_speakers", type=int, default=8, help="voices of the test split alone")
    synthesize.add_argument("--minutes", type=float, default=60.0, help="speech in all")
    synthesize.add_argument("--seed", type=int, default=0, help="of voices, sentences, noise and levels")

    calibrate = command(
        "calibrate", _calibrate, "measure estimators of information against truths in closed form; ten minutes"
    )
    calibrate.add_argument("--tasks", nargs="+", choices=TASK_NAMES, default=TASK_NAMES, help="pairs (x, y)")
    calibrate.add_argument(
        "--estimators", nargs="+", choices=ESTIMATOR_NAMES, default=ESTIMATOR_NAMES, help="what reads the scores"
    )
    calibrate.add_argument(
        "--critics",
        nargs="+",
        choices=CRITIC_NAMES,
        default=("exact", "separable"),
        help="what scores the pairs: the exact log density ratio, or small networks that are trained",
    )
    calibrate.add_argument(
        "--mi", nargs="+", type=float, default=(2.0, 4.0, 6.0, 8.0, 10.0), help="true informations in nats"
    )
    calibrate.add_argument("--dim", nargs="+", type=int, default=(20,), help="dimensions (letters of the channel)")
    calibrate.add_argument("--num_candidates", nargs="+", type=int, default=(129,), help="N, pairs of a matrix")
    calibrate.add_argument("--steps", type=int, default=300, help="of training, at each information")
    calibrate.add_argument("--num_matrices", type=int, default=100, help="for each bias and variance")
    calibrate.add_argument("--seed", type=int, default=0, help="of pairs and weights")
    calibrate.add_argument("--out", type=Path, default=Path("runs/calibration"), help="folder for JSON and HTML")

    command("doctor", _doctor, "say which parts of this installation work")
    return parser


if __name__ == "__main__":
    main()
