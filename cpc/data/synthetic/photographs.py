"""The embedded images: real photographs and digits from installed packages, which need no download.

- photographs: grey crops of the photographs in scikit-image's wheel, which are the classes. Blocks of a photograph
  belong to one split each, so no pixel of a held-out crop is used in training. Crops of a block overlap: the array
  `sequence` holds the index of the block.
- digits: scikit-learn's 1797 handwritten digits, enlarged; splits are contiguous parts, which are ordered by writer.

h w sides of a photograph, n crops, S crop side.
"""

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Shaped, UInt8
from PIL import Image

from cpc.config.extras import install_hint
from cpc.data.images.files import convert_channels
from cpc.data.store.untrusted import read_json
from cpc.data.synthetic.record import REMEDY, make_once

CORPORA = ("photographs", "digits")
PROVENANCE_NAME = "images.json"
# Files of scikit-image's data folder, without drawings, masks, the right motorcycle (the same scene as the left
# motorcycle) and microaneurysms.png (hardly larger than a crop).
PHOTOGRAPHS = tuple(
    """
    astronaut.png brick.png camera.png cell.png chelsea.png clock_motion.png coffee.png coins.png grass.png
    gravel.png hubble_deep_field.jpg ihc.png moon.png motorcycle_left.png page.png retina.jpg rocket.jpg text.png
    """.split()
)
LONGEST_SIDE = 1000  # larger photographs are halved, since a crop would show almost nothing
BLOCK_SIZE = 96  # approximate, so that equal blocks fill the photograph
CROP_SIZE = 64
CROP_STRIDE = 8
BLOCK_SHARES = {"test": 0.3, "valid": 0.1}  # shares of each photograph's blocks; all further blocks are for training
MOST_CROPS = {"train": 400, "valid": 40, "test": 40}  # largest number of crops of each photograph
DIGIT_SIZE = 32
DIGIT_SHARES = {"train": 0.6, "valid": 0.1, "test": 0.3}  # the splits are contiguous parts in this order

# Version of the recipe; raise it whenever the same parameters give other images.
_RECIPE = 2


