from pathlib import Path

import pytest

import cpc
from cpc.data.images.corpus import ImageCorpus
from cpc.probes.comparison import Extraction
from cpc.probes.images.features import READOUTS, hog, learnt_features, pixels
from cpc.probes.images.memory import bytes_per_image, check_memory
from cpc.probes.images.report import probe_images


def test_an_image_takes_what_its_features_take(model: cpc.CPC, corpus: ImageCorpus) -> None:
    windows = corpus.windows("test")
    found = learnt_features(model, windows, READOUTS, progress=False)
    found |= {"pixels": pixels(windows), "hog": hog(windows)}
    assert {name: values.nbytes for name, values in found.items()} == {
        name: 14 * size for name, size in bytes_per_image(model, corpus.image_size).items()
    }


@pytest.mark.parametrize(
    ("features", "baselines", "are_kept", "num_bytes"),
    [
        (["z"], [], False, 1),
        (["z", "z_grid"], [], False, 11),
        (["z", "z_grid"], ["random"], False, 11),
        (["z", "z_grid"], ["random"], True, 22),
        (["z"], ["pixels", "hog", "majority"], False, 100),
        (["z"], ["pixels", "hog", "majority"], True, 101),
        (["z"], ["hog", "random"], True, 8),
    ],
)
def test_what_is_held_at_a_time(features: list[str], baselines: list[str], are_kept: bool, num_bytes: int) -> None:
    per_image = {"z": 1, "z_grid": 10, "pixels": 100, "hog": 7}
    check_memory(per_image, 5, features, baselines, are_kept=are_kept, max_ram_bytes=5 * num_bytes)
    with pytest.raises(ValueError, match="features of 5 images take more than max_ram_gb="):
        check_memory(per_image, 5, features, baselines, are_kept=are_kept, max_ram_bytes=5 * num_bytes - 1)


def test_training_and_test_parts_count_together_before_anything_is_packed(
    model_folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 training and 14 test images of 24 x 24 pixels in 3 channels."""
    monkeypatch.setattr("cpc.data.images.corpus.pack_images", lambda *_, **__: pytest.fail("packed"))
    needed = 44 * 24 * 24 * 3 * 4
    with pytest.raises(
        ValueError, match=r"of 44 images take more than max_ram_gb=0\.000304.*: pixels 0\.0003 GB; raise"
    ):
        probe_images(
            model_folder,
            source,
            features=["z"],
            baselines=["pixels"],
            extraction=Extraction(max_ram_bytes=needed - 1, progress=False),
        )
