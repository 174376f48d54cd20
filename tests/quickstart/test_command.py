"""`cpc quickstart`, whatever the recipe: what it asks for before anything starts."""

import html
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cpc.cli import main
from cpc.config.extras import DISTRIBUTION
from cpc.pages.palette import BLUE, STEP_COLOURS, VERMILION
from cpc.pretraining.run import Run
from cpc.quickstart import engine, load_recipe
from cpc.quickstart.page import write_page
from cpc.quickstart.speech import RECIPE


@pytest.mark.parametrize(("modality", "left"), [("image", ["photographs", "digits"]), ("signals", ["smartwatch"])])
def test_what_an_interrupted_quickstart_left_is_named(
    modality: str, left: list[str], tmp_path: Path, refusal: Callable[..., str]
) -> None:
    for name in [*left, "notes.txt"]:
        (tmp_path / name).mkdir()
    message = refusal(["quickstart", f"--modality={modality}", f"--out={tmp_path}", f"--corpus={tmp_path / 'corpus'}"])
    assert f"remove {', '.join(str(tmp_path / name) for name in left)}, or name another --out" in message
    assert "notes.txt" not in message
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("modality", "missing", "extra"),
    [("audio", "espeakng_loader", "speech"), ("image", "skimage", "image"), ("signals", "seglearn", "signals")],
)
def test_a_missing_extra_is_named_before_anything_starts(
    modality: str,
    missing: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    for module in load_recipe(modality).extras:
        monkeypatch.setitem(sys.modules, module, None if module == missing else ModuleType(module))
    places = [f"--out={tmp_path / 'out'}", f"--corpus={tmp_path / 'corpus'}"]
    message = refusal(["quickstart", f"--modality={modality}", *places])
    assert message.startswith(f"cpc: error: the quickstart needs {missing.partition('.')[0]}")
    assert f"uv sync --extra {extra}" in message
    assert f"{DISTRIBUTION}[{extra}]" in message
    assert list(tmp_path.iterdir()) == []


def test_each_recipe_has_a_corpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(engine, "quickstart", lambda recipe, *places, **_: asked.append((*recipe.studies, *places)))
    for arguments in ([], ["--modality", "image"], ["--modality", "text"], ["--modality", "image", "--corpus", "mine"]):
        main(["quickstart", *arguments])
    assert asked == [
        ("speech", Path("runs/quickstart"), Path("data/quickstart_speech")),
        ("photographs", "digits", Path("runs/image_quickstart"), Path("data/embedded_images")),
        ("prose", Path("runs/text_quickstart"), Path("data/embedded_prose")),
        ("photographs", "digits", Path("runs/image_quickstart"), Path("mine")),
    ]


def test_an_unknown_modality_is_refused(refusal: Callable[..., str]) -> None:
    assert "invalid choice: 'video' (choose from" in refusal(["quickstart", "--modality", "video"])


HOSTILE = "<img src='http://example.org/x.png' onerror=alert(1)>&</script>"


def test_text_is_escaped(tmp_path: Path) -> None:
    record = {"split": HOSTILE, "strategy": HOSTILE, "reading": HOSTILE, "step": 0, "steps": [1], "directions": [""]}
    numbers = ("loss_nats", "num_candidates", "mi_ceiling_nats", "mi_bound_nats", "standard_error_nats", "accuracy")
    run = Run(tmp_path)
    (run / "bound.jsonl").write_text(json.dumps(record | {key: [1.0] for key in numbers}) + "\n")
    report = {"seconds": {HOSTILE: 1.0}, "recipe_chosen_on": HOSTILE, "runs": {}, "corpus_minutes": 62.3}
    write_page(tmp_path / "report.html", RECIPE, report | {"num_speakers": 48, "num_threads": 2}, {HOSTILE: run})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "62 minutes of speech, 48 speakers, 2 threads" in page
    assert HOSTILE not in page
    assert page.count(html.escape(HOSTILE)) == 8  # two facts, a title in three places, and a table's three


def luminance(colour: str) -> float:
    """Relative luminance, as the Web Content Accessibility Guidelines 2 define it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#14171c"])
def test_lines_and_bars_stand_out_in_light_and_dark(background: str) -> None:
    """3 to 1 is what the guidelines ask of graphics."""
    for colour in (*STEP_COLOURS, BLUE, VERMILION):
        dark, light = sorted((luminance(colour), luminance(background)))
        assert (light + 0.05) / (dark + 0.05) >= 3, colour
