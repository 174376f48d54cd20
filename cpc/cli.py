"""The command line `cpc COMMAND ...`, which imports a command's module when the command runs."""

import argparse
import io
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from cpc import __version__
from cpc.native.allocator import keep_freed_memory

# The function of each command, and its description. A module may define `describe_result(result, options)`: its text is
# printed after the command.
COMMANDS = {
    "quickstart": ("cpc.quickstart:quickstart", "pretrain without a download, measure the bound, probe; ten minutes"),
    "pretrain": ("cpc.pretraining.command:run_pretraining", "train a model from a config: see `cpc pretrain --help`"),
    "ray": ("cpc.on_ray.launch:launch", "start the ranks of a pretraining in a Ray cluster, as torchrun would"),
    "evaluate": ("cpc.evaluation:evaluate", "measure the held-out bound log N - L of a model"),
    "probe": ("cpc.probes.report:probe", "measure features with linear probes, together with baselines and the bound"),
    "abx": ("cpc.probes.abx.command:abx", "measure how often features confuse two phones, within and across speakers"),
    "embed": ("cpc.probes.embed:embed", "write features of audio or image files, with their positions in the input"),
    "export": ("cpc.interop.export:export", "write a model as ONNX graphs, and check them"),
    "import": ("cpc.interop.cpc_audio:import_checkpoint", "convert a checkpoint of CPC_audio to a model"),
    "models": ("cpc.pretrained:models", "list the small models that ship with cpc, or print the card of one"),
    "share": ("cpc.interop.share:share", "write a model with a card, for the Hugging Face Hub, and upload it"),
    "monitor": ("cpc.monitor.command:monitor", "serve a local page that watches runs while they train"),
    "data": ("", "index, pack, shard, download, list items of, synthesise or record a corpus"),
    "data index": ("cpc.data.audio.index:index_folder", "write a folder's manifest.csv"),
    "data pack": ("cpc.data.sharding:pack_corpus", "decode a corpus once, before training does"),
    "data shard": ("cpc.data.sharding:shard_corpus", "write a corpus as shards, to be read from a folder or URL"),
    "data items": ("cpc.data.audio.items:write_items", "write the items of an ABX test, from a corpus' alignments"),
    "data download": ("cpc.interop.hub_datasets:download_dataset", "write a Hugging Face dataset as audio or images"),
    "data record": ("cpc.data.frames.record:record", "play episodes of an environment and record them"),
    "data synthesize": ("cpc.data.synthetic.speech:synthesize", "make speech with exact phone alignments (espeak-ng)"),
    "agent": ("cpc.agents.comparison:train_agents", "train agents with and without the CPC loss, compare returns"),
    "calibrate": ("cpc.bounds.calibration.calibrate:calibrate", "compare estimators with known information"),
    "doctor": ("cpc.native.doctor:main", "check which parts of this installation work"),
}


def main(arguments: list[str] | None = None) -> None:
    """Run a command. A user's mistake ends with a message and exit status 2, without a traceback.

    The library's messages mark arguments with backticks, as in `skip_bad`; here they become command-line options.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be UTF-8
    keep_freed_memory()
    typed: dict[str, str] = {}
    num_words = 2 if arguments[:1] == ["data"] else 1
    name = " ".join(arguments[:num_words])

    def in_options(message: str) -> str:
        return re.sub(r"`([\w.]+)`", lambda marked: _option(name, marked[1], typed) or marked[0], message)

    warnings.formatwarning = partial(_format_warning, in_options)
    try:
        if not COMMANDS.get(name, ("",))[0]:
            _overview().parse_args(arguments)
        elif name == "pretrain":
            from cpc.native.processor import prepare_processor
            from cpc.pretraining.command import run_pretraining

            prepare_processor()
            run_pretraining(arguments[1:])
        else:
            _run(name, arguments[num_words:], typed)
    except (ValueError, OSError, FloatingPointError) as error:
        message = _deny_absent_options(in_options(_message(error)), name)
        print(f"cpc: error: {message}", file=sys.stderr)
        _report_to_torchrun(message)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        print("cpc: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _option(command: str, argument: str, typed: dict[str, str]) -> str | None:
    """Return the option for an argument such as `seed` or `loss.negatives`; None if the command has none."""
    if command == "pretrain":
        from cpc.pretraining.command import typed_option

        return typed_option(argument)
    return typed.get(argument) or typed.get(argument.rpartition(".")[2])


def _message(error: Exception) -> str:
    """Return the text of an error; for an error of the operating system, its file and reason, without its number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _deny_absent_options(message: str, command: str) -> str:
    """Add which settings of data in a message are no options of the command, since the model or the source fixes them.

    Names that are options have lost their backticks.
    """
    modality = sys.modules.get("cpc.data.modality")
    kinds = [] if modality is None else [modality.Modality]
    for kind in kinds:
        kinds += kind.__subclasses__()
    settings = {name for kind in kinds for name in kind.__dataclass_fields__}
    absent = dict.fromkeys(marked for marked in re.findall(r"`\w+`", message) if marked.strip("`") in settings)
    return f"{message}; but cpc {command} has no option for {' and '.join(absent)}" if absent else message


