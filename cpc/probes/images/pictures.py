"""Pictures of what a model of images works with: patches as cut and as changed, neighbours in z, a map of contexts.

The same model, source and seed give the same pictures. n images, H rows and W columns of patches, L
patches of an image, P patch side, S image side, C channels, D feature dim.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from PIL import Image, ImageDraw
from torch import Tensor

from cpc.checkpoint import load_pretrained, read_config
from cpc.data.images.corpus import ImageCorpus, ImageDataset
from cpc.data.store.atomic import write_atomically
from cpc.evaluation import recorded_data
from cpc.model import CPC
from cpc.probes.images.sheet import GAP, LINE, MARGIN, MARK, PAPER, write_words

FEWEST_MAPPED = 10
THUMBNAIL = 30  # pixels
MOST_IN_LEGEND = 40
_BATCH_IMAGES = 64
_UNLABELLED = "#c3c8cf"


def write_pictures(
    model_folder: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    split: str = "test",
    among: str = "train",
    num_images: int = 300,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
) -> list[Path]:
    """`cpc picture`: draw `patches.png`, `neighbours.png` and `map.png`.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        data: a folder of images, npz or NAME:ROOT.
        out: folder for the pictures, which replace those that are there.
        split: whose images are shown, and whose patches are looked for.
        among: the split where neighbours are looked for.
        num_images: of each split, at most, drawn at random.
        seed: of all that is drawn.
        cache_dir: where packed images go; beside the images if not given.
        skip_bad: go on without files that cannot be used, and say how many.

    Returns:
        The files.

    Raises:
        ValueError: if the model is not of images, does not say their size, a split has no images, or the first one
            fewer than `FEWEST_MAPPED`.
    """
    config = read_config(model_folder)
    model = load_pretrained(model_folder)
    if model.encoder.modality != "image":
        raise ValueError(f"{model_folder} is a model of {model.encoder.modality}: pictures are drawn of image models")
    if num_images < FEWEST_MAPPED:
        raise ValueError(f"num_images={num_images}, but a map needs at least {FEWEST_MAPPED}")
    modality = recorded_data(config, data, cache_dir=None if cache_dir is None else str(cache_dir), skip_bad=skip_bad)
    modality.check_encoder(model.encoder)
    corpus = modality.open(model.encoder)
    corpus.check(split, among)
    shown, others = (_drawn(corpus.windows(name), num_images, seed) for name in (split, among))
    if len(shown.images) < FEWEST_MAPPED:
        raise ValueError(
            f"split {split!r} of {data} has {len(shown.images)} images, but a map needs at least {FEWEST_MAPPED}: "
            "name another split"
        )
    changed = corpus.windows(split, is_training=True)
    pictures = {
        "patches.png": picture_patches(shown, changed, corpus, seed),
        "neighbours.png": picture_neighbours(model, shown, others, corpus, seed),
        "map.png": picture_map(model, shown, corpus, seed),
    }
    paths = []
    for name, picture in pictures.items():
        path = Path(out) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as new:
            picture.save(new, format="PNG", optimize=True)
        paths.append(path)
    return paths


def picture_patches(shown: ImageDataset, changed: ImageDataset, corpus: ImageCorpus, seed: int = 0) -> Image.Image:
    """An image, its grid of patches as cut, and the same patches as training changes them, once.

    Args:
        shown: unchanged images; the one of most contrast among 16 of them is drawn.
        changed: images of the same split, as training changes them.
        corpus: both are of it.
        seed: of the image and of the changes.
    """
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(shown.images))[:16]
    pixels = shown.pixels(rows)
    chosen = int(pixels.std((1, 2, 3)).argmax())
    image, label = pixels[chosen], int(shown.images.labels[rows[chosen]])
    grid = corpus.geometry.grid
    cut = grid.patches(pixels[chosen : chosen + 1])[0]
    panels = [
        (f"an image of {_class_name(corpus, label)}" if label >= 0 else "an image", _enlarged(image, 360)),
        (f"its patches as cut: {grid.patch_size} pixels every {grid.stride}", _sheet_of_patches(cut)),
    ]
    if changed.augmentation is not None and changed.augmentation.kind != "none":
        x = changed.augmentation(pixels[chosen : chosen + 1], np.array([seed]))[0]
        panels.append((f"as training changed them once ({changed.augmentation.kind})", _sheet_of_patches(x)))
    else:
        panels.append(("training does not change them", _sheet_of_patches(cut)))
    height = max(panel.height for _, panel in panels)
    sheet = Image.new(
        "RGB",
        (2 * MARGIN + sum(panel.width + 2 * GAP for _, panel in panels) - 2 * GAP, 2 * MARGIN + LINE + height),
        PAPER,
    )
    left = MARGIN
    for words, panel in panels:
        write_words(sheet, (left, MARGIN - 2), words, panel.width)
        sheet.paste(panel, (left, MARGIN + LINE))
        left += panel.width + 2 * GAP
    return sheet


def picture_neighbours(
    model: CPC,
    shown: ImageDataset,
    others: ImageDataset,
    corpus: ImageCorpus,
    seed: int = 0,
    num_queries: int = 8,
    num_neighbours: int = 8,
) -> Image.Image:
    """Patches of some images, each with the patches of other images that are nearest by the cosine of centred z.

    Patches of little contrast are not asked for. Patches that are pixel by pixel the query, or a neighbour shown
    already, are passed over: crops that overlap hold the same ones.

    Args:
        model: in eval mode.
        shown: where queries are drawn, of different classes as far as there are.
        others: where neighbours are looked for.
        corpus: both are of it.
        seed: of the queries.
        num_queries: rows.
        num_neighbours: of each.
    """
    grid = corpus.geometry.grid
    z, bank = (rearrange(_latents(model, images), "n h w d -> n (h w) d") for images in (shown, others))
    mean = bank.mean((0, 1))
    z, bank = F.normalize(z - mean, dim=-1), F.normalize(bank - mean, dim=-1)
    pixels, candidates = (
        rearrange(grid.patches(images.pixels(np.arange(len(images.images)))), "n h w c p q -> n (h w) c p q")
        for images in (shown, others)
    )
    queries = _queries(pixels, shown.images.labels, num_queries, np.random.default_rng(seed))
    tile, first = 72, 96
    row_height = first + LINE
    sheet = Image.new(
        "RGB",
        (
            2 * MARGIN + 2 * (first + GAP) + GAP + num_neighbours * (tile + GAP) - GAP,
            2 * MARGIN + LINE + len(queries) * (row_height + GAP) - GAP,
        ),
        PAPER,
    )
    left_of_neighbours = MARGIN + 2 * (first + GAP) + GAP
    write_words(sheet, (MARGIN, MARGIN - 4), "image", first)
    write_words(sheet, (MARGIN + first + GAP, MARGIN - 4), "patch", first)
    words = "nearest patches of other images, with the cosine of z"
    write_words(sheet, (left_of_neighbours, MARGIN - 4), words, sheet.width - left_of_neighbours)
    for number, (image, place) in enumerate(queries):
        top = MARGIN + LINE + number * (row_height + GAP)
        boxed = _boxed(shown.pixels(np.array([image]))[0], place, grid, first)
        sheet.paste(boxed, (MARGIN, top))
        write_words(sheet, (MARGIN, top + first), _class_name(corpus, int(shown.images.labels[image])), first)
        sheet.paste(_framed(_sized(pixels[image, place], first - 6), MARK), (MARGIN + first + GAP, top))
        found = nearest_patches(
            z[image, place],
            bank,
            candidates,
            pixels[image, place],
            others.sequence_ids != shown.sequence_ids[image],
            num_neighbours,
        )
        for column, (other, other_place, cosine) in enumerate(found):
            left = left_of_neighbours + column * (tile + GAP)
            sheet.paste(_sized(candidates[other, other_place], tile), (left, top + (first - tile) // 2))
            below = top + (first + tile) // 2
            write_words(sheet, (left, below), f"{cosine:.2f}", tile)
            write_words(sheet, (left, below + LINE - 3), _class_name(corpus, int(others.images.labels[other])), tile)
    return sheet


def picture_map(model: CPC, images: ImageDataset, corpus: ImageCorpus, seed: int = 0) -> Image.Image:
    """Images at the places of their contexts: mean over the grid, 30 principal components, t-SNE.

    Frames tell classes apart. Where thumbnails would cover each other, later ones lie on top.

    Args:
        model: in eval mode.
        images: at least `FEWEST_MAPPED`.
        corpus: whose classes they are of.
        seed: of t-SNE.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage
    from matplotlib.patches import Patch

    places = _places(_contexts(model, images), seed)
    figure = Figure(figsize=(11.3, 9.2), facecolor=PAPER, layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    axes.set(xlim=(-0.03, 1.03), ylim=(1.03, -0.03))
    labels = images.images.labels.tolist()
    colours = _colours(labels)
    for image, label, place in zip(images.pixels(np.arange(len(labels))), labels, places, strict=True):
        thumbnail = OffsetImage(np.asarray(_sized(image, THUMBNAIL)), dpi_cor=False)
        frame = dict(edgecolor=colours[label], linewidth=2)
        axes.add_artist(AnnotationBbox(thumbnail, place, pad=0, bboxprops=frame))
    shown = [Patch(color=colours[label], label=_class_name(corpus, label)) for label in colours][:MOST_IN_LEGEND]
    if len(shown) < len(colours):
        shown.append(Patch(color=PAPER, label=f"and {len(colours) - len(shown)} more"))
    if set(labels) != {-1}:
        figure.legend(handles=shown, loc="outside right upper", frameon=False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def nearest_patches(
    query: Float[Tensor, " D"],
    bank: Float[Tensor, "n L D"],
    candidates: Float[Tensor, "n L C P P"],
    pixels: Float[Tensor, "C P P"],
    is_other: np.ndarray,
    num: int,
) -> list[tuple[int, int, float]]:
    """The patches of other images that are nearest in z and look different from each other and from the query.

    Args:
        query: latent of the patch asked for, of unit length.
        bank: latents to choose from, L of each image, of unit length.
        candidates: their pixels.
        pixels: those of the patch asked for.
        is_other: `[n]` which images may be chosen from.
        num: how many, at most.

    Returns:
        (image, place, cosine) of each, the nearest first.
    """
    cosines = torch.where(torch.from_numpy(is_other)[:, None], bank @ query, -torch.inf).flatten()
    seen = [pixels]
    found: list[tuple[int, int, float]] = []
    for flat in cosines.argsort(descending=True, stable=True).tolist():
        image, place = divmod(flat, bank.shape[1])
        if len(found) == num or not is_other[image]:
            break
        patch = candidates[image, place]
        if not any(torch.equal(patch, other) for other in seen):
            seen.append(patch)
            found.append((image, place, float(cosines[flat])))
    return found


def _drawn(images: ImageDataset, num: int, seed: int) -> ImageDataset:
    order = np.random.default_rng(seed).permutation(len(images.images))
    return images.subset(np.sort(order[:num]))


@torch.no_grad()
def _latents(model: CPC, images: ImageDataset) -> Float[Tensor, "n H W D"]:
    return torch.cat([model.encoder(x).float() for x in _batches(images)])


@torch.no_grad()
def _contexts(model: CPC, images: ImageDataset) -> Float[np.ndarray, "n D"]:
    """Means over the grid."""
    return torch.cat([model(x).contexts.float().mean((1, 2)) for x in _batches(images)]).numpy()


def _batches(images: ImageDataset) -> Iterator[Tensor]:
    num = len(images.images)
    for start in range(0, num, _BATCH_IMAGES):
        yield images.__getitems__([(row, 0) for row in range(start, min(start + _BATCH_IMAGES, num))]).x


def _queries(
    pixels: Float[Tensor, "n L C P P"], labels: np.ndarray, num: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """(image, place) of some patches with more than the median contrast, class after class in random order."""
    contrast = pixels.std((2, 3, 4)).numpy()
    turns: dict[int, int] = {}
    ranked = []
    for image in rng.permutation(len(pixels)).tolist():
        (places,) = np.nonzero(contrast[image] >= np.median(contrast))
        if len(places):
            turn = turns[labels[image]] = turns.get(labels[image], -1) + 1
            ranked.append((turn, image, int(rng.choice(places))))
    ranked.sort(key=lambda query: query[0])
    return [(image, place) for _, image, place in ranked[:num]]


def _places(contexts: np.ndarray, seed: int) -> np.ndarray:
    """Contexts `[n, D]` in the unit square `[n, 2]`."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if np.ptp(contexts, 0).max() == 0:  # collapsed
        return np.full((len(contexts), 2), 0.5)
    standardised = (contexts - contexts.mean(0)) / (contexts.std(0) + 1e-6)
    principal = PCA(min(30, *standardised.shape), svd_solver="full").fit_transform(standardised)
    perplexity = min(30, (len(contexts) - 1) / 3)
    # Exact: sums in one order, so that the same contexts lie at the same places every time.
    tsne = TSNE(2, init="pca", method="exact", perplexity=perplexity, random_state=seed)
    points = tsne.fit_transform(principal)
    return (points - points.min(0)) / np.maximum(np.ptp(points, 0), 1e-12)


def _picture(pixels: Float[Tensor, "C S R"]) -> Image.Image:
    grey_or_colour = rearrange(255 * pixels.clamp(0, 1), "c s r -> s r c").round().byte().numpy()
    return Image.fromarray(grey_or_colour.squeeze(2) if grey_or_colour.shape[2] == 1 else grey_or_colour).convert("RGB")


def _sized(pixels: Float[Tensor, "C S R"], side: int) -> Image.Image:
    return _picture(pixels).resize((side, side), Image.Resampling.BICUBIC)


def _enlarged(pixels: Float[Tensor, "C S R"], side: int) -> Image.Image:
    """By a whole number, to about a side: pixels stay squares."""
    factor = max(1, round(side / pixels.shape[1]))
    return _picture(pixels).resize((factor * pixels.shape[2], factor * pixels.shape[1]), Image.Resampling.NEAREST)


def _sheet_of_patches(patches: Float[Tensor, "H W C P P"]) -> Image.Image:
    """The patches with gaps between, at about the size of the image."""
    num_rows, num_columns, _, side, _ = patches.shape
    size = side * max(1, round(360 / (side * num_columns)))
    sheet = Image.new("RGB", (num_columns * (size + 4) - 4, num_rows * (size + 4) - 4), PAPER)
    for row in range(num_rows):
        for column in range(num_columns):
            patch = _picture(patches[row, column]).resize((size, size), Image.Resampling.NEAREST)
            sheet.paste(patch, (column * (size + 4), row * (size + 4)))
    return sheet


def _boxed(image: Float[Tensor, "C S R"], place: int, grid: Any, side: int) -> Image.Image:
    """The image with a frame around one of its patches."""
    row, column = divmod(place, grid.side(image.shape[2]))
    scale = side / image.shape[1]
    sized = _sized(image, side)
    left, top = column * grid.stride * scale, row * grid.stride * scale
    box = (left, top, left + grid.patch_size * scale - 1, top + grid.patch_size * scale - 1)
    ImageDraw.Draw(sized).rectangle(box, outline=MARK, width=2)
    return sized


def _framed(picture: Image.Image, colour: str, width: int = 3) -> Image.Image:
    framed = Image.new("RGB", (picture.width + 2 * width, picture.height + 2 * width), colour)
    framed.paste(picture, (width, width))
    return framed


def _class_name(corpus: ImageCorpus, label: int) -> str:
    return corpus.classes[label] if label >= 0 else "no label"


def _colours(labels: Sequence[int]) -> dict[int, Any]:
    """Of every class; beyond twenty they repeat."""
    from matplotlib import colormaps

    pairs = colormaps["tab20"](np.arange(20))
    palette = np.concatenate([pairs[::2], pairs[1::2]])  # dark, then light
    return {label: palette[label % len(palette)] if label >= 0 else _UNLABELLED for label in sorted(set(labels))}
