"""Pages made by running the scripts of docs/gallery: text, code, what the code printed, and its figures.

`python docs/gallery.py NAME` runs one page; `CPC_GALLERY=run mkdocs build` runs every page whose outputs are missing.
A script is cut into cells at lines `# %%`, as notebooks and editors do. Comments at the start of a cell are Markdown.
"""

import ast
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

SCRIPTS = Path(__file__).with_suffix("")
REPOSITORY = SCRIPTS.parents[1]
OUTPUTS = REPOSITORY / "dist" / "gallery"
PAGES = (
    "recording",
    "three_lines",
    "log_n",
    "stuck",
    "negatives",
    "few_labels",
    "stream",
    "own_loop",
    "heartbeats",
    "patches",
    "estimators",
)
NOT_RUN = (
    "!!! note\n    This copy of the page was built without its figures: `CPC_GALLERY=run mkdocs build` makes them.\n"
)
INK = "#0a0b0c"  # replaced by the theme's colour of text
THEMES = "svg{color:#1d2129}@media(prefers-color-scheme:dark){svg{color:#e2e4e9}}"
ZOOM = 1.4  # of figures on wide screens; narrow screens shrink them
STYLE: dict[str, Any] = {
    "figure.figsize": (4.5, 3.0),
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
    "savefig.dpi": 200,  # of images and other pixels
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "svg.fonttype": "path",
    "image.interpolation": "none",  # an SVG then holds the values themselves
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


class Cell(NamedTuple):
    """A part of a script.

    Attributes:
        text: Markdown, without the signs of comments.
        code: Python; empty for a cell of text.
        line: number of the code's first line in the script.
    """

    text: str
    code: str
    line: int


def cells(script: str) -> list[Cell]:
    """Cut a script at its lines `# %%`; the text of the first cell is the docstring of the script."""
    tree, lines = ast.parse(script), script.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("# %%")]
    ends = [*starts[1:], len(lines)]
    found = [Cell(ast.get_docstring(tree) or "", *_code(lines, tree.body[0].end_lineno or 0, starts[0]))]
    for start, end in zip(starts, ends, strict=True):
        code = next((i for i in range(start + 1, end) if not lines[i].startswith("#")), end)
        heading = "## " + lines[start].removeprefix("# %%").strip()
        comments = [line.removeprefix("#").removeprefix(" ") for line in lines[start + 1 : code]]
        found.append(Cell("\n".join([heading, "", *comments]).strip(), *_code(lines, code, end)))
    return found


def _code(lines: list[str], start: int, end: int) -> tuple[str, int]:
    """Return the code of some lines, and the number of its first line."""
    while start < end and not lines[start]:
        start += 1
    return "\n".join(lines[start:end]).rstrip("\n"), start + 1


def outputs(name: str) -> Path:
    """Return the folder of a page's outputs, which is another one after a change of the script or of cpc."""
    sources = [SCRIPTS / f"{name}.py", Path(__file__), *sorted((REPOSITORY / "cpc").rglob("*.py"))]
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources))
    return OUTPUTS / f"{name}-{digest.hexdigest()[:16]}"


def run(name: str) -> Path:
    """Run a page in a process of its own; return the folder with `page.json` and figures.

    Raises:
        subprocess.CalledProcessError: if the script fails.
    """
    folder = outputs(name)
    for old in OUTPUTS.glob(f"{name}-*"):
        shutil.rmtree(old)
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, __file__, name, str(folder)], check=True, env=environment)
    return folder


