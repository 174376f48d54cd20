"""The light commands answer at once: they import neither torch nor anything else that takes long."""

import json
import resource
import subprocess
import sys

import pytest

HEAVY = "torch torchaudio torchvision lightning sklearn scipy plotly matplotlib tensorboard dash flask".split()
RUN_COMMAND = """
import json, sys
import cpc.cli
sys.argv = ["cpc", *{arguments!r}]
try:
    cpc.cli.main()
except SystemExit as leave:
    assert leave.code in (0, None), leave.code
print(json.dumps(sorted(sys.modules)))
"""


def run(code: str) -> tuple[str, set[str], float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    *printed, modules = done.stdout.strip().splitlines()
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return "\n".join(printed), set(json.loads(modules)), seconds


def test_help_lists_the_commands_in_under_a_second_without_torch() -> None:
    printed, modules, seconds = run(RUN_COMMAND.format(arguments=["--help"]))
    for command in ("quickstart", "pretrain", "evaluate", "probe", "embed", "monitor", "data", "calibrate", "doctor"):
        assert command in printed
    assert not modules & set(HEAVY)
    assert seconds < 1.0


@pytest.mark.parametrize("module", ["cpc", "cpc.cli", "cpc.native.doctor", "cpc.data.audio.index"])
def test_light_modules_import_nothing_heavy(module: str) -> None:
    _, modules, _ = run(f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))")
    assert module in modules
    assert not modules & set(HEAVY)
