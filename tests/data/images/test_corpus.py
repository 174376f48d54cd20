"""Images as training takes them: what a key decides, what stands still, what is refused."""

import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refuses

from cpc.data import Images
from cpc.data.images.corpus import ImageCorpus, ImageDataset
from cpc.data.images.patch_augmentation import PatchAugmentation, keyed_uniforms
from cpc.data.map_style import HeldOut
from cpc.data.store.fingerprints import num_shared
from cpc.encoders.patch_grid import PatchGrid

SIDE = 14  # of the images in the source
SPLITS = ["train"] * 20 + ["valid"] * 5 + ["unlabelled"] * 3


class Geometry:
    """What a corpus asks of an encoder."""

    def __init__(
        self, patch_size: int = 8, stride: int = 4, num_channels: int = 3, fully_convolutional: bool = False
    ) -> None:
        self.grid = PatchGrid(patch_size, stride)
        self.num_channels = num_channels
        self.fully_convolutional = fully_convolutional
        self.pixel_mean = torch.linspace(0.25, 0.5, num_channels)


PATCHES, WHOLE = Geometry(), Geometry(2, 2, fully_convolutional=True)
OpenCorpus = Callable[..., ImageCorpus]


def open_source(source: Path, geometry: Geometry, image_size: int, **options: object) -> ImageCorpus:
    return Images(source=str(source), image_size=image_size, **{"augmentation": "none", **options}).open(geometry)


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """Noise, darker in training: every window of it is known by its pixels."""
    noise = np.random.default_rng(0).integers(0, 200, (len(SPLITS), SIDE, SIDE, 3), np.uint8)
    noise[20:] += 50
    return noise


