"""Options of all commands: which numbers, texts and paths are refused, and with which name in the message."""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import pytest
from refusals import refuses

from cpc import CPC, save_pretrained
from cpc.cli import COMMANDS
from cpc.config.argument_rules import Count, Dropout, checked
from cpc.config.options import READERS, Options
from cpc.contexts import GRU
from cpc.data import Audio, Frames, Images, Sentences, Text
from cpc.encoders import AudioEncoder
from cpc.predictors import Bilinear
from cpc.pretraining.command import typed_option

DATA = (Audio, Images, Text, Sentences, Frames)
# Options whose number has no least value, or may be zero. All others are refused zero and -1.
MAY_BE_NEGATIVE = {"speaker_level", "split_level", "threshold"}
OTHERS = ("seed", "port", "valid_share", "test_share", "gpus_per_rank", "max_ram_gb", "cpc_weights", "frames_around")
MAY_BE_ZERO = {*MAY_BE_NEGATIVE, *OTHERS}


def options_of(name: str) -> Options:
    module, _, function = COMMANDS[name][0].partition(":")
    options = Options(getattr(import_module(module), function), f"cpc {name}")
    if options.takes_more:
        options.add_fields(Audio, Audio.probe_options if name == "probe" else Audio.held_out_options)
    return options


def all_options() -> list[Any]:
    """(command, option, all arguments that the command needs) of every option of every command but pretrain."""
    found = []
    for name, (place, _) in COMMANDS.items():
        if place and name not in ("pretrain", "doctor"):
            actions = [each for each in options_of(name).parser._actions if each.dest != "help"]
            needed = [each for each in actions if each.required or not each.option_strings]
            needed.sort(key=lambda each: not each.option_strings)  # after COMMAND all is the other command's
            found += [pytest.param((name, each, needed), id=f"{name} {each.dest}") for each in actions]
    return found


def those(is_meant: Callable[[str, argparse.Action], bool]) -> list[Any]:
    return [each for each in ALL if is_meant(*each.values[0][:2])]


ALL = all_options()
NUMBERS = those(lambda _, action: str(action.metavar).startswith(("INT", "FLOAT")))
TEXTS = those(lambda _, action: action.type in (READERS[str], READERS[Path]) and action.choices is None)
RANGES = [each for each in NUMBERS if each.values[0][1].dest not in MAY_BE_NEGATIVE]
# `synthesize` takes a corpus that is there as it is, and writes a new one from the start.
PLACES = those(lambda name, action: action.dest in ("out", "export", "folder") and name != "data synthesize")
DEVICES = those(lambda _, action: action.dest == "device")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options") / "model"
    made = CPC(AudioEncoder(4, kernels=(2,), strides=(2,), paddings=(0,)), GRU(dim=4), Bilinear(num_steps=1))
    data = {"class_path": "cpc.data.Audio", "init_args": {"manifest": "unknown"}}
    save_pretrained(made, folder, provenance={"data": data})
    return folder


@pytest.fixture
def refused(model: Path, refusal: Callable[..., str]) -> Callable[..., str]:
    """Runs a command with a value of an option, which must end it, and returns what it prints on stderr."""

    def refused(option: tuple[str, argparse.Action, list[argparse.Action]], value: str) -> str:
        name, action, needed = option
        places = {"model_folder": str(model)}
        words = [f"{action.option_strings[0]}={value}"] if action.option_strings else []
        for each in needed:
            if each.option_strings:
                words += [] if each is action else [f"{each.option_strings[0]}=1"]
            else:
                words.append(value if each is action else places.get(str(each.metavar), "x"))
        return refusal([*name.split(), *words])

    return refused


def named(action: argparse.Action) -> str:
    return action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)


def test_every_command_is_looked_at() -> None:
    assert len(NUMBERS) > 50
    assert len(TEXTS) > 50


@pytest.mark.parametrize("option", NUMBERS)
def test_numbers_are_finite_and_of_64_bits(option: Any, refused: Callable[..., str]) -> None:
    for value in ("nan", "-inf", "1e999") if "FLOAT" in str(option[1].metavar) else ("nan", str(2**63)):
        said = refused(option, value)
        assert named(option[1]) in said
        assert re.search("must be|too large|invalid|whole number", said)


@pytest.mark.parametrize("option", TEXTS)
def test_texts_and_paths_are_not_empty(option: Any, refused: Callable[..., str]) -> None:
    assert f"argument {named(option[1])}: is empty" in refused(option, "")


