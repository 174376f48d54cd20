"""Figures for a model of images: patches as cut and as augmented, neighbours in z, a map of contexts.

n images, H rows and W columns of patches, L patches of an image, P patch side, S image side, C channels, D feature dim.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from cpc.data.figure_text import figure_text
from cpc.data.images.corpus import ImageCorpus, ImageDataset
from cpc.encoders.patch_grid import PatchGrid

FEWEST_MAPPED = 10
MOST_IN_LEGEND = 40
THUMBNAIL = 30  # pixels
PAPER, MARK, NO_CLASS = "#eef0f3", "#d55e00", "#c3c8cf"
_BATCH_IMAGES = 64


def draw_figures(
    model: Any, corpus: ImageCorpus, *, split: str, among: str, num_images: int, seed: int
) -> dict[str, Any]:
    """Draw the figures `patches`, `neighbours` and `map`; see `cpc.data.Modality.figures`.

    Raises:
        ValueError: if a split has no images, or fewer than `FEWEST_MAPPED` would be shown.
    """
    corpus.check(split, among)
    shown, others = (_sample(corpus.windows(name), num_images, seed) for name in (split, among))
    if len(shown.rows) < FEWEST_MAPPED:
        raise ValueError(
            f"split {split!r} of {corpus.options.source} shows {len(shown.rows)} images, but a map needs at least "
            f"{FEWEST_MAPPED}: name another `split`, or raise `num_images`={num_images}"
        )
    return {
        "patches": plot_patches(shown, corpus.encoder.grid, seed),
        "neighbours": plot_neighbours(model, shown, others, seed),
        "map": plot_map(model, shown, seed),
    }


def plot_patches(images: ImageDataset, grid: PatchGrid, seed: int = 0) -> Any:
    """Draw the image of most contrast among 16, its patches as cut, and these patches augmented at random."""
    some = images.subset(np.random.default_rng(seed).permutation(len(images.rows))[:16])
    chosen = int(some.pixels().std((1, 2, 3)).argmax())
    image, class_name = some.pixels()[chosen : chosen + 1], _class_name(some, chosen)
    cut = changed = grid.patches(image)[0]
    words = "training does not change them"
    if images.augmentation is not None and images.augmentation.kind != "none":
        changed = images.augmentation(image, np.array([seed]))[0]
        words = f"as training changed them once ({images.augmentation.kind})"
    panels = {
        f"an image ({class_name})": image[0],
        f"its patches as cut: {grid.patch_size} pixels every {grid.stride}": _sheet(cut),
        words: _sheet(changed),
    }
    figure = _figure(13.0, 4.8)
    for axes, (title, pixels) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        axes.imshow(_colours(pixels), interpolation="nearest")
        axes.set_title(title, fontsize=10)
        axes.axis("off")
    return figure


def plot_neighbours(
    model: Any, shown: ImageDataset, others: ImageDataset, seed: int = 0, num_queries: int = 8, num_neighbours: int = 8
) -> Any:
    """Draw patches of some images, each with the nearest patches of other images by the cosine of centred z.

    Queries come from different classes as far as possible, and have enough contrast. Neighbours with
    the same pixels as the query or an earlier neighbour are left out, since overlapping crops hold equal patches.
    """
    from matplotlib.patches import Rectangle

    grid, images = model.encoder.grid, shown.pixels()
    z, bank = (rearrange(_batched(model, model.encoder, each), "n h w d -> n (h w) d") for each in (shown, others))
    z, bank = (F.normalize(vectors - bank.mean((0, 1)), dim=-1) for vectors in (z, bank))
    pixels, candidates = (
        rearrange(grid.patches(squares), "n h w c p q -> n (h w) c p q") for squares in (images, others.pixels())
    )
    queries = _queries(pixels, shown.labels, num_queries, np.random.default_rng(seed))
    figure = _figure(1.15 * (num_neighbours + 2), 1.6 * len(queries))
    figure.suptitle("an image, one of its patches, and the nearest patches of other images, with the cosine of z")

    def tile(axes: Any, pixels: Tensor, words: str = "") -> None:
        axes.imshow(_colours(pixels), interpolation="nearest")
        axes.set_title(words, fontsize=8)
        axes.axis("off")

    rows = figure.subplots(len(queries), num_neighbours + 2, squeeze=False)
    for row, (image, position) in zip(rows, queries, strict=True):
        query, side = pixels[image, position], grid.side(images.shape[2])
        corner = np.array(divmod(position, side))[::-1] * grid.stride - 0.5
        tile(row[0], images[image], _class_name(shown, image))
        row[0].add_patch(Rectangle(corner, grid.patch_size, grid.patch_size, fill=False, edgecolor=MARK, linewidth=2))
        tile(row[1], query)
        is_other = others.sequence_ids != shown.sequence_ids[image]
        nearest = nearest_patches(z[image, position], bank, candidates, query, is_other, num_neighbours)
        for axes, (other, other_position, cosine) in zip(row[2:], nearest, strict=False):
            tile(axes, candidates[other, other_position], f"{cosine:.2f}\n{_class_name(others, other)}")
        for axes in row[2 + len(nearest) :]:
            axes.axis("off")
    return figure


def plot_map(model: Any, images: ImageDataset, seed: int = 0) -> Any:
    """Draw images at the t-SNE coordinates of 30 principal components of their mean contexts.

    The colour of a frame is the image's class. Later thumbnails may cover earlier ones.
    """
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage
    from matplotlib.patches import Patch

    contexts = _batched(model, lambda x: model(x).contexts.float().mean((1, 2)), images)
    figure = _figure(11.3, 9.2)
    axes = figure.subplots()
    axes.axis("off")
    axes.set(xlim=(-0.03, 1.03), ylim=(1.03, -0.03))
    colours = _class_colours(images.labels.tolist())
    thumbnails = zip(images.pixels(), images.labels.tolist(), _map_coordinates(contexts.numpy(), seed), strict=True)
    for pixels, label, point in thumbnails:
        thumbnail = OffsetImage(_colours(pixels), zoom=THUMBNAIL / images.image_size, dpi_cor=False)
        frame = dict(edgecolor=colours[label], linewidth=2)
        axes.add_artist(AnnotationBbox(thumbnail, point, pad=0, bboxprops=frame))
    names = {int(label): _class_name(images, i) for i, label in enumerate(images.labels)}
    shown = [Patch(color=colours[label], label=names[label]) for label in colours][:MOST_IN_LEGEND]
    if len(shown) < len(colours):
        shown.append(Patch(color=PAPER, label=f"and {len(colours) - len(shown)} more"))
    if set(colours) != {-1}:
        figure.legend(handles=shown, loc="outside right upper", frameon=False)
    return figure


def nearest_patches(
    query: Float[Tensor, " D"],
    bank: Float[Tensor, "n L D"],
    candidates: Float[Tensor, "n L C P P"],
    pixels: Float[Tensor, "C P P"],
    is_other: np.ndarray,
    num: int,
) -> list[tuple[int, int, float]]:
    """Return (image, position, cosine) of the nearest patches that differ in pixels from the query and each other.

    Args:
        query: latent of the query patch, of unit length.
        bank: latents of the candidates, of unit length.
        candidates: pixels of the candidates.
        pixels: pixels of the query patch.
        is_other: `[n]` whether an image's patches are candidates.
        num: largest number of patches.
    """
    cosines = torch.where(torch.from_numpy(is_other)[:, None], bank @ query, -torch.inf).flatten()
    seen = [pixels]
    nearest: list[tuple[int, int, float]] = []
    for flat in cosines.argsort(descending=True, stable=True).tolist():
        image, position = divmod(flat, bank.shape[1])
        if len(nearest) == num or not is_other[image]:
            break
        patch = candidates[image, position]
        if not any(torch.equal(patch, other) for other in seen):
            seen.append(patch)
            nearest.append((image, position, float(cosines[flat])))
    return nearest


def _sample(images: ImageDataset, num: int, seed: int) -> ImageDataset:
    order = np.random.default_rng(seed).permutation(len(images.rows))
    return images.subset(np.sort(order[:num]))


@torch.no_grad()
def _batched(model: Any, function: Callable[[Tensor], Tensor], images: ImageDataset) -> Tensor:
    """Return a function of all images on the CPU, computed in batches on the device of the model."""
    weights = next(model.parameters())
    parts = np.array_split(np.arange(len(images.rows)), range(_BATCH_IMAGES, len(images.rows), _BATCH_IMAGES))
    batches = (images.subset(part).all_images().beside(weights) for part in parts)
    return torch.cat([function(batch.x).float().cpu() for batch in batches])


def _queries(
    pixels: Float[Tensor, "n L C P P"], labels: np.ndarray, num: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Return (image, position) of some patches with at least the median contrast. Classes take turns."""
    contrast = pixels.std((2, 3, 4)).numpy()
    turns: Counter[int] = Counter()
    ranked = []
    for image in rng.permutation(len(pixels)).tolist():
        (positions,) = np.nonzero(contrast[image] >= np.median(contrast))
        if len(positions):
            ranked.append((turns[labels[image]], image, int(rng.choice(positions))))
            turns[labels[image]] += 1
    return [(image, position) for _, image, position in sorted(ranked, key=itemgetter(0))[:num]]


