"""The quickstart's page, written from a report made up by hand and read back as a browser would."""

import base64
import json
import math
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cpc.candidates import interpretation
from cpc.evaluation.tables import bound_table, draw_bounds
from cpc.pages.palette import BLUE, STEP_COLOURS, VERMILION
from cpc.pages.report import Report
from cpc.pretraining.run import Run
from cpc.quickstart.page import write_page
from cpc.quickstart.speech import RECIPE

NUM_STEPS = 3
HOSTILE = "<img src='http://example.org/x.png' onerror=alert(1)>&</script>"


class Page(HTMLParser):
    """What a page holds: every tag with its attributes, the text of each table's rows, all other text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:  # meta and img have no end
            pass

    def handle_data(self, data: str) -> None:
        if self.open[-1:] in (["td"], ["th"]):
            self.tables[-1][-1][-1] += data
        else:
            self.text += data

    @property
    def pictures(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "img"]


def a_report(**changes: Any) -> dict[str, Any]:
    return {
        "seconds": {"synthesise": 31.4, "pretrain": 312},
        "corpus_minutes": 62.3,
        "num_speakers": 48,
        "num_threads": 2,
        "recipe_chosen_on": "Chosen on <other> frames.",
        "runs": {"speech": {"num_train_steps": 850, "precision": "32-true"}},
    } | changes


def a_record(step: int, strategy: str = "mixed", split: str = "valid") -> dict[str, Any]:
    bounds = [step / 100 + k / 7 for k in range(NUM_STEPS)]
    return {
        "schema": 1,
        "step": step,
        "steps": [1, 2, 3],
        "strategy": strategy,
        "split": split,
        "num_rows": [800] * NUM_STEPS,
        "loss_nats": [math.log(1024) - bound for bound in bounds],
        "num_candidates": [1024] * NUM_STEPS,
        "mi_ceiling_nats": [math.log(1024)] * NUM_STEPS,
        "mi_bound_nats": bounds,
        "standard_error_nats": [0.011 * (k + 1) for k in range(NUM_STEPS)],
        "accuracy": [0.512 - 0.1 * k for k in range(NUM_STEPS)],
        "reading": interpretation("mixed"),
    }


def written(folder: Path, report: dict[str, Any], **changes: Any) -> Page:
    """Write a page with a measured bound, and a run that was measured twice."""
    measured, records = a_record(200) | changes, [a_record(step) | changes for step in (0, 100)]
    run = Run(folder / "run")
    run.mkdir()
    (run / "bound.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    bound = Report(measured, [bound_table(measured)], partial(draw_bounds, [measured]), folder / "bound.json")
    write_page(folder / "report.html", RECIPE, report, {"Speech: held out": bound, "Speech: training": run})
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return written(tmp_path_factory.mktemp("page"), a_report())


def test_nothing_comes_from_elsewhere(page: Page) -> None:
    for tag, attributes in page.tags:
        assert not {"href", "action", "data", "srcset"} & set(attributes), (tag, attributes)
        assert (attributes.get("src") or "data:image/png").startswith("data:image/png"), tag
    assert not {"link", "iframe"} & {tag for tag, _ in page.tags}
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy


def test_every_picture_has_words_and_a_table(page: Page) -> None:
    assert [picture["alt"] for picture in page.pictures] == [
        f"Speech: {what}; the values are in the tables below" for what in ("held out", "training")
    ]
    for picture in page.pictures:
        assert base64.b64decode((picture["src"] or "").partition(",")[2]).startswith(b"\x89PNG")
    for table, step in zip(page.tables, (200, 100), strict=True):
        record = a_record(step)
        for row, bound, error in zip(table[1:], record["mi_bound_nats"], record["standard_error_nats"], strict=False):
            assert row[1:4] == [f"{bound:.3f}", f"{error:.3f}", "6.931"]


def test_heading_says_what_was_run(page: Page) -> None:
    assert "62 minutes of speech, 48 speakers, 2 threads" in page.text
    assert "Speech: 850 training steps, trained in 32-true." in page.text
    assert "Chosen on <other> frames." in page.text
    assert "synthesise 31 s, pretrain 312 s" in page.text
    assert interpretation("mixed") in page.text


def test_text_is_escaped(tmp_path: Path) -> None:
    changes = {"strategy": HOSTILE, "split": HOSTILE, "reading": HOSTILE}
    page = written(tmp_path, a_report(seconds={HOSTILE: 1.0}), **changes)
    assert len(page.pictures) == len(page.tables) == 2
    assert HOSTILE in page.text


def luminance(colour: str) -> float:
    """Relative luminance, as the Web Content Accessibility Guidelines 2 define it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast_ratio(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("background", ["#ffffff", "#14171c"])
def test_lines_and_bars_stand_out_in_light_and_dark(background: str) -> None:
    """3 to 1 is what the guidelines ask of graphics."""
    for colour in (*STEP_COLOURS, BLUE, VERMILION):
        assert contrast_ratio(colour, background) >= 3, colour
