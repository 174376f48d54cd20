"""The quickstart's page, written from a report made up by hand and read back as a browser would."""

import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpc.candidates import STRATEGIES, interpretation
from cpc.data.synthetic.espeak import CLASS_OF_MNEMONIC, SILENCE
from cpc.pages.charts import STRATEGY_MARKS
from cpc.pages.palette import BLUE, STEP_COLOURS, VERMILION
from cpc.quickstart.page import bound_charts, write_page
from cpc.quickstart.phone_map import BROAD_CLASSES, broad_class, contexts_chart
from cpc.quickstart.speech import RECIPE

pytest.importorskip("plotly", reason="the extra `dashboard` is not installed")

NUM_STEPS = 3
REPRESENTATIONS = RECIPE.representations
HOSTILE = "<img src='http://example.org/x.png' onerror=alert(1)>&</script>"


class Page(HTMLParser):
    """What a page holds: every tag with its attributes, the scripts, the text of each table's rows, all other text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:  # meta has no end
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts[-1] += data
        elif self.open[-1:] in (["td"], ["th"]):
            self.tables[-1][-1][-1] += data
        else:
            self.text += data

    def figures(self) -> list[tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]]:
        """(traces, layout, config) of every chart, as its script hands them to Plotly."""
        found = []
        for script in self.scripts:
            call = re.search(r'Plotly\.newPlot\(\s*"chart-\d+",\s*', script)
            if call and len(script) < 1_000_000:
                parts, at = [], call.end()
                for _ in range(3):
                    part, at = json.JSONDecoder().raw_decode(script, at)
                    parts.append(part)
                    at = re.compile(r"[,\s]*").match(script, at).end()  # type: ignore[union-attr]
                found.append(tuple(parts))
        return found


def a_report(**changes: Any) -> dict[str, Any]:
    phones = dict(zip(REPRESENTATIONS, (9.1, 23.4, 37.3, 38.2, 48.9, 61.2), strict=True))
    speaker = dict(zip(REPRESENTATIONS, (2.4, 11.0, 17.9, 33.1, 71.9, 90.4), strict=True))
    intervals: dict[str, Any] = {key: [value - 0.75, value + 1.25] for key, value in phones.items()}
    return {
        "phones": phones,
        "speaker": speaker,
        "phones_interval": intervals | {"majority": None},
        "seconds": {"synthesise": 31.4, "pretrain": 312},
        "corpus_minutes": 62.3,
        "num_speakers": 48,
        "num_threads": 2,
        "phones_num_steps": {"supervised": 1210},
        "recipe_chosen_on": "Chosen on <other> frames.",
        "runs": {"speech": {"num_train_steps": 850, "precision": "32-true"}},
    } | changes


def a_record(step: int, strategy: str = "mixed", split: str = "valid", num_candidates: float = 1024) -> dict[str, Any]:
    bounds = [step / 100 + k / 7 for k in range(NUM_STEPS)]
    return {
        "schema": 1,
        "step": step,
        "strategy": strategy,
        "split": split,
        "num_rows": [800] * NUM_STEPS,
        "loss_nats": [math.log(num_candidates) - bound for bound in bounds],
        "num_candidates": [num_candidates] * NUM_STEPS,
        "mi_ceiling_nats": [math.log(num_candidates)] * NUM_STEPS,
        "mi_bound_nats": bounds,
        "standard_error_nats": [0.011 * (k + 1) for k in range(NUM_STEPS)],
        "accuracy": [0.512 - 0.1 * k for k in range(NUM_STEPS)],
        "reading": interpretation(strategy),
    }


RECORDS = [
    record
    for step in (0, 100, 200)
    for record in (a_record(step, split="train"), a_record(step), a_record(step, "mixed_excluding", num_candidates=897))
]
LABELS = ["iy", "s", "iy", "sil", "m", "p", "l", "ch"]
CONTEXTS = (np.arange(16, dtype=np.float32).reshape(8, 2), LABELS)


def written(
    folder: Path, report: dict[str, Any] | None = None, records: Any = RECORDS, contexts: Any = CONTEXTS
) -> Page:
    path = folder / "report.html"
    write_page(path, RECIPE, report or a_report(), {"speech": [*bound_charts(records), contexts_chart(*contexts)]})
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return written(tmp_path_factory.mktemp("page"))


def row(page: Page, table: int, name: str) -> list[str]:
    return next(cells[1:] for cells in page.tables[table] if cells[0] == name)


def test_plotly_is_there_once_and_nothing_comes_from_elsewhere(page: Page) -> None:
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1
    for tag, attributes in page.tags:
        assert not {"src", "href", "action", "data", "srcset"} & set(attributes), (tag, attributes)
        assert not any("//" in (value or "") for value in attributes.values()), (tag, attributes)
    assert [attributes for tag, attributes in page.tags if tag == "link"] == []
    assert "@import" not in page.text
    assert "url(" not in page.text
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy
    assert "default-src 'none'" in policy


def test_no_button_uploads_a_chart(page: Page) -> None:
    figures = page.figures()
    assert len(figures) == 5
    for _, _, config in figures:
        assert config["showSendToCloud"] is False
        assert {button for group in config["modeBarButtons"] for button in group} == {
            "toImage",
            "zoom2d",
            "resetScale2d",
        }


def test_every_chart_has_words_and_a_table(page: Page) -> None:
    num_charts = len(page.figures())
    pictures = [attributes["aria-label"] for _, attributes in page.tags if attributes.get("role") == "img"]
    assert len(pictures) == len(page.tables) == num_charts
    assert all(words and len(words) > 40 for words in pictures)
    assert sum(tag == "details" for tag, _ in page.tags) == num_charts


def test_heading_says_what_was_run(page: Page) -> None:
    assert "62 minutes of speech, 48 speakers, 2 threads" in page.text
    assert "Speech: 850 training steps, trained in 32-true." in page.text
    assert "Chosen on <other> frames." in page.text
    assert "synthesise 31 s, pretrain 312 s" in page.text


def test_probe_values(page: Page) -> None:
    assert [cells[0] for cells in page.tables[0]] == ["representation", *REPRESENTATIONS.values()]
    assert row(page, 0, "CPC c") == ["48.9 [48.1, 50.1]", "71.9"]
    assert row(page, 0, "majority") == ["9.1", "2.4"]
    assert row(page, 0, "supervised") == ["61.2 [60.5, 62.5], 1210 steps", "90.4"]  # what its seconds bought here
    phones, speaker = page.figures()[0][0]
    assert phones["x"] == list(a_report()["phones"].values())
    assert speaker["x"] == list(a_report()["speaker"].values())
    assert phones["error_x"]["array"] == [None, *[pytest.approx(1.25)] * 5]
    assert phones["error_x"]["arrayminus"] == [None, *[pytest.approx(0.75)] * 5]
    assert speaker["error_x"]["array"] == [None] * 6


def test_bound_values_over_training(page: Page) -> None:
    for table, strategy, num_candidates in ((1, "mixed", 1024), (2, "mixed_excluding", 897)):
        for step in (0, 100, 200):
            record = a_record(step, strategy)
            expected = [
                f"{b:.3f} ({e:.3f})" for b, e in zip(record["mi_bound_nats"], (0.011, 0.022, 0.033), strict=True)
            ]
            assert row(page, table, f"{step}") == [*expected, f"{math.log(num_candidates):.3f}"]
        traces, layout, _ = page.figures()[table]
        *lines, ceiling = traces
        assert [line["name"] for line in lines] == ["1", "2", "3"]
        assert [line["x"] for line in traces] == [[0, 100, 200]] * 4
        assert lines[2]["y"] == pytest.approx([2 / 7, 1 + 2 / 7, 2 + 2 / 7])
        assert lines[2]["customdata"] == ["0.033"] * 3
        assert ceiling["line"]["dash"] == "dash"
        assert ceiling["y"] == pytest.approx([math.log(num_candidates)] * 3)
        assert f"ceiling log N = {math.log(num_candidates):.2f}" in [a["text"] for a in layout["annotations"]]
        assert "(nats)" in layout["yaxis"]["title"]["text"]


def test_each_curve_is_called_what_it_is(page: Page) -> None:
    for strategy in ("mixed", "mixed_excluding"):
        assert f"log N - L with negatives {strategy}: {interpretation(strategy)}." in page.text
    legend = [trace["name"] for trace in page.figures()[3][0]]
    assert f"mixed:<br>{interpretation('mixed')}" in legend
    assert f"mixed_excluding:<br>{interpretation('mixed_excluding')}" in legend
    by_step = next(a["aria-label"] or "" for _, a in page.tags if "Two charts" in (a.get("aria-label") or ""))
    assert f"mixed: {interpretation('mixed')}. mixed_excluding: {interpretation('mixed_excluding')}. " in by_step
    assert "standard error of log N - L" in page.text


def test_final_values_by_step(page: Page) -> None:
    assert row(page, 3, "mixed, k = 3") == ["2.286 (0.033)", "6.931", "1024.00", "31.20", "0.10"]
    assert row(page, 3, "mixed_excluding, k = 1") == ["2.000 (0.011)", "6.799", "897.00", "51.20", "0.11"]
    bound, ceiling, accuracy, chance = page.figures()[3][0][:4]
    assert bound["error_y"]["array"] == pytest.approx([0.011, 0.022, 0.033])
    assert ceiling["y"] == pytest.approx([math.log(1024)] * 3)
    assert accuracy["y"] == pytest.approx([51.2, 41.2, 31.2])
    assert chance["y"] == pytest.approx([100 / 1024] * 3)
    assert accuracy["yaxis"] == chance["yaxis"] == "y2"


def test_contexts_by_class(page: Page) -> None:
    traces = {trace["name"]: trace for trace in page.figures()[4][0]}
    assert list(traces) == [name for name in BROAD_CLASSES if name != "other"]
    assert traces["vowel"]["x"] == [0, 4]
    assert traces["vowel"]["y"] == [1, 5]
    assert traces["vowel"]["customdata"] == ["iy", "iy"]
    assert row(page, 4, "iy") == ["vowel", "2", "2.00 (2.00)", "3.00 (2.00)"]


def test_every_phone_of_the_corpus_has_a_class() -> None:
    phones = {*CLASS_OF_MNEMONIC.values(), SILENCE}
    listed = [phone for _, _, phones in BROAD_CLASSES.values() for phone in phones.split()]
    assert sorted(listed) == sorted(phones)
    assert broad_class("ch") == "affricate"
    assert broad_class("r") == "approximant or liquid"
    assert broad_class("x^") == broad_class("") == "other"


def test_text_is_escaped(tmp_path: Path) -> None:
    contexts = (np.zeros((2, 2)), [HOSTILE, "iy"])
    records = [
        record | {"strategy": HOSTILE, "split": HOSTILE, "reading": HOSTILE} for record in (a_record(0), a_record(10))
    ]
    page = written(tmp_path, a_report(seconds={HOSTILE: 1.0}), records, contexts)
    assert "img" not in [tag for tag, _ in page.tags]
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1
    assert len(page.figures()) == 4  # no script was cut short
    assert HOSTILE in page.text
    assert row(page, 3, HOSTILE)[0] == "other"
    for traces, _, _ in page.figures():  # Plotly reads tags in its labels
        for trace in traces:
            words = [trace["name"], trace["hovertemplate"], *map(str, trace.get("customdata", []))]
            assert not any("<img" in text for text in words)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_missing_values_are_shown_as_such(tmp_path: Path, missing: float | None) -> None:
    gaps = dict.fromkeys(("mi_bound_nats", "standard_error_nats", "mi_ceiling_nats", "accuracy", "num_candidates"))
    records = [a_record(step) | {name: [*a_record(step)[name][:2], missing] for name in gaps} for step in (0, 100)]
    report = a_report()
    report["phones"] |= {"supervised": missing}
    del report["speaker"]["cpc_z"], report["phones_interval"]
    page = written(tmp_path, report, records)
    assert row(page, 0, "supervised") == ["n/a, 1210 steps", "90.4"]
    assert row(page, 0, "CPC z") == ["38.2", "n/a"]
    assert row(page, 1, "100") == ["1.000 (0.011)", "1.143 (0.022)", "n/a (n/a)", "6.931, n/a"]
    assert row(page, 2, "mixed, k = 3") == ["n/a (n/a)", "n/a", "n/a", "n/a", "n/a"]
    assert page.figures()[1][0][2]["y"] == [None, None]
    assert not any("NaN" in script for script in page.scripts if len(script) < 1_000_000)


def test_without_held_out_records_the_probes_remain(tmp_path: Path) -> None:
    page = written(
        tmp_path, {key: a_report()[key] for key in ("phones", "speaker", "runs")}, [a_record(0, split="train")]
    )
    assert len(page.figures()) == len(page.tables) == 2


def test_all_strategies_and_a_single_step(tmp_path: Path) -> None:
    cut = {name: value[:1] for name, value in a_record(0).items() if isinstance(value, list)}
    page = written(tmp_path, records=[a_record(0, strategy) | cut for strategy in STRATEGIES])
    assert len(page.figures()) == 2 + len(STRATEGIES) + 1
    assert len(page.tables[-2]) == 1 + len(STRATEGIES)
    assert page.figures()[1][0][0]["line"]["color"] == STEP_COLOURS[0]


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
    for colour in (*STEP_COLOURS, BLUE, VERMILION, *(colour for colour, _ in STRATEGY_MARKS)):
        assert contrast_ratio(colour, background) >= 3, colour


def test_without_plotly_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ValueError, match=r"uv sync --extra dashboard.*contrastive-predictive-coding\[dashboard\]"):
        written(tmp_path)
    assert list(tmp_path.iterdir()) == []
