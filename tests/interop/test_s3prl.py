"""The upstream as s3prl's featurizer uses it."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refuses

import cpc
from cpc.interop.s3prl import UpstreamExpert

DOCUMENT = Path(__file__).parents[2] / "docs" / "library.md"


def save(folder: Path, context_dim: int = 8, sample_rate_hz: int = 16000) -> str:
    torch.manual_seed(0)
    encoder = cpc.encoders.AudioEncoder(dim=8, sample_rate_hz=sample_rate_hz)
    model = cpc.CPC(encoder, cpc.contexts.GRU(dim=context_dim), cpc.predictors.Bilinear(num_steps=2))
    cpc.save_pretrained(model, folder)
    return str(folder)


def test_features_of_a_batch_are_those_of_each_single(tmp_path: Path) -> None:
    upstream = UpstreamExpert(save(tmp_path), model_config=None, refresh=False)
    wavs = [torch.randn(num_samples) for num_samples in (16000, 6400, 10007)]
    found = upstream(wavs)
    hop = upstream.get_downsample_rates("hidden_states")
    assert hop == 160
    for row, wav in enumerate(wavs):
        single = upstream([wav])
        num_frames = single["last_hidden_state"].shape[1]
        assert abs(num_frames - round(len(wav) / hop)) <= 1  # how s3prl cuts features, and what it tolerates
        for whole, own in zip(found["hidden_states"], single["hidden_states"], strict=True):
            assert whole.shape == (3, 100, 8)
            torch.testing.assert_close(whole[row, :num_frames], own[0], rtol=0, atol=0)
            assert not whole[row, num_frames:].any()
    assert found["last_hidden_state"] is found["hidden_states"][-1]
    found["last_hidden_state"].sum().backward()  # s3prl may fine-tune it
    assert all(parameter.grad is not None for parameter in upstream.model.encoder.parameters())


def test_features_of_two_widths_are_not_added(tmp_path: Path) -> None:
    found = UpstreamExpert(save(tmp_path, context_dim=6))([torch.randn(3200)])
    assert [list(each.shape) for each in found["hidden_states"]] == [[1, 20, 6]]


def test_the_page_of_the_docs_registers_it_as_s3prl_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """s3prl's hub.py imports all of a hubconf.py, and looks for the name that `-u` has."""
    (snippet,) = re.findall(
        r"```python\n((?:# [^\n]*\n)?from cpc\.interop\.s3prl .*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "hubconf_of_cpc.py").write_text(snippet)
    monkeypatch.syspath_prepend(tmp_path)
    hub: dict[str, Any] = {}
    exec("from hubconf_of_cpc import *", hub)
    assert hub.keys() - {"__builtins__"} == {"cpc_model"}
    ckpt = save(tmp_path / "model")
    for upstream in (hub["cpc_model"](ckpt, None), hub["cpc_model"](ckpt=ckpt, model_config="x.yaml", refresh=False)):
        assert upstream([torch.randn(3200)])["last_hidden_state"].shape == (1, 20, 8)
    refuses("ckpt is None: name a run", hub["cpc_model"], None, None)


def test_other_models_are_refused(tmp_path: Path) -> None:
    refuses("8000 Hz, but s3prl has only audio at 16000 Hz", UpstreamExpert, save(tmp_path, sample_rate_hz=8000))
    refuses("are too few for one latent", UpstreamExpert(save(tmp_path)), [torch.randn(100)])