def execute(name: str, folder: Path) -> None:
    """Run the cells of a script one after the other in this process, and write what they print and plot."""
    import matplotlib.pyplot as plt

    from cpc.pages.palette import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

    colours = plt.cycler(color=[BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY])
    plt.rcParams.update(STYLE | {"svg.hashsalt": name, "axes.prop_cycle": colours})
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, Any] = {"__name__": "__main__"}
    results, num_figures, start = [], 0, time.monotonic()
    for cell in cells((SCRIPTS / f"{name}.py").read_text(encoding="utf-8")):
        printed, figures = io.StringIO(), []
        with contextlib.redirect_stdout(printed):
            # Blank lines keep the numbers of lines in tracebacks.
            exec(compile("\n" * (cell.line - 1) + cell.code, SCRIPTS / f"{name}.py", "exec"), names)
        for number in plt.get_fignums():
            num_figures += 1
            figures.append((f"{name}_{num_figures}.svg", plt.figure(number).get_label()))
            (folder / figures[-1][0]).write_text(_themed(plt.figure(number)), encoding="utf-8")
        plt.close("all")
        results.append({"printed": printed.getvalue(), "figures": figures})
    seconds = {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": round(time.process_time(), 1)}
    page = seconds | {"cells": results}
    (folder / "page.json").write_text(json.dumps(page), encoding="utf-8")


def _themed(figure: Any) -> str:
    """Return a figure as SVG whose ink follows the reader's theme."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue().replace(INK, "currentColor")
    svg = re.sub(r'(?<= )(width|height)="([\d.]+)pt"', lambda m: f'{m[1]}="{ZOOM * float(m[2]):.0f}pt"', svg, count=2)
    return svg.replace("<defs>", f"<style>{THEMES}</style>\n<defs>", 1)


def markdown(name: str, page: dict[str, Any] | None) -> str:
    """Return a page; without the outputs of a run, its text and code."""
    script = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    parts = []
    for number, cell in enumerate(cells(script)):
        parts.append(cell.text)
        parts += [f"```python\n{cell.code}\n```"] * bool(cell.code)
        if page is not None:
            result = page["cells"][number]
            parts += [f"```text\n{result['printed'].rstrip()}\n```"] * bool(result["printed"])
            parts += [f"![{alt}]({file})" for file, alt in result["figures"]]
    took = "" if page is None else f" It took {page['seconds']:.0f} seconds when this site was built."
    parts.append(f"---\n\nThis page is `docs/gallery/{name}.py`: `python docs/gallery/{name}.py` runs it.{took}")
    parts[1:1] = [NOT_RUN] * (page is None)
    return "\n\n".join(parts)


def contents(pages: dict[str, dict[str, Any] | None]) -> str:
    """Return the page that lists the others, each with its first figure."""
    parts = ["# Gallery", "Eleven short scripts. Each ran when this site was built, without a download."]
    for name, page in pages.items():
        title, summary = cells((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))[0].text.split("\n\n")[:2]
        parts += [f"## [{title.removeprefix('# ')}]({name}.md)", summary]
        figures = [] if page is None else [figure for cell in page["cells"] for figure in cell["figures"]]
        parts += [f"[![{alt}]({file})]({name}.md)" for file, alt in figures[:1]]
    return "\n\n".join(parts)


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Hook of mkdocs: add the pages to the menu."""
    (entry,) = [entry for entry in config.nav if "Gallery" in entry]
    entry["Gallery"] += [f"gallery/{name}.md" for name in PAGES]
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Hook of mkdocs: add the pages, with the figures of their last run."""
    from mkdocs.structure.files import File

    pages: dict[str, dict[str, Any] | None] = {}
    for name in PAGES:
        folder = outputs(name)
        if os.environ.get("CPC_GALLERY") == "run" and not (folder / "page.json").is_file():
            run(name)
        has_run = (folder / "page.json").is_file()
        pages[name] = json.loads((folder / "page.json").read_text(encoding="utf-8")) if has_run else None
        files.append(File.generated(config, f"gallery/{name}.md", content=markdown(name, pages[name])))
        for figure in sorted(folder.glob("*.svg")):
            files.append(File.generated(config, f"gallery/{figure.name}", content=figure.read_bytes()))
    files.append(File.generated(config, "gallery/index.md", content=contents(pages)))
    return files


if __name__ == "__main__":
    execute(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else outputs(sys.argv[1]))