def _map_coordinates(contexts: np.ndarray, seed: int) -> np.ndarray:
    """Return coordinates of contexts `[n, D]` in the unit square, `[n, 2]`."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if np.ptp(contexts, 0).max() == 0:  # the contexts have collapsed
        return np.full((len(contexts), 2), 0.5)
    standardised = (contexts - contexts.mean(0)) / (contexts.std(0) + 1e-6)
    principal = PCA(min(30, *standardised.shape), svd_solver="full").fit_transform(standardised)
    perplexity = min(30, (len(contexts) - 1) / 3)
    # The exact method sums in a fixed order, so equal contexts always give equal coordinates.
    tsne = TSNE(2, init="pca", method="exact", perplexity=perplexity, random_state=seed)
    points = tsne.fit_transform(principal)
    return (points - points.min(0)) / np.maximum(np.ptp(points, 0), 1e-12)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")


def _colours(pixels: Float[Tensor, "C S R"]) -> Float[np.ndarray, "S R 3"]:
    """Return grey or colour pixels in matplotlib's layout."""
    return rearrange(pixels.clamp(0, 1).expand(3, -1, -1), "c s r -> s r c").numpy()


def _sheet(patches: Float[Tensor, "H W C P P"]) -> Float[Tensor, "C S R"]:
    """Join the patches, with white gaps."""
    gap = max(1, patches.shape[-1] // 8)
    return rearrange(F.pad(patches, (0, gap, 0, gap), value=1.0), "h w c p q -> c (h p) (w q)")


def _class_name(images: ImageDataset, index: int) -> str:
    """Return an image's class, shortened to fit into a figure."""
    label = images.labels[index]
    name = images.table.classes[label] if label >= 0 else "no label"
    return figure_text(name if len(name) < 20 else f"{name[:17]}...")


def _class_colours(labels: Sequence[int]) -> dict[int, Any]:
    """Return a colour for every class; after twenty classes colours repeat."""
    from matplotlib import colormaps

    pairs = colormaps["tab20"](np.arange(20))
    palette = np.concatenate([pairs[::2], pairs[1::2]])  # ten dark, then ten light colours
    return {label: palette[label % len(palette)] if label >= 0 else NO_CLASS for label in sorted(set(labels))}
