"""A map of contexts: held-out frames in two dimensions, coloured by broad phonetic class."""

from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from cpc.checkpoint import load_pretrained
from cpc.data.audio.alignments import read_alignments, window_labels
from cpc.data.audio.files import read_audio
from cpc.data.audio.manifest import read_manifest
from cpc.data.features import Features
from cpc.pages.chart import Chart, Table, axis, layout, with_spread
from cpc.pages.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

NUM_POINTS = 2000
BROAD_CLASSES = {
    "vowel": (BLUE, "circle", "iy ih eh ae aa oh ao ah uh uw ax axr er ey ay aw oy ow ia ea"),
    "stop": (VERMILION, "square", "p b t d k g dx"),
    "fricative": (GREEN, "diamond", "f v th dh s z sh hh"),
    "nasal": (PURPLE, "triangle-up", "m n ng"),
    "approximant or liquid": (ORANGE, "cross", "l el r w y"),
    "affricate": (SKY, "star", "ch jh"),
    "silence": (GREY, "circle-open", "sil"),
    "other": (GREY, "x", ""),
}


def broad_class(phone: str) -> str:
    """Return the broad class of a phone of `cpc.data.synthetic.espeak`; `other` if no class lists the phone."""
    return next((name for name, (_, _, phones) in BROAD_CLASSES.items() if phone in phones.split()), "other")


def map_of_contexts(run: Path, corpus: Path, device: str) -> tuple[np.ndarray, list[str]]:
    """Return the positions `[n, 2]` and the n phones of a map of contexts of held-out speakers."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    features = Features("c", load_pretrained(run, device=device))
    alignments = read_alignments(corpus / "alignments.csv")
    classes = {label: i for i, label in enumerate(alignments.labels)}
    tested = read_manifest(corpus).select("test")
    files = tested.take(range(0, len(tested), 4))
    contexts, labels = [], []
    for file, path in zip(files.files, files.paths, strict=True):
        frames = features(read_audio(file, features.sample_rate_hz))
        contexts.append(frames)
        labels.append(window_labels(alignments.segments(path), features, 0, len(frames), classes))
    x, y = np.concatenate(contexts), np.concatenate(labels)
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(y >= 0))[:NUM_POINTS]
    standardised = (x[chosen] - x.mean(0)) / (x.std(0) + 1e-6)
    principal = PCA(30, random_state=0).fit_transform(standardised)
    points = TSNE(2, random_state=0, init="pca", perplexity=40).fit_transform(principal)
    names = alignments.labels
    return points, [names[i] for i in y[chosen]]


def contexts_chart(positions: np.ndarray, phones: list[str]) -> Chart:
    """Plot contexts in two dimensions, coloured by broad phonetic class."""
    x, labels = np.asarray(positions, dtype=float), np.array(phones, dtype=str)
    counts, traces, rows = Counter(phones), [], []
    for name, (colour, symbol, _) in BROAD_CLASSES.items():
        own_phones = sorted(phone for phone in counts if broad_class(phone) == name)
        members = np.isin(labels, own_phones)
        # scattergl would show nothing in a browser without WebGL.
        points: dict[str, Any] = dict(type="scatter", mode="markers", name=name)
        points |= dict(x=x[members, 0].round(4).tolist(), y=x[members, 1].round(4).tolist())
        points |= dict(marker_color=colour, marker_symbol=symbol, marker_size=5, marker_opacity=0.85)
        points |= dict(customdata=[escape(label) for label in labels[members]])
        if own_phones:
            traces.append(dict(points, hovertemplate=f"%{{customdata}} ({name})<extra></extra>"))
        for phone in own_phones:
            own = x[labels == phone]
            rows.append([phone, name, f"{counts[phone]}", *with_spread(own.mean(0), own.std(0), digits=2)])
    return Chart(
        title="Contexts by phone",
        caption=f"{len(labels)} contexts, t-SNE of their first 30 principal components; neighbours in the figure need "
        "not be neighbours in the contexts' own space. The table gives means and, in brackets, standard deviations.",
        alt=f"Scatter plot of {len(labels)} contexts: " + ", ".join(f"{len(t['x'])} {t['name']}" for t in traces),
        traces=traces,
        layout=layout(600, xaxis=axis("first dimension"), yaxis=axis("second dimension"), legend_itemsizing="constant"),
        table=Table(["phone", "class", "contexts", "first dimension", "second dimension"], rows),
    )
