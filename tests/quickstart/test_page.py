"""The colours of pages, and texts that are no HTML."""

import html
import json
from pathlib import Path

import pytest

from cpc.pages.palette import BLUE, STEP_COLOURS, VERMILION
from cpc.pretraining.run import Run
from cpc.quickstart.page import write_page
from cpc.quickstart.speech import RECIPE

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