def write_image_corpora(out: str | Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the embedded corpora, unless they exist already; `seed` is that of the choice of blocks and crops."""
    out, sources = Path(out), photograph_files()
    digest = _digest(path.read_bytes() for path in sources.values())
    parameters = {"recipe": _RECIPE, "seed": seed, "photographs_sha256": digest}
    files = {name: out / f"{name}.npz" for name in CORPORA}

    def make(folder: Path) -> dict[str, Any]:
        arrays: dict[str, dict[str, Any]] = {"photographs": _photographs(sources, seed), "digits": _digits()}
        for name, corpus in arrays.items():
            np.savez(folder / f"{name}.npz", **corpus)
        return {
            "corpus": "crops of scikit-image's photographs, and scikit-learn's handwritten digits",
            "num_bytes": {f"{name}.npz": (folder / f"{name}.npz").stat().st_size for name in arrays},
            "images_sha256": {name: _digest([corpus["images"].tobytes()]) for name, corpus in arrays.items()},
        }

    if not make_once(out, PROVENANCE_NAME, parameters, make):
        num_bytes = read_json(out / PROVENANCE_NAME).get("num_bytes", {})
        sizes = {path.name: path.stat().st_size for path in files.values() if path.is_file()}
        if sizes != num_bytes:
            raise ValueError(f"{out} is incomplete: {REMEDY}")
    return files


def photograph_files() -> dict[str, Path]:
    """Return the files of the photographs by class, without importing scikit-image and its downloader."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        raise ValueError(f"the photographs come from scikit-image: {install_hint('image')}")
    folder = Path(package.origin).parent / "data"
    missing = [name for name in PHOTOGRAPHS if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} has no {', '.join(missing)}: install scikit-image 0.25 or 0.26")
    return {re.split("[_.]", name)[0]: folder / name for name in PHOTOGRAPHS}


def cut_crops(
    photograph: Shaped[np.ndarray, "h w"], rng: np.random.Generator
) -> dict[str, list[Shaped[np.ndarray, "n S S"]]]:
    """Assign blocks of a photograph to splits at random, at least one each; return all crops of each block by split."""
    blocks = _blocks(photograph)
    order = rng.permutation(len(blocks)).tolist()
    split_blocks: dict[str, list[int]] = {}
    for split, share in BLOCK_SHARES.items():
        num = max(1, round(share * len(blocks)))
        split_blocks[split], order = order[:num], order[num:]
    split_blocks["train"] = order
    return {split: [_crops(blocks[index]) for index in sorted(indices)] for split, indices in split_blocks.items()}


def _blocks(photograph: Shaped[np.ndarray, "h w"]) -> list[np.ndarray]:
    """Cut a photograph into blocks of nearly equal size, which cover all of its pixels."""
    rows, columns = (np.array_split(np.arange(side), max(1, round(side / BLOCK_SIZE))) for side in photograph.shape)
    return [photograph[row[0] : row[-1] + 1, column[0] : column[-1] + 1] for row in rows for column in columns]


def _crops(block: np.ndarray) -> np.ndarray:
    crops = np.lib.stride_tricks.sliding_window_view(block, (CROP_SIZE, CROP_SIZE))[::CROP_STRIDE, ::CROP_STRIDE]
    return rearrange(crops, "h w s r -> (h w) s r")


def _photographs(sources: dict[str, Path], seed: int) -> dict[str, np.ndarray]:
    crops = {
        name: cut_crops(_read(path), np.random.default_rng([seed, *name.encode()])) for name, path in sources.items()
    }
    num_test = min(sum(map(len, splits["test"])) for splits in crops.values())
    num_crops = MOST_CROPS | {"test": min(MOST_CROPS["test"], num_test)}
    images, labels, split_names, sequences = [], [], [], []
    num_blocks = 0
    for label, (name, splits) in enumerate(crops.items()):
        rng = np.random.default_rng([seed, *name.encode(), 1])
        for split, num in num_crops.items():
            chosen, block = _choose_crops(splits[split], num, rng)
            images.append(chosen)
            labels += [label] * len(chosen)
            split_names += [split] * len(chosen)
            sequences.append(num_blocks + block)
            num_blocks += len(splits[split])
    return {
        "images": np.concatenate(images),
        "labels": np.array(labels),
        "split": np.array(split_names),
        "classes": np.array(list(crops)),
        "sequence": np.concatenate(sequences),
    }


def _read(path: Path) -> UInt8[np.ndarray, "h w"]:
    try:
        with Image.open(path) as image:
            grey = convert_channels(image, 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be decoded ({error}); install scikit-image again") from error
    while max(grey.size) > LONGEST_SIDE:
        grey = grey.reduce(2)
    return np.asarray(grey)


def _choose_crops(blocks: list[np.ndarray], num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Choose `num` random crops, equally many per block if possible; return the crops and their blocks."""
    turns = np.concatenate([rng.permutation(len(crops)) for crops in blocks])
    chosen = np.sort(np.argsort(turns + rng.random(len(turns)))[:num])
    block_indices = np.repeat(np.arange(len(blocks)), [len(crops) for crops in blocks])
    return np.concatenate(blocks)[chosen], block_indices[chosen]


def _digits() -> dict[str, np.ndarray]:
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    grey = np.rint(255 / 16 * rearrange(small, "n (h w) -> n h w", h=8)).astype(np.uint8)
    size = (DIGIT_SIZE, DIGIT_SIZE)
    images = [np.asarray(Image.fromarray(digit).resize(size, Image.Resampling.BICUBIC)) for digit in grey]
    edges = np.rint(np.cumsum([0.0, *DIGIT_SHARES.values()]) * len(images)).astype(int)
    return {
        "images": np.stack(images),
        "labels": labels.astype(np.int64),
        "split": np.repeat(list(DIGIT_SHARES), np.diff(edges)),
        "classes": np.array([str(digit) for digit in range(10)]),
    }


def _digest(parts: Any) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()
