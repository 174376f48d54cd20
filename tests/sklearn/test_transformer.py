"""The estimator of arrays: scikit-learn's own checks, and features against the model that it trained."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from cpc import load_pretrained, save_pretrained
from cpc.contexts import GRU
from cpc.data.pooling import pool_vectors
from cpc.losses import Contrastive
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.sklearn import CPCTransformer

SMALL = {"sample_rate_hz": 20.0, "dim": 8, "max_steps": 4, "random_state": 0}


@pytest.fixture(scope="module")
def recordings() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(24, 160, 3)).cumsum(1).astype(np.float32)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=getattr(check, "func", check).__name__)
        for _, check in estimator_checks_generator(CPCTransformer(max_steps=2, dim=8, num_channels=1))
        # It passes -1 for every parameter, which this suite's check of annotations refuses before scikit-learn sees it.
        if getattr(check, "func", check).__name__ != "check_do_not_raise_errors_in_init_or_set_params"
    ],
)
def test_scikit_learns_own_check(check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(CPCTransformer(max_steps=2, dim=8, num_channels=1))


@pytest.mark.parametrize("pool", ["mean", "mean_std", "segments:3"])
def test_features_are_pooled_outputs_of_the_model(recordings: np.ndarray, pool: str) -> None:
    made = CPCTransformer(**SMALL, pool=pool).fit(recordings)
    found = made.transform(recordings)
    for row, recording in zip(found, recordings, strict=True):
        latents, contexts, _ = made.model_.encode(torch.from_numpy(recording)[None])
        expected = pool_vectors(torch.cat([latents, contexts], 2)[0].detach().numpy(), pool)
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)
    assert found.shape[1] == len(made.get_feature_names_out())


def test_a_recording_does_not_depend_on_longer_ones_beside_it(recordings: np.ndarray) -> None:
    ragged = [recording[: 40 + 5 * row] for row, recording in enumerate(recordings)]
    made = CPCTransformer(**SMALL).fit(ragged)
    together = made.transform(ragged)
    for row, recording in enumerate(ragged):
        np.testing.assert_allclose(made.transform([recording])[0], together[row], rtol=1e-4, atol=1e-5)


def test_inputs_of_all_kinds_give_the_same_features(recordings: np.ndarray) -> None:
    made = CPCTransformer(**SMALL).fit(recordings)
    expected = made.transform(recordings)
    for other in (recordings.astype(np.float64), torch.from_numpy(recordings), list(recordings)):
        np.testing.assert_array_equal(made.transform(other), expected)
    frames = [pd.DataFrame(recording) for recording in recordings]
    np.testing.assert_array_equal(made.transform(frames), expected)
    again = CPCTransformer(**SMALL).fit(recordings.astype(np.float64))
    np.testing.assert_array_equal(again.transform(recordings), expected)


def test_the_bound_is_of_groups_that_were_held_out(recordings: np.ndarray) -> None:
    groups = np.arange(24) // 4
    made = CPCTransformer(**SMALL, valid_share=0.3).fit(recordings, groups=groups)
    assert made.bound_.split == "valid"
    assert not made.bound_.is_bound  # candidates of the same window: the label says so
    assert np.all(np.array(made.bound_.mi_bound_nats) <= made.bound_.mi_ceiling_nats)
    assert CPCTransformer(**SMALL, valid_share=0.0).fit(recordings).bound_ is None
    assert CPCTransformer(**SMALL).fit(recordings[:1]).bound_ is None


def test_transposed_recordings_are_named(recordings: np.ndarray) -> None:
    for X in (recordings.transpose(0, 2, 1), [recording.T for recording in recordings]):
        with pytest.raises(ValueError, match=r"160 channels of 3 samples each look transposed.*set num_channels"):
            CPCTransformer(**SMALL).fit(X)
    wide = recordings[:, :20].repeat(10, axis=2)  # 30 channels of 20 samples
    options = {**SMALL, "kernels": (2,), "strides": (2,)}
    made = CPCTransformer(**options, num_channels=30).fit(wide)
    assert made.transform(wide[:, :10]).shape[0] == len(wide)
    with pytest.raises(ValueError, match="X has 3 channels, not num_channels=30"):
        CPCTransformer(**options, num_channels=30).fit(recordings)


def test_it_is_saved_loaded_and_continued(recordings: np.ndarray, tmp_path: Path) -> None:
    made = CPCTransformer(**SMALL).fit(recordings)
    made.save(tmp_path / "model")
    model = load_pretrained(tmp_path / "model")
    assert model.encoder.channels == 3
    same = CPCTransformer(**SMALL | {"max_steps": 0}, init_from=tmp_path / "model").fit(recordings)
    np.testing.assert_array_equal(same.transform(recordings), made.transform(recordings))
    further = CPCTransformer(**SMALL, init_from=tmp_path / "model").fit(recordings)
    assert not np.array_equal(further.transform(recordings), made.transform(recordings))
    with pytest.raises(ValueError, match="encodes signals of 3 channels, X has 2"):
        CPCTransformer(**SMALL, init_from=tmp_path / "model").fit(recordings[..., :2])
    with pytest.raises(ValueError, match="encodes 20 samples per second, but sample_rate_hz=50"):
        CPCTransformer(**SMALL | {"sample_rate_hz": 50.0}, init_from=tmp_path / "model").fit(recordings)


def test_recordings_shorter_than_the_steps_of_the_model(recordings: np.ndarray, tmp_path: Path) -> None:
    model = CPCTransformer(**SMALL | {"max_steps": 0}).fit(recordings).model_
    far = CPC(model.encoder, GRU(8), Bilinear(steps=[14]), Contrastive("mixed"))
    save_pretrained(far, tmp_path)
    num_samples = 14 * model.encoder.hop_samples
    with pytest.raises(ValueError, match=r"gives 14 latents, but the model predicts 14 steps ahead"):
        CPCTransformer(**SMALL, init_from=tmp_path).fit(recordings[:, :num_samples])
    CPCTransformer(**SMALL, init_from=tmp_path).fit(recordings)


def test_in_a_pipeline_that_is_searched_cloned_and_pickled(recordings: np.ndarray) -> None:
    X, y = recordings * (1 + 9 * (np.arange(24) % 2))[:, None, None], np.arange(24) % 2
    pipeline = make_pipeline(CPCTransformer(**SMALL, front="raw"), LogisticRegression(max_iter=1000))
    search = GridSearchCV(pipeline, {"cpctransformer__pool": ["mean", "mean_std"]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.8
    again = pickle.loads(pickle.dumps(clone(pipeline).fit(X, y)))
    assert again.score(X, y) > 0.9
    named = CPCTransformer(**SMALL).set_output(transform="pandas").fit(recordings).transform(recordings)
    assert list(named.columns)[:2] == ["cpctransformer0", "cpctransformer1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "max"}, "pool='max' is not one of"),
        ({"pool": "frames"}, "gives no single vector"),
        ({"features": "cz"}, "not one of 'c', 'z', 'zc'"),
        ({"max_steps": -1}, "must be at least"),
        ({"valid_share": 1.0}, "at least 0 and below 1"),
        ({"kernels": (4,)}, "give both, or none"),
        ({"strides": (100,), "kernels": (100,)}, "use longer recordings"),
    ],
)
def test_options_are_refused(recordings: np.ndarray, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CPCTransformer(**SMALL | options).fit(recordings)


def test_short_recordings_and_unknown_groups_are_left_out_of_training(recordings: np.ndarray) -> None:
    ragged = [recordings[0][:3], recordings[1][:1], *recordings[2:]]
    groups = [None, np.nan, *(np.arange(22) // 2)]
    for seed in range(3):
        made = CPCTransformer(**SMALL | {"random_state": seed}, valid_share=0.3).fit(ragged, groups=groups)
        assert made.bound_ is not None
        assert np.isfinite(made.transform(ragged)).all()


def test_few_recordings_are_no_copies_in_a_batch(recordings: np.ndarray) -> None:
    made = CPCTransformer(**SMALL, valid_share=0.1).fit(recordings)
    num_latents = made.model_.encoder.num_latents(160)
    assert max(made.bound_.num_candidates) <= 5 * num_latents  # at most five recordings are held out, each once


def test_groups_are_the_batches_of_same_speaker_negatives(recordings: np.ndarray) -> None:
    groups = np.arange(24) // 6
    made = CPCTransformer(**SMALL, negatives="same_speaker_excluding").fit(recordings, groups=groups)
    assert np.isfinite(made.losses_).all()
    with pytest.raises(ValueError, match="have no group"):
        CPCTransformer(**SMALL, negatives="same_speaker").fit(recordings)


def test_inputs_are_refused(recordings: np.ndarray) -> None:
    broken = recordings.copy()
    broken[3, 7, 1] = np.nan
    with pytest.raises(ValueError, match="recording 3 is not finite in channel 1 at sample 7"):
        CPCTransformer(**SMALL).fit(broken)
    with pytest.raises(ValueError, match="groups has 2 entries for 24 recordings"):
        CPCTransformer(**SMALL).fit(recordings, groups=[0, 1])
    made = CPCTransformer(**SMALL).fit(recordings)
    with pytest.raises(ValueError, match=r"recording 0 has the shape \[160, 2\]"):
        made.transform(recordings[..., :2])
    with pytest.raises(ValueError, match="but the model reads 3 channels: give"):
        made.transform(recordings[0])
    for empty in (recordings[:0], recordings[None]):
        with pytest.raises(ValueError, match="recordings are \\[n, samples, channels\\]"):
            made.transform(empty)
    with pytest.raises(ValueError, match="gives no single vector"):
        made.set_params(pool="frames").transform(recordings)