def _report_to_torchrun(message: str) -> None:
    """Write the message to torchrun's error file, so that torchrun's report ends with the message.

    The format is that of `torch.distributed.elastic.multiprocessing.errors`, whose `record` would write a traceback.
    """
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):  # stderr has the message in any case
            from cpc.data.store.atomic import json_text

            Path(file).write_text(json_text({"message": f"cpc: error: {message}", "timestamp": int(time.time())}))


def _format_warning(
    in_options: Callable[[str], str], message: Any, category: type[Warning], filename: str, lineno: int, *_: Any
) -> str:
    """Format a warning; warnings of cpc come without their line of code."""
    if Path(filename).is_relative_to(Path(__file__).parent):
        return f"cpc: warning: {in_options(str(message))}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _overview() -> argparse.ArgumentParser:
    """Return a parser of all commands, without their options."""
    parser = argparse.ArgumentParser("cpc", description="Contrastive Predictive Coding.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"cpc {__version__}")
    groups = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for name, (function, description) in COMMANDS.items():
        group, _, last = name.rpartition(" ")
        command = groups[group].add_parser(last, help=description)
        if not function:
            groups[name] = command.add_subparsers(metavar="ACTION", required=True)
    return parser


def _run(name: str, arguments: list[str], typed: dict[str, str]) -> None:
    from cpc.config.options import Options

    path, description = COMMANDS[name]
    module_name, _, function_name = path.partition(":")
    module = import_module(module_name)
    function = getattr(module, function_name)
    options = Options(function, f"cpc {name}", f"{description[0].upper()}{description[1:]}.")
    typed |= options.typed
    note = _add_data_options(options, name, arguments) if options.takes_more else ""
    typed |= options.typed
    values = options.parse(arguments, note)
    if "torch" in sys.modules or name == "quickstart":
        from cpc.native.processor import prepare_processor

        prepare_processor()
    from cpc.pages.report import Report

    result = function(**values)
    if isinstance(result, Report):
        print(f"{result}\nwritten to {result.path}")
    elif describe_result := getattr(module, "describe_result", None):
        print(describe_result(result, values))


def _add_data_options(options: Any, command: str, arguments: list[str]) -> str:
    """Find the model in the arguments, add the options of its data, and return a note for unknown options."""
    parsed, rest = options.parse_alone(arguments)
    values = [argument for argument in rest if argument.strip() and not argument.startswith("-")]
    if not values:
        options.parser.epilog = "Further options depend on the model's data: name the model before --help to see them."
        return ""
    models = [value for value in values if any((Path(value) / name).exists() for name in ("config.json", "model"))]
    from cpc.checkpoint import is_named, read_config
    from cpc.evaluation import data_class

    model = next(iter(models or filter(is_named, values)), values[0])
    modality = data_class(read_config(model), tuple(getattr(parsed, "trusted_packages", ("cpc",))))
    if command == "probe":
        options.add_fields(modality, modality.probe_options)
    else:
        options.add_fields(modality, modality.held_out_options, "; as in the model's run if not given")
    return f"; {model} is a model of {modality.name}, whose data have no such option"


if __name__ == "__main__":
    main()
