"""The transformer keeps scikit-learn's conventions, as far as they are for lists of waveforms, and reads the model."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from cpc import CPC, load_pretrained, save_pretrained
from cpc.contexts import GRU
from cpc.encoders import AudioEncoder, TokenEncoder
from cpc.predictors import Bilinear
from cpc.sklearn import CPCFeatures

# They ask for tables, whose rows have one length, for words of their own, and for integers, which are no amplitudes.
OF_TABLES = "n_features_in n_features_in_after_fitting dtype_object estimators_empty_data_messages estimators_dtypes"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = CPC(AudioEncoder(6), GRU(5), Bilinear(2))
    model.initialise_from(torch.randn(4, 3200))
    place = tmp_path_factory.mktemp("model")
    save_pretrained(model, place)
    return place


def waves(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(length).astype(np.float32) for length in lengths]


def test_features_are_means_over_frames(folder: Path) -> None:
    X = waves(3200, 1600, 5001)
    model = load_pretrained(folder)
    found = CPCFeatures(folder).fit_transform(X)
    for row, wave in zip(found, X, strict=True):
        _, contexts, _ = model.encode(torch.from_numpy(wave)[None])
        np.testing.assert_allclose(row, contexts[0].mean(0).detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(CPCFeatures(model).transform(X), found)
    for same in (pd.Series(X, index=[4, 0, 9]), [torch.from_numpy(wave).requires_grad_() for wave in X]):
        np.testing.assert_array_equal(CPCFeatures(model).transform(same), found)
    assert CPCFeatures(folder, features="zc").transform(X).shape == (3, 11)
    assert list(CPCFeatures(folder, features="z").get_feature_names_out())[:2] == ["z0", "z1"]


def test_fit_reads_a_folder_that_was_trained_on(tmp_path: Path) -> None:
    X, found = waves(3200), []
    step = CPCFeatures(tmp_path)
    for seed in range(2):
        torch.manual_seed(seed)
        save_pretrained(CPC(AudioEncoder(6), GRU(5), Bilinear(2)), tmp_path)
        found.append(step.fit(X).transform(X))
        np.testing.assert_array_equal(found[-1], CPCFeatures(tmp_path).transform(X))
    assert not np.array_equal(*found)


@pytest.mark.usefixtures("unchecked_types")
def test_in_a_pipeline_that_is_searched_cloned_and_pickled(folder: Path) -> None:
    """The pipeline distinguishes loud and soft noise."""
    X, y = [wave * (1 + 4 * (i % 2)) for i, wave in enumerate(waves(*[1600] * 24))], [i % 2 for i in range(24)]
    pipeline = make_pipeline(CPCFeatures(folder), LogisticRegression())
    search = GridSearchCV(pipeline, {"cpcfeatures__features": ["c", "z"]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.9
    again = pickle.loads(pickle.dumps(clone(pipeline).fit(X, y)))
    assert again.score(X, y) > 0.9
    assert again[0].set_params(features="z").transform(X[:2]).shape == (2, 6)


@pytest.mark.filterwarnings("ignore:the input, standardised as in training")  # it gives amplitudes of 100
def test_the_checks_of_scikit_learn(unchecked_types: None, tmp_path: Path) -> None:
    """With a model whose latents are single samples, so that the short rows of the checks are waveforms."""
    torch.manual_seed(0)
    model = CPC(AudioEncoder(6, kernels=(1,), strides=(1,), paddings=(0,)), GRU(5), Bilinear(2))
    model.initialise_from(torch.randn(4, 3200))
    save_pretrained(model, tmp_path)
    found = check_estimator(CPCFeatures(tmp_path), on_fail=None, on_skip=None)
    failed = {each["check_name"]: str(each["exception"])[:200] for each in found if each["status"] == "failed"}
    assert failed.keys() <= {f"check_{name}" for name in OF_TABLES.split()}, failed
    assert len(found) > 30


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([np.zeros(1600), np.zeros(3)], "waveform 1 has 3 samples, too few"),
        ([np.zeros((2, 1600))], r"waveform 0 of shape \[2, 1600\] must be \[S\]"),
        ([np.full(1600, np.nan)], "waveform 0 of shape .* without NaN or inf"),
        ([["a", "b"]], "waveform 0 cannot be read as real numbers"),
        ([np.zeros(1600), np.zeros(1600, np.int16)], "waveform 1 holds integers, not floats .*: divide int16 by 32768"),
        ([], "with n of at least 1"),
        ([np.zeros(1600, np.complex64)], "waveform 0 .*Complex data not supported"),
    ],
)
def test_waveforms_that_cannot_be_used(folder: Path, X: list, message: str) -> None:
    refuses(message, CPCFeatures(folder).transform, X)


def test_a_model_of_text_is_refused(tmp_path: Path) -> None:
    save_pretrained(CPC(TokenEncoder(5, 4), GRU(4), Bilinear(1)), tmp_path)
    refuses("the modality of the model='text' must be audio", CPCFeatures(tmp_path).fit)
