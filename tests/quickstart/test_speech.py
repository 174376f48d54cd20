"""The quickstart, shortened: every stage runs and the reports hold what they promise."""

import html
import json
from pathlib import Path

import pytest

from cpc.data.synthetic.speakers import draw_speakers
from cpc.data.synthetic.speech import _scripts
from cpc.quickstart import speech
from cpc.quickstart.engine import quickstart


def test_the_corpus_is_another_than_the_one_the_recipe_was_chosen_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AskedError(Exception):
        pass

    def asked(folder: Path, *, seed: int) -> None:
        raise AskedError(seed)

    monkeypatch.setattr(speech, "synthesize", asked)
    with pytest.raises(AskedError) as caught:
        speech.RECIPE.make(tmp_path / "corpus", 0)
    (seed,) = caught.value.args
    chosen_on, reported = draw_speakers(48, 8, 0), draw_speakers(48, 8, seed)
    assert not {speaker.voice for speaker in chosen_on} & {speaker.voice for speaker in reported}
    variants = [{s.voice.variant for s in speakers if s.is_heldout} for speakers in (chosen_on, reported)]
    assert [len(of_test) for of_test in variants] == [8, 8]
    assert not variants[0] & variants[1]
    sentences = [
        set(_scripts(speakers, 2000, 60.0, drawn_by)[-1].sentences["test"])
        for speakers, drawn_by in ((chosen_on, 0), (reported, seed))
    ]
    assert [len(of_test) for of_test in sentences] == [240, 240]
    assert len(sentences[0] & sentences[1]) < 40  # 29 by chance
    assert f"corpus of seed {seed}" in speech.RECIPE_CHOSEN_ON.format(seed)


@pytest.mark.slow
def test_quickstart_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra 'speech' is not installed")
    pytest.importorskip("plotly", reason="the extra 'dashboard' is not installed")
    shortened = {"supervised_seconds": 5.0, "train_minutes": 6.0}
    for option, value in shortened.items():
        monkeypatch.setitem(speech.RECIPE.studies["speech"].probe, option, value)
    quickstart(speech.RECIPE, tmp_path / "out", tmp_path / "corpus", steps=60)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    for task in ("phones", "speaker"):
        assert set(report[task]) == {"majority", "random", "mfcc", "cpc", "cpc_z", "supervised"}
        assert all(0 < value < 100 for value in report[task].values())
        assert report[task]["random"] > report[task]["majority"]
    run = report["runs"]["speech"]
    assert len(run["mi_bound_nats"]) == len(run["mi_ceiling_nats"]) == 12
    assert all(bound < ceiling for bound, ceiling in zip(run["mi_bound_nats"], run["mi_ceiling_nats"], strict=True))
    assert run["mi_bound_nats"][0] > 0.5  # 60 steps are enough to leave zero
    assert run["num_train_steps"] == 60
    assert "total" in report["seconds"]
    assert run["reading"] == "in-sequence candidates, not a bound on I(z; c)"
    assert set(run["step_seconds"]) == {"bf16-mixed", "32-true"}
    assert report["corpus_seed"] == 63
    assert report["phones_num_steps"]["supervised"] > 0
    assert "valid split of the corpus of seed 0," in report["recipe_chosen_on"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "plotly" in page
    assert html.escape(report["recipe_chosen_on"]) in page
    with pytest.raises(ValueError, match="already holds a quickstart"):
        quickstart(speech.RECIPE, tmp_path / "out", tmp_path / "corpus", steps=60)
