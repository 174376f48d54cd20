"""What README and docs/ show: blocks, commands in them, and the options that make these small enough for a test."""

import importlib.util
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpc.cli import main

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted(page.relative_to(REPOSITORY).as_posix() for page in (REPOSITORY / "docs").rglob("*.md"))
_TWO_STEPS = "--trainer.max_steps 2 --trainer.accelerator cpu --eval_every_steps 2"
_DRAWN = f"{_TWO_STEPS} --data.eval_batches 2"  # text is evaluated whole
_NARROW = f"{_DRAWN} --model.encoder.init_args.dim 8 --model.context.init_args.dim 8 --data.window_samples 3200"
# By config or command.
SMALLER = {
    "configs/small_speech.yaml": f"{_NARROW} --data.speakers_per_batch 2",
    "configs/speech_small.yaml": f"{_DRAWN} --data.window_samples 6400 --data.speakers_per_batch 2",
    "configs/cpu_small.yaml": _NARROW,
    "configs/librispeech960.yaml": f"{_NARROW} --data.batch_size 2 --data.num_workers 0",
    "configs/image/cpu_small.yaml": f"""{_DRAWN} --model.encoder.init_args.trunk.init_args.dim 8
        --model.context.init_args.width 8 --data.batch_size 4 --data.valid_share 0.2""",
    "configs/text/cpu_small.yaml": f"""{_TWO_STEPS} --data.batch_size 2 --model.encoder.init_args.num_tokens 50
        --model.loss.init_args.table.init_args.num_classes 50 --model.loss.init_args.sampler.init_args.num_classes 50
        --model.loss.init_args.num_sampled 10""",
    "configs/signals/activity.yaml": f"""{_DRAWN} --model.encoder.init_args.dim 8 --model.context.init_args.dim 8
        --data.window_seconds 4 --data.batch_size 4""",
    "configs/frames/pong.yaml": f"{_DRAWN} --model.encoder.init_args.dim 8 --data.batch_size 16",
    "configs/agents/cart_pole.yaml": "--num_seeds 1 --num_steps 1000",
    "monitor": "--export report.html",  # the page itself would serve until it is stopped
    "probe": "--supervised_seconds 1",
    "record": "--num_episodes 12 --max_steps 30 --valid_share 0.3 --test_share 0.2",
}


def load(path: str) -> Any:
    """Return the module in a file of the repository that is no package."""
    spec = importlib.util.spec_from_file_location(f"{Path(path).stem}_of_docs", REPOSITORY / path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (REPOSITORY / page).read_text(encoding="utf-8"), re.DOTALL | re.M)


def commands_in(block: str) -> list[list[str]]:
    found = [
        re.search(r"(?:^|srun |uv run |--all-extras |--extra \w+ |-m )cpc(?:\.cli)? (?P<rest>[a-z].*)", line)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [shlex.split(each["rest"].split(" $(")[0], comments=True) for each in found if each is not None]


def command_blocks(page: str) -> list[list[list[str]]]:
    """The commands of each block that has some."""
    return [commands for block in blocks(page, "sh") if (commands := commands_in(block))]


def commands(page: str) -> list[list[str]]:
    return [words for block in command_blocks(page) for words in block]


def in_prose(page: str) -> list[list[str]]:
    """Commands between backticks that are whole: they say what they work on before any other option."""
    prose = re.sub(r"^```.*?^```", "", (REPOSITORY / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    found = re.findall(r"`cpc ((?:data [a-z]+|(?!data )[a-z]+)\s(?:[^-`]|--config configs)[^`]*)`", prose)
    return [shlex.split(each) for each in found]


def small(words: list[str], places: Mapping[str, str]) -> list[str]:
    """A command for a test: words that stand for something of the reader's replaced, options added."""
    more = " ".join(SMALLER.get(word, "") for word in words)
    return [places.get(word, word) for word in words] + shlex.split(more)


def run(words: list[str], places: Mapping[str, str], *more: str) -> None:
    main([*small(words, places), *more])