@pytest.mark.parametrize("option", RANGES)
def test_numbers_out_of_range_are_refused(
    option: Any, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("-1",) if option[1].dest in MAY_BE_ZERO else ("-1", "0"):
        said = refused(option, value)
        assert f"{named(option[1])}={value}" in said
        assert "must be" in said
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", PLACES)
def test_a_place_that_is_not_writable_shows_early(option: Any, refused: Callable[..., str], tmp_path: Path) -> None:
    """Only the output path is reported, although no other argument exists either."""
    name, action, _ = option
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    assert f"{named(action)}={below} cannot be written: Not a directory" in refused(option, str(below))
    is_file = action.dest == "export" or name == "data items" or "JSON" in str(action.help)
    other = "/dev/null" if is_file else str(tmp_path / "file")
    if name != "data index":  # a file, or the folder for it
        said = refused(option, other)
        assert f"{named(action)}={other} is " in said
        assert "name another place" in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert Path("/dev/null").is_char_device()


WITHOUT_DEVICE = {
    *("pretrain", "ray"),  # have Lightning's --trainer.accelerator
    *("export", "import", "share", "models"),  # write files
    "agent",  # plays its environments step by step on the processor
    *("data", "monitor", "doctor"),
}


def test_every_command_that_computes_has_the_same_option_for_the_device() -> None:
    commands = {name for name in COMMANDS if name.partition(" ")[0] not in WITHOUT_DEVICE}
    assert {each.values[0][0] for each in DEVICES} == commands
    helps = {each.values[0][1].help for each in DEVICES}
    assert helps == {"auto (the GPU if there is one), cpu, cuda or cuda:N (default: auto)"}


@pytest.mark.parametrize("option", DEVICES)
def test_a_device_that_cannot_be_used_shows_before_the_work(
    option: Any, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the device is reported, although the data do not exist either."""
    monkeypatch.chdir(tmp_path)
    said = refused(option, "cuda:99")
    assert said.startswith("cpc: error: --device=cuda:99 cannot be used: ")
    assert said.endswith("; `cpc doctor` lists the devices\n")
    assert refused(option, "gpu") == "cpc: error: --device=gpu must be auto, cpu, cuda or cuda:N\n"
    assert not list(tmp_path.iterdir())


def test_options_that_nothing_reads_are_refused(model: Path, refusal: Callable[..., str]) -> None:
    for name, arguments, message in (
        ("share", f"{model} --license mit --out x --private", "(--private applies only there)"),
        ("monitor", "x --export x.html --port 8050", "--port applies only to a page that is served"),
        ("monitor", "x --export x.html --prometheus", "--prometheus applies only to a page that is served"),
        ("calibrate", "--critics exact --steps 5", "--steps=5 applies only to critics that are trained"),
    ):
        assert message in refusal([name, *arguments.split()])


@pytest.mark.parametrize("given", ["{a: 1, a: 2}", "{a: {b: .inf}}", "{a: [1, .NaN]}"])
def test_mappings_hold_no_key_twice_and_no_infinity(given: str, refusal: Callable[..., str]) -> None:
    assert "argument --options: " in refusal(["data", "record", "CartPole-v1", "x", "--options", given])


def test_numbers_without_a_meaning_name_their_option(tmp_path: Path, refusal: Callable[..., str]) -> None:
    out = str(tmp_path / "out")
    for arguments, message in (
        (["calibrate", "--out", out, "--mi", "1e12"], "none of 1000000000000.0 nats .*--estimators and --dim"),
        (["calibrate", "--out", out, "--tasks", "uniform", "--mi", "300"], "reach none of 300.0 nats"),
    ):
        assert re.search(message, refusal(arguments))
    assert not Path(out).exists()


def test_calls_from_python_are_checked_against_the_annotations() -> None:
    class Part:
        @checked
        def __init__(
            self, sizes: tuple[Count, ...] = (1,), kinds: Sequence[Literal["a", "b"]] = (), rate: Dropout = 0.0
        ) -> None: ...

    @checked
    def command(
        width: Literal[1, 3] | None = None,
        name: Literal["x"] | int | None = None,
        table: dict[str, Literal["x"]] | None = None,
    ) -> None: ...

    for call, arguments, message in (
        (Part, {"sizes": (2, 0)}, "Part: sizes=0 must be at least 1"),
        (Part, {"sizes": np.array([2, 0])}, "Part: sizes=0 must be at least 1"),
        (Part, {"sizes": [2.0]}, "Part: sizes=2.0 must be a whole number"),
        (Part, {"sizes": (2**64,)}, f"Part: sizes={2**64} is too large: give at most {2**63 - 1}"),
        (Part, {"kinds": ["a", "c"]}, "Part: kinds='c' is not one of a, b"),
        (Part, {"rate": 1.0}, "Part: rate=1.0 must be at least 0 and below 1"),
        (Part, {"rate": math.nan}, "Part: rate=nan must be a finite number"),
        (command, {"width": 2}, "`width`=2 is not one of 1, 3"),
    ):
        refuses(f"^{re.escape(message)}$", call, **arguments)
    Part(sizes=np.array([2, 3]), kinds=("a", "b"), rate=0.5)
    command(width=3, name=5, table={"y": "z"})  # a union with other types, and values of a mapping, are not checked


def test_messages_of_pretraining_name_options_as_they_are_typed() -> None:
    for section, function in (("trainer", pl.Trainer), ("data", Audio)):
        for name in signature(function).parameters:
            assert typed_option(name) == f"--{section}.{name}"
    for name in ("run_dir", "seed_everything", "model.num_chunks", "trainer.max_steps", "data.seed"):
        assert typed_option(name) == f"--{name}"
    assert typed_option("loss.skip_steps") == "--model.loss.init_args.skip_steps"