@pytest.fixture(scope="module")
def source(pixels: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "noise.npz"
    labels = np.where(np.array(SPLITS) == "unlabelled", -1, np.arange(len(SPLITS)) % 3)
    np.savez(path, images=pixels, labels=labels, split=SPLITS, classes=["a", "b", "c"])
    return path


@pytest.fixture
def open_corpus(source: Path) -> OpenCorpus:
    def open_(geometry: Geometry = PATCHES, image_size: int = 12, **options: object) -> ImageCorpus:
        return open_source(source, geometry, image_size, **{"load_size": SIDE, "flip": True, **options})

    return open_


def cut(image: np.ndarray, top: int, left: int, size: int = 12) -> np.ndarray:
    """A window of an image, channels first, in [0, 1]."""
    return image[top : top + size, left : left + size].transpose(2, 0, 1) / np.float32(255)


def taken(windows: ImageDataset, places: np.ndarray) -> ImageDataset:
    return replace(windows, rows=windows.rows[places])


def keyed(rows: list[int], first_key: int = 0) -> list[tuple[int, int]]:
    return [(row, first_key + number) for number, row in enumerate(rows)]


def test_a_split_holds_its_images_and_who_they_are(open_corpus: OpenCorpus, pixels: np.ndarray) -> None:
    corpus = open_corpus(WHOLE, SIDE)
    for split in ("train", "valid", "unlabelled"):
        windows = corpus.windows(split)
        rows = [row for row, own in enumerate(SPLITS) if own == split]
        batch = windows.__getitems__([(place, 7) for place in reversed(range(len(rows)))])
        assert batch.x.shape == (len(rows), 3, SIDE, SIDE)
        np.testing.assert_array_equal(batch.x, [cut(pixels[row], 0, 0, SIDE) for row in reversed(rows)])
        assert batch.sequence_id.tolist() == rows[::-1]
        assert batch.labels.tolist() == [[-1 if split == "unlabelled" else row % 3] for row in reversed(rows)]
        assert batch.num_valid.tolist() == [SIDE] * len(rows)
        assert batch.group_id.tolist() == [-1] * len(rows)
    assert len(corpus.windows(None).rows) == len(SPLITS)
    assert corpus.table.classes == ["a", "b", "c"]


def test_held_out_images_are_left_to_no_chance(open_corpus: OpenCorpus, pixels: np.ndarray) -> None:
    """Cut in the middle, not mirrored, patches as they are; whatever the key."""
    held_out = open_corpus().windows("valid")
    one, other = (held_out.__getitems__(keyed([3, 0, 1], key)).x for key in (0, 2**39))
    assert torch.equal(one, other)
    assert one.shape == (3, 2, 2, 3, 8, 8)
    for place, row in enumerate((23, 20, 21)):
        middle = cut(pixels[row], 1, 1)
        for i, j in np.ndindex(2, 2):
            np.testing.assert_array_equal(one[place, i, j], middle[:, 4 * i : 4 * i + 8, 4 * j : 4 * j + 8])
        np.testing.assert_array_equal(taken(held_out, np.array([row - 20])).pixels()[0], middle)


def test_the_key_decides_cut_and_mirror(open_corpus: OpenCorpus, pixels: np.ndarray) -> None:
    """Found again among all windows of the image: 3 x 3 places, mirrored or not, all as often."""
    places = {
        cut(pixels[4], top, left)[..., ::step].tobytes(): (top, left, step)
        for top, left, step in itertools.product(range(3), range(3), (1, -1))
    }
    assert len(places) == 18
    for flip, num_places in ((True, 18), (False, 9)):
        windows = open_corpus(WHOLE, flip=flip).windows("train", is_training=True)
        x = windows.__getitems__(keyed([4] * 3600)).x
        counts = Counter(places[image.numpy().tobytes()] for image in x)
        assert len(counts) == num_places
        assert ({step for _, _, step in counts} == {1}) == (not flip)
        expected = 3600 / num_places
        chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
        assert chi_square < (40.8 if flip else 26.1)  # 17 and 8 degrees of freedom, p = 0.001


def test_where_an_image_is_cut_says_nothing_about_how_its_patches_are_changed(open_corpus: OpenCorpus) -> None:
    """Both follow from the key; with the same numbers, patches at the top would always be cut at their top."""
    keys = np.arange(3000)
    windows = open_corpus(WHOLE).windows("train", is_training=True)
    x = windows.__getitems__([(4, key) for key in keys.tolist()]).x.numpy()
    whole = taken(open_corpus(WHOLE, SIDE).windows("train"), np.array([4])).pixels()[0].numpy()
    tops = [
        next(t for t in range(3) for p in range(3) for s in (1, -1) if _is_at(image, whole, t, p, s)) for image in x
    ]
    of_patches = keyed_uniforms(keys, 4)
    for number in range(4):
        assert abs(np.corrcoef(tops, of_patches[:, number])[0, 1]) < 5 / np.sqrt(3000)


def _is_at(image: np.ndarray, whole: np.ndarray, top: int, left: int, step: int) -> bool:
    return np.array_equal(image, whole[:, top : top + 12, left : left + 12][..., ::step])


def test_chance_of_images_leaves_patches_alone(open_corpus: OpenCorpus, pixels: np.ndarray) -> None:
    """`none`, `images` and `patches`, where there is nothing to cut or mirror: the middle one equals the first."""
    corpus = open_corpus(image_size=12, load_size=12, flip=False, augmentation="v2")
    windows = corpus.windows("train")
    drawn = keyed([2, 9, 2])
    found = {chance: replace(windows, chance=chance).__getitems__(drawn).x for chance in ("none", "images", "patches")}
    assert torch.equal(found["images"], found["none"])
    whole = taken(open_corpus(WHOLE, 12, load_size=12).windows("train"), np.array([2, 9, 2])).pixels()
    changed = PatchAugmentation("v2", PATCHES.grid, PATCHES.pixel_mean)(whole, np.array([0, 1, 2]))
    assert torch.equal(found["patches"], changed)
    assert not torch.equal(found["patches"][0], found["patches"][2])  # the same image, another key
    assert torch.equal(corpus.windows("train", is_training=True).__getitems__(drawn).x, found["patches"])
    assert windows.chance == "none"  # views change nothing
    moved = open_corpus(augmentation="none").observations(np.arange(20), "images")
    assert not torch.equal(moved.__getitems__(drawn).x[0], moved.__getitems__(drawn).x[2])


@pytest.mark.parametrize("augmentation", ["none", "light", "v1", "v2"])
def test_what_becomes_of_an_image_follows_from_its_key_alone(open_corpus: OpenCorpus, augmentation: str) -> None:
    """Neither the batch that it is in, nor the process, nor what was read before."""
    drawn = [(3, 11), (17, 2**40 - 1), (3, 12), (0, 11)]
    together = open_corpus(augmentation=augmentation).windows("train", is_training=True).__getitems__(drawn).x
    again = open_corpus(augmentation=augmentation, packed=False).windows("train", is_training=True)
    sent = pickle.loads(pickle.dumps(again))
    for place in (2, 0, 3, 1):
        torch.testing.assert_close(sent.__getitems__([drawn[place]]).x[0], together[place], rtol=0, atol=1e-6)
    assert not torch.equal(together[0], together[2])


def test_every_pass_shows_every_image_once_with_another_key(open_corpus: OpenCorpus) -> None:
    corpus = open_corpus()
    windows = corpus.windows("train", is_training=True)
    stream = corpus.batches(windows, "uniform", 4, seed=3)
    passes = [[drawn for index in range(5 * n, 5 * n + 5) for drawn in stream.batch(index)] for n in range(3)]
    for drawn in passes:
        assert sorted(image for image, _ in drawn) == list(range(20))
    keys = [key for drawn in passes for _, key in drawn]
    assert len(set(keys)) == 60
    assert 0 <= min(keys) < 2**36
    assert 2**40 - 2**36 < max(keys) < 2**40  # of 60 numbers spread over all
    ranks = [corpus.batches(windows, "uniform", 4, seed=3, rank=rank, world_size=2) for rank in (0, 1)]
    assert [ranks[i % 2].batch(i // 2) for i in range(14)] == [stream.batch(i) for i in range(14)]


def test_every_image_of_a_sequence_was_trained_on(tmp_path: Path) -> None:
    """Fingerprints are of images, not of sequences."""
    images = np.random.default_rng(0).integers(0, 256, (30, SIDE, SIDE), np.uint8)
    path = tmp_path / "sequences.npz"
    np.savez(path, images=images, sequence=np.repeat(np.arange(10), 3) + 40, labels=np.zeros(30, int))
    corpus = open_source(path, PATCHES, 12, load_size=SIDE, valid_share=0.0)
    record = corpus.options.trained_on(corpus)
    assert record["num_observations"] == 30
    assert num_shared(corpus.content(np.arange(30)), record) == (30, 30)


def test_images_of_a_sequence_share_an_id_and_come_apart(tmp_path: Path) -> None:
    """Sequences of 6, 3 and 1 images, at equal distances within a pass of 30, each image once."""
    sequence = np.repeat(np.arange(12), [6, 6, 3, 3, 3, 3, *[1] * 6])[::-1] + 40
    path = tmp_path / "sequences.npz"
    images = np.random.default_rng(0).integers(0, 256, (30, SIDE, SIDE), np.uint8)
    np.savez(path, images=images, sequence=sequence, labels=np.zeros(30, int))
    corpus = open_source(path, PATCHES, 12, load_size=SIDE, valid_share=0.0)
    windows = corpus.windows("train")
    ids = windows.__getitems__(keyed(list(range(30)))).sequence_id.numpy()
    assert np.array_equal(ids[:, None] == ids, sequence[:, None] == sequence)
    state = corpus.batches(windows, "uniform", 5, 0).state_dict()
    alone = replace(windows)
    alone.sequence_ids = np.arange(30)
    refuses("batches would change: sequences", corpus.batches(alone, "uniform", 5, 0).load_state_dict, state)
    starts = []
    for seed in range(300):
        drawn = [row for row, _ in corpus.batches(windows, "uniform", 30, seed).batch(0)]
        assert sorted(drawn) == list(range(30))
        for each, size in Counter(sequence.tolist()).items():
            places = np.flatnonzero(sequence[drawn] == each)
            assert np.diff(places).tolist() == pytest.approx([30 / size] * (size - 1), abs=4)
        starts.append(drawn.index(0) / 30)  # an image alone may come anywhere
    assert np.mean(starts) == pytest.approx(0.5, abs=0.06)
    assert np.std(starts) == pytest.approx(12**-0.5, abs=0.04)


def test_no_image_meets_its_copy(open_corpus: OpenCorpus) -> None:
    """Unchanged by chance, it would be its own negative."""
    corpus = open_corpus()
    windows = corpus.windows("train")
    refuses("batch_size=21 on 1 processes exceeds the 20 images", corpus.batches, windows, "uniform", 21, seed=0)
    assert corpus.held_out_batch_size(windows, 32, 1) == 20
    assert corpus.held_out_batch_size(windows, 32, 3) == 20
    assert corpus.held_out_batch_size(windows, 4, 1) == 4
    assert corpus.held_out_batch_size(windows, 4, 3) == 12
    refuses("1 held-out images are too few", corpus.held_out_batch_size, taken(windows, np.array([3])), 4, 1)


def test_ranks_share_what_one_process_would_measure(open_corpus: OpenCorpus) -> None:
    """Also where the split is smaller than the batch of all ranks: the bound does not depend on their number."""
    corpus, options = open_corpus(), Images(source="unused", image_size=12, eval_split="train")
    for batch_size in (2, 32):
        (one,) = HeldOut(corpus, replace(options, batch_size=3 * batch_size), "mixed", 1).draws("mixed")
        shares = [HeldOut(corpus, replace(options, batch_size=batch_size), "mixed", 1, 0, rank, 3) for rank in range(3)]
        of_ranks = [share.draws("mixed")[0] for share in shares]
        assert [image for share in of_ranks for image, _ in share] == [image for image, _ in one]
        assert [len(share) for share in of_ranks] == ([2, 2, 2] if batch_size == 2 else [6, 7, 7])


@pytest.mark.parametrize("packed", [True, False])
def test_statistics_are_those_of_the_split(open_corpus: OpenCorpus, pixels: np.ndarray, packed: bool) -> None:
    corpus = open_corpus(packed=packed)
    for split, split_items in (("train", pixels[:20]), ("valid", pixels[20:25]), (None, pixels)):
        mean, std = corpus.statistics(split)
        np.testing.assert_allclose(mean, split_items.mean((0, 1, 2)) / 255, rtol=1e-6)
        np.testing.assert_allclose(std, split_items.std((0, 1, 2)) / 255, rtol=1e-6)


def test_initialisation_sees_training_images_as_training_changes_them(open_corpus: OpenCorpus) -> None:
    def initialisation(seed: int) -> torch.Tensor:
        corpus = open_corpus(augmentation="v2", seed=seed)
        return corpus.options.initialisation_batch(corpus)

    corpus, x = open_corpus(augmentation="v2"), initialisation(5)
    assert x.shape == (20, 2, 2, 3, 8, 8)  # 64 where there are as many
    assert torch.equal(initialisation(5), x)
    assert not torch.equal(initialisation(6), x)
    windows = corpus.windows("train", is_training=True)
    drawn = corpus.batches(windows, "uniform", 20, 5).batch(0)
    assert torch.equal(windows.__getitems__(drawn).x, x)
    assert {image for image, _ in drawn} == set(range(20))


def test_grey_images(open_corpus: OpenCorpus, pixels: np.ndarray) -> None:
    grey = taken(open_corpus(Geometry(num_channels=1)).windows("valid"), np.array([2])).pixels()
    assert grey.shape == (1, 1, 12, 12)
    np.testing.assert_allclose(grey[0, 0], np.tensordot([0.299, 0.587, 0.114], cut(pixels[22], 1, 1), 1), atol=1 / 255)


def test_files_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / "train" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((12, 12, 3), 40 * number, np.uint8)).save(path)
    bad = tmp_path / "train" / "class0" / "2.png"
    bad.write_bytes(bad.read_bytes()[:50])
    corpus = open_source(tmp_path, PATCHES, 12, valid_share=0.0, skip_bad=True)
    with pytest.warns(UserWarning, match="went on without 1 of 5"):
        windows = corpus.windows("train")
    (tmp_path / "valid/class0").mkdir(parents=True)
    (tmp_path / "valid/class0/x.png").write_text("words")
    with (
        pytest.warns(UserWarning, match="went on without 2 of 6"),
        pytest.raises(ValueError, match=r"all 1 images of split 'valid' were skipped:\n.*x\.png"),
    ):
        open_source(tmp_path, PATCHES, 12, skip_bad=True).rows("valid")
    assert windows.sequence_ids.tolist() == [0, 2, 3, 4]  # class0/0, class0/4, class1/1, class1/3; 1 is the bad one
    assert windows.__getitems__([(1, 0)]).x.unique().tolist() == [pytest.approx(160 / 255)]
