"""report.html of the image quickstart: both corpora beside each other, then bound and pictures of each."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cpc.quickstart.charts import BLUE, VERMILION, Chart, number, probe_chart
from cpc.quickstart.page import ACCURACY, CEILING, bound_charts, facts, sections, write_sections

FACTS = {  # keys of the report, in the heading's words
    "latent_dim": "latents of width {}",
    "context_dim": "contexts of width {}",
    "num_threads": "{} threads",
}
RUN_FACTS = {
    "num_classes": "{} classes",
    "num_train_images": "{} training images",
    "num_test_images": "{} test images",
    "num_rows": "{0} x {0} patches of each",
    "num_train_steps": "{} training steps",
    "precision": "trained in {}",
}
TASKS = {"photographs": BLUE, "digits": VERMILION}
REPRESENTATIONS = {
    "majority": "majority",
    "random": "random",
    "pixels": "pixels",
    "hog": "HOG",
    "cpc": "CPC",
    "supervised": "supervised",
}
PICTURES = {  # title, caption, and what there is to see
    "patches.png": (
        "the patches",
        "An image of the test split, its overlapping patches as they are cut, and as training takes them: changed, if "
        "at all, each by itself, so that neighbours do not betray themselves by matching edges.",
        "An enlarged image beside the grid of its patches, and the grid of the same patches as training takes them.",
    ),
    "neighbours.png": (
        "nearest patches in z",
        "Patches of test images, and the patches of training images whose latents are nearest, with their cosine "
        "(centred on the mean latent) and class. Patches that are the same pixel by pixel are shown once.",
        "Rows of a test image with one of its patches framed, that patch enlarged, and the eight nearest patches.",
    ),
    "map.png": (
        "a map of contexts",
        "Test images at the places of their contexts (mean over the grid, t-SNE of the first 30 principal components); "
        "the frame's colour is the class. Neighbours in the picture need not be neighbours in the contexts' own space.",
        "Thumbnails of test images scattered by their contexts, with frames coloured by class and a legend.",
    ),
}
HEADING = """<h1>cpc quickstart: what contrastive pretraining learnt from images</h1>
<p>How well a linear probe tells the classes of images apart by the pretrained features, beside its baselines; how much
of the rows of patches ahead the contexts predict, while training went on and at its end; and what the model sees.</p>
"""
PROBE_CAPTION = (
    "Photographs: which photograph a crop was cut out of; crops of the test split lie in blocks of it that nothing was "
    "trained on. Those of a block overlap, so that intervals resample blocks. "
    "Digits: handwritten ones, those tested by other writers than those trained on."
)
WHICH_ARE_BOUNDS = """<p><b>Which curves are bounds.</b> With candidates from the query's own image (<code>mixed</code>)
the context has seen some of them and can rule them out: such a curve is no bound on I(z; c).
<code>mixed_excluding</code> takes its candidates from other images alone. Of a grid of H rows, the latents k rows ahead
lie in H - k of them, and which row a candidate is from can be guessed: subtract log(H / (H - k)) from this curve, 0.34
nats for k = 2 of 7 rows and 1.95 for k = 6, to have a lower bound, as far as images are independent (crops of one
photograph are not).</p>
"""
BASELINES = """<p><b>Baselines.</b> <i>Majority</i> always answers the most frequent class. <i>Random</i> is the same
architecture, initialised from data and never trained, read like CPC (mean of 3 seeds): what the architecture gives
away. <i>Pixels</i> are the images themselves, <i>HOG</i> hand-made histograms of oriented gradients. <i>Supervised</i>
is the same encoder trained on the labels themselves, for as many steps as half a minute buys on this machine, twenty
passes at most: they stand beside its figures. <i>CPC</i> is the model pretrained here, which
has seen no label: {readouts}.</p>
"""
_READOUTS = {
    "z": "the mean of the latents z over the grid",
    "z_grid": "all latents z of the grid side by side",
    "c": "the mean of the contexts c over the grid",
    "c_grid": "all contexts c of the grid side by side",
}


def write_image_page(
    path: Path,
    report: dict[str, Any],
    records: Mapping[str, list[dict[str, Any]]],
    pictures: Mapping[str, Sequence[Path]],
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        report: as in report.json. Percent by representation for each corpus and `runs` are needed; `NAME_interval`,
            `seconds` and the keys of `FACTS` and `RUN_FACTS` are shown where present.
        records: lines of bound.jsonl by corpus; those of split `train` are left out.
        pictures: PNG files by corpus, named as in `PICTURES`; they become part of the page.

    Raises:
        ValueError: if plotly is not installed.
    """
    readouts = ", ".join(f"of {name} {_READOUTS[report['runs'][name]['readout']]}" for name in TASKS)
    reading = [CEILING, WHICH_ARE_BOUNDS, ACCURACY, BASELINES.format(readouts=readouts)]
    write_sections(path, _parts(report, records, pictures), reading)


def _parts(
    report: dict[str, Any], records: Mapping[str, list[dict[str, Any]]], pictures: Mapping[str, Sequence[Path]]
) -> Iterator[str]:
    yield HEADING
    yield facts(report, FACTS)
    for name in TASKS:
        run = report["runs"][name]
        found = [words.format(run[key]) for key, words in RUN_FACTS.items() if run.get(key) is not None]
        others = [f"{other} {number(accuracy, 1)} %" for other, accuracy in run.get("other_readouts", {}).items()]
        words = ", ".join(found) + (f". Other readouts: {', '.join(others)}" if others else "")
        yield f'<p class="facts">{name.capitalize()}: {escape(words)}.</p>\n'
    yield from sections([probe_chart(report, TASKS, REPRESENTATIONS, PROBE_CAPTION)])
    num_charts = 1
    for name in TASKS:
        charts = [_of_corpus(chart, name) for chart in bound_charts(records[name])]
        yield from sections(charts, first=num_charts + 1)
        num_charts += len(charts)
        for picture in pictures[name]:
            yield _picture_section(picture, name)


def _of_corpus(chart: Chart, name: str) -> Chart:
    return chart._replace(title=f"{name.capitalize()}: {chart.title}", alt=f"{name.capitalize()}. {chart.alt}")


def _picture_section(picture: Path, name: str) -> str:
    title, caption, alt = PICTURES[picture.name]
    content, title, alt = b64encode(picture.read_bytes()).decode(), f"{name.capitalize()}: {title}", f"{name}: {alt}"
    return (
        f"<section><h2>{escape(title)}</h2><p>{escape(caption)}</p>\n"
        f'<img alt="{escape(alt)}" src="data:image/png;base64,{content}"></section>\n'
    )
