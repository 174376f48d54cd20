"""Figures, read back as pixels."""

import io
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import cpc
from cpc.cli import main
from cpc.contexts import GRU, PixelCNN
from cpc.data import Audio, Images
from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.figures import nearest_patches, plot_map, plot_neighbours, plot_patches
from cpc.encoders import AudioEncoder, PatchEncoder, TinyTrunk
from cpc.predictors import Bilinear
from cpc.probes.figures import write_figures

NAMES = ["patches.png", "neighbours.png", "map.png"]


def pixels_of_sheet(path: Path | io.BytesIO) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def drawn_images(figure: Any) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


def test_figures_depend_on_the_seed_alone(
    model_folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheets = []
    for folder, seed in (("one", 0), ("again", 0), ("other", 1)):
        command = ["figures", str(model_folder), "--data", str(source), "--out", str(tmp_path / folder)]
        main([*command, "--num_images", "12", "--seed", str(seed)])
        written = [tmp_path / folder / name for name in NAMES]
        assert capsys.readouterr().out.splitlines() == [f"{path} written" for path in written]
        sheets.append([pixels_of_sheet(path) for path in written])
    one, again, other = sheets
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(sheet.std() > 10 for sheet in one)


def test_patches_as_cut_and_as_changed(corpus: ImageCorpus, pixels_of: Callable[[str], np.ndarray]) -> None:
    shown = corpus.windows("test")
    image, cut, of_training = drawn_images(plot_patches(shown, corpus.encoder.grid, seed=3))
    shown_pixels = pixels_of("test").transpose(0, 2, 3, 1)
    (chosen,) = [place for place, pixels in enumerate(shown_pixels) if np.array_equal(pixels, image)]
    drawn = np.random.default_rng(3).permutation(len(shown_pixels))[:16]
    assert shown_pixels[chosen].std() == pytest.approx(max(shown_pixels[row].std() for row in drawn), rel=1e-4)
    # Two rows of two patches of 16 pixels, 2 pixels between.
    changed = shown.augmentation(torch.from_numpy(pixels_of("test")[chosen : chosen + 1]), np.array([3]))[0]
    for row, column in np.ndindex(2, 2):
        place = (slice(18 * row, 18 * row + 16), slice(18 * column, 18 * column + 16))
        np.testing.assert_array_equal(cut[place], image[8 * row : 8 * row + 16, 8 * column : 8 * column + 16])
        np.testing.assert_array_equal(of_training[place], changed[row, column].permute(1, 2, 0))


def test_nearest_patches_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    bank = rng.standard_normal((5, 4, 6))
    bank /= np.linalg.norm(bank, axis=-1, keepdims=True)
    query = bank[2, 1]
    candidates = rng.random((5, 4, 1, 2, 2))
    bank[0, 0], candidates[0, 0] = query, candidates[2, 1]  # the query itself, in another image
    bank[1, 3], candidates[1, 3] = bank[4, 2], candidates[4, 2]  # twice the same
    is_other = np.arange(5) != 2
    order = sorted(
        ((float(bank[n, place] @ query), n, place) for n in range(5) for place in range(4) if n != 2),
        key=lambda found: -found[0],
    )
    expected: list[tuple[float, int, int]] = []
    for cosine, n, place in order:
        if (n, place) != (0, 0) and not any(abs(cosine - other) < 1e-9 for other, _, _ in expected):
            expected.append((cosine, n, place))
    found = nearest_patches(
        torch.from_numpy(query).float(),
        torch.from_numpy(bank).float(),
        torch.from_numpy(candidates).float(),
        torch.from_numpy(candidates[2, 1]).float(),
        is_other,
        20,
    )
    assert [cosine for _, _, cosine in found] == pytest.approx([cosine for cosine, _, _ in expected], abs=1e-6)
    assert len(found) == 14  # 16 of other images, without the query again and one of the pair
    assert [cosine for _, _, cosine in found] == sorted((cosine for _, _, cosine in found), reverse=True)


def test_neighbours_have_a_row_for_every_query(model: cpc.CPC, corpus: ImageCorpus) -> None:
    test, train = corpus.windows("test"), corpus.windows("train")
    drawn = drawn_images(plot_neighbours(model, test, train, num_queries=5, num_neighbours=3))
    assert [image.shape for image in drawn] == 5 * [(24, 24, 3), *4 * [(16, 16, 3)]]
    for number in range(5):
        image, patch, *nearest = drawn[5 * number : 5 * number + 5]
        assert any(np.array_equal(patch, image[y : y + 16, x : x + 16]) for y in (0, 8) for x in (0, 8))
        assert not any(np.array_equal(patch, other) for other in nearest)


def test_frames_of_a_map_are_of_the_classes(model: cpc.CPC, corpus: ImageCorpus) -> None:
    stream = io.BytesIO()
    plot_map(model, corpus.windows("train")).savefig(stream, format="png")
    sheet = pixels_of_sheet(stream)
    for colour in ((0x1F, 0x77, 0xB4), (0xFF, 0x7F, 0x0E)):
        is_frame = (np.abs(sheet.astype(int) - colour) <= 1).all(2)
        legend = sheet.shape[1] - 150
        assert is_frame[:, :legend].sum() > 15 * 50  # of 15 thumbnails, few quite covered
        assert is_frame[:, legend:].sum() > 100  # the legend
    unlabelled = corpus.windows("unlabelled")
    assert len(unlabelled.rows) < 10  # the map of these would be refused


def test_grey_images_and_many_classes(labelled_corpus: Callable[..., ImageCorpus], tmp_path: Path) -> None:
    names = [f"a class called {number}" for number in range(60)]
    corpus = labelled_corpus(names, train=list(range(60)) * 2, test=list(range(60)), valid=[-1])
    torch.manual_seed(0)
    trunk = TinyTrunk(dim=6, num_channels=1, strides=(4, 1), widths=(4, 4))
    model = cpc.CPC(PatchEncoder(trunk, 16, 8), PixelCNN(5, 2, 5), Bilinear(num_steps=1))
    model.encoder.set_statistics(torch.tensor([0.5]), torch.tensor([0.2]))
    model.initialise_from(torch.rand(8, 1, 24, 24))
    saved_settings = Images(source="unknown", image_size=24, augmentation="none").saved_settings
    cpc.save_pretrained(model, tmp_path / "model", provenance={"data": saved_settings})
    source = corpus.table.origin.root / "labels0.npz"
    assert source.is_file()
    for path in write_figures(tmp_path / "model", source, tmp_path / "figures", num_images=60):
        assert pixels_of_sheet(path).std() > 5


def test_mistakes_are_named(model_folder: Path, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"split 'unlabelled' of .* shows 4 images, but a map needs at least 10"):
        write_figures(model_folder, source, tmp_path / "out", split="unlabelled")
    with pytest.raises(ValueError, match=r"no image in .* is of split 'nowhere'"):
        write_figures(model_folder, source, tmp_path / "out", among="nowhere")
    with pytest.raises(ValueError, match=r"shows 3 images, but a map needs at least 10: .* raise `num_images`=3"):
        write_figures(model_folder, source, tmp_path / "out", num_images=3)
    audio = cpc.CPC(AudioEncoder(dim=4), GRU(dim=4), Bilinear(num_steps=2))
    cpc.save_pretrained(audio, tmp_path / "audio", provenance={"data": Audio(manifest="unknown").saved_settings})
    with pytest.raises(ValueError, match="this is a model of audio, of which no figures are drawn"):
        write_figures(tmp_path / "audio", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_of_ones_own_draw_theirs(
    model: cpc.CPC, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a class path outside cpc, of a package that is trusted."""
    module = types.ModuleType("own_package")
    module.Own = type("Own", (Images,), {"__module__": "own_package", "figures": lambda *_, **__: {"own": Figure()}})
    monkeypatch.setitem(sys.modules, "own_package", module)
    saved_settings = module.Own(source="unknown", image_size=24).saved_settings
    cpc.save_pretrained(model, tmp_path / "model", provenance={"data": saved_settings})
    command = ["figures", str(tmp_path / "model"), "--data", str(source), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main(command)
    assert "give --trusted_packages cpc own_package" in capsys.readouterr().err
    main([*command, "--trusted_packages", "cpc", "own_package"])
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'own.png'} written\n"


def test_the_command_names_mistakes(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["figures", str(tmp_path / "none"), "--data", str(source), "--out", str(tmp_path / "out")])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("cpc: error:")


@pytest.mark.parametrize("name", [r"$\undefined{", "$x^$ and $", "_hidden", "caf\udce9", "a\tb\0"])
def test_names_of_classes_are_drawn_as_they_are(name: str, model: cpc.CPC, corpus: ImageCorpus) -> None:
    """No TeX, none missing in the legend, no halves of characters."""
    corpus.table.classes[0] = name
    test, train = corpus.windows("test"), corpus.windows("train")
    figures = plot_patches(train, corpus.encoder.grid), plot_neighbours(model, test, train, num_queries=4)
    for figure in (*figures, plot_map(model, train)):
        figure.savefig(io.BytesIO(), format="png")
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(set(train.labels.tolist()))
