"""`cpc quickstart`, whatever the recipe: what it asks for before anything starts."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cpc.cli import main
from cpc.config.extras import DISTRIBUTION
from cpc.quickstart import engine, load_recipe


@pytest.mark.parametrize(("modality", "left"), [("image", ["photographs", "digits"]), ("signals", ["smartwatch"])])
def test_what_an_interrupted_quickstart_left_is_named(
    modality: str, left: list[str], tmp_path: Path, refusal: Callable[..., str]
) -> None:
    for name in [*left, "notes.txt"]:
        (tmp_path / name).mkdir()
    message = refusal(["quickstart", f"--modality={modality}", f"--out={tmp_path}", f"--corpus={tmp_path / 'corpus'}"])
    assert f"remove {', '.join(str(tmp_path / name) for name in left)}, or name another --out" in message
    assert "notes.txt" not in message
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("modality", "missing", "extra"),
    [("audio", "espeakng_loader", "speech"), ("image", "skimage", "image"), ("signals", "seglearn", "signals")],
)
def test_a_missing_extra_is_named_before_anything_starts(
    modality: str,
    missing: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    for module in load_recipe(modality).extras:
        monkeypatch.setitem(sys.modules, module, None if module == missing else ModuleType(module))
    places = [f"--out={tmp_path / 'out'}", f"--corpus={tmp_path / 'corpus'}"]
    message = refusal(["quickstart", f"--modality={modality}", *places])
    assert message.startswith(f"cpc: error: the quickstart needs {missing.partition('.')[0]}")
    assert f"uv sync --extra {extra}" in message
    assert f"{DISTRIBUTION}[{extra}]" in message
    assert list(tmp_path.iterdir()) == []


def test_each_recipe_has_a_corpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(engine, "quickstart", lambda recipe, *places, **_: asked.append((*recipe.studies, *places)))
    for arguments in ([], ["--modality", "image"], ["--modality", "text"], ["--modality", "image", "--corpus", "mine"]):
        main(["quickstart", *arguments])
    assert asked == [
        ("speech", Path("runs/quickstart"), Path("data/quickstart_speech")),
        ("photographs", "digits", Path("runs/image_quickstart"), Path("data/embedded_images")),
        ("prose", Path("runs/text_quickstart"), Path("data/embedded_prose")),
        ("photographs", "digits", Path("runs/image_quickstart"), Path("mine")),
    ]


def test_an_unknown_modality_is_refused(refusal: Callable[..., str]) -> None:
    assert "invalid choice: 'video' (choose from" in refusal(["quickstart", "--modality", "video"])
