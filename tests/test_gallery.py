"""The gallery: every script is short, runs in time, confirms what its text claims, and gives a page with figures."""

import ast
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shown import REPOSITORY, load

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MOST_COLUMNS = 88  # more scroll sideways on the site
MOST_LINES = {"heartbeats": 60, "log_n": 60, "stuck": 60}  # of code; others 50
MOST_CPU_SECONDS = 240  # two minutes on two cores


gallery = load("docs/gallery.py")


def script(name: str) -> str:
    return (REPOSITORY / "docs" / "gallery" / f"{name}.py").read_text(encoding="utf-8")


def num_lines(source: str) -> int:
    """Return the number of lines that are not blank, a comment or a docstring."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Module | ast.FunctionDef)]
    docstrings = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    text = {line for each in docstrings for line in range(each.lineno, (each.end_lineno or 0) + 1)}
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(source).readline) if each.type not in no_code]
    return len({line for each in tokens for line in range(each.start[0], each.end[0] + 1)} - text)


def test_a_page_shows_what_its_script_printed_and_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.py").write_text(
        '"""# Small\n\nText.\n"""\n\nimport matplotlib.pyplot as plt\n\n# %% Two\nprint(1 + 1)\n'
        'plt.subplots(num="An empty figure")\nplt.show()\n'
    )
    monkeypatch.setattr(gallery, "SCRIPTS", tmp_path)
    gallery.execute("small", tmp_path / "out")
    page = json.loads((tmp_path / "out/page.json").read_text())
    shown = gallery.markdown("small", page)
    assert shown.index("## Two") < shown.index("```text\n2\n```") < shown.index("![An empty figure](small_1.svg)")
    svg = (tmp_path / "out/small_1.svg").read_text()
    assert "prefers-color-scheme:dark" in svg
    assert "currentColor" in svg
    assert gallery.INK not in svg
    assert "small_1.svg" not in gallery.markdown("small", None)


def test_every_script_has_a_page() -> None:
    assert sorted(gallery.PAGES) == sorted(path.stem for path in (REPOSITORY / "docs" / "gallery").glob("*.py"))


@pytest.mark.parametrize("name", gallery.PAGES)
def test_a_script_is_short_and_ends_with_its_options(name: str) -> None:
    """Every script also asserts something, and names its figures, whose names are read aloud in place of them.

    A line has one statement; options stand where they are given, not in constants, nor in strings of the command line.
    """
    source = script(name)
    assert num_lines(source) <= MOST_LINES.get(name, 50)
    assert max(map(len, source.splitlines())) <= MOST_COLUMNS
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
            assert not isinstance(node.value, ast.Tuple), f"line {node.lineno} has two statements"
        assert not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id[1:].isupper()), node.id
    assert "cpc.cli" not in source
    assert "\nassert " in source or "\n    assert " in source
    assert len(re.findall(r"plt\.(?:subplots|figure)\(", source)) == source.count('num="') > 0
    last = gallery.cells(source)[-1]
    assert last.text.startswith("## Options used")
    assert last.text.count("](") + last.text.count("][") >= 2
    assert last.code == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.PAGES)
def test_a_script_runs_in_time(name: str) -> None:
    page = json.loads((gallery.run(name) / "page.json").read_text())
    assert page["cpu_seconds"] < MOST_CPU_SECONDS
    assert sum(len(cell["figures"]) for cell in page["cells"]) > 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of pages that ran above, unless a test of it runs alone."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("the group docs is not installed: uv run --all-extras --group docs pytest")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"CPC_GALLERY": "run"}
    done = subprocess.run(build, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_shows_the_figures(site: Path) -> None:
    for name in gallery.PAGES:
        folder = site / "gallery" / name
        figures = re.findall(
            rf'<img alt="[^"]{{10,}}" src="([^"]*{name}_\d+\.svg)"', (folder / "index.html").read_text()
        )
        assert figures
        assert all((folder / figure).is_file() for figure in figures)


@pytest.mark.slow
def test_pages_fit_a_telephone_and_follow_the_theme(site: Path, tmp_path: Path) -> None:
    """No page scrolls sideways, and the ink of figures is light on a dark page."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the group 'dev' is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    ink = {}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for theme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=theme)
            for name in ("", "questions/", "gallery/", *(f"gallery/{name}/" for name in gallery.PAGES)):
                page.goto(f"file://{site}/{name}index.html")
                width = page.evaluate("document.documentElement.scrollWidth")
                assert width <= 390, f"{name or 'the first page'} is {width} pixels wide"
            page.goto(f"file://{site}/index.html")
            page.locator("img[src*=recording]").screenshot(path=tmp_path / f"{theme}.png")
            grey = np.asarray(Image.open(tmp_path / f"{theme}.png").convert("L"))[-14:].astype(int)  # "seconds"
            paper = int(np.median(grey))
            ink[theme] = int(grey.flat[np.abs(grey - paper).argmax()])
        browser.close()
    assert ink["light"] < 100
    assert ink["dark"] > 155
