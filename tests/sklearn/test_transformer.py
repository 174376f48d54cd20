"""The estimator of arrays: scikit-learn's own checks, and features against the model that it trained."""

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from cpc import CPC, load_pretrained, save_pretrained
from cpc.contexts import GRU
from cpc.data.probe_data import pool_vectors
from cpc.losses import Contrastive
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
    frames = [pd.DataFrame(recording) for recording in recordings]
    for other in (recordings.astype(np.float64), torch.from_numpy(recordings), list(recordings), frames):
        np.testing.assert_array_equal(made.transform(other), expected)
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
        refuses(r"160 channels of 3 samples each look transposed.*set `num_channels`", CPCTransformer(**SMALL).fit, X)
    wide = recordings[:, :20].repeat(10, axis=2)  # 30 channels of 20 samples
    options = {**SMALL, "kernels": (2,), "strides": (2,)}
    made = CPCTransformer(**options, num_channels=30).fit(wide)
    assert made.transform(wide[:, :10]).shape[0] == len(wide)
    refuses("X has 3 channels, not `num_channels`=30", CPCTransformer(**options, num_channels=30).fit, recordings)


def test_it_is_saved_loaded_and_continued(recordings: np.ndarray, tmp_path: Path) -> None:
    made = CPCTransformer(**SMALL).fit(recordings)
    made.save(tmp_path / "model")
    model = load_pretrained(tmp_path / "model")
    assert model.encoder.channels == 3
    same = CPCTransformer(**SMALL | {"max_steps": 0}, init_from=tmp_path / "model").fit(recordings)
    np.testing.assert_array_equal(same.transform(recordings), made.transform(recordings))
    further = CPCTransformer(**SMALL, init_from=tmp_path / "model").fit(recordings)
    assert not np.array_equal(further.transform(recordings), made.transform(recordings))
    refuses("channels of X=2 must be 3", CPCTransformer(**SMALL, init_from=tmp_path / "model").fit, recordings[..., :2])
    with pytest.raises(ValueError, match=r"sample_rate_hz`=50.* must be 20"):
        CPCTransformer(**SMALL | {"sample_rate_hz": 50.0}, init_from=tmp_path / "model").fit(recordings)


def test_recordings_shorter_than_the_steps_of_the_model(recordings: np.ndarray, tmp_path: Path) -> None:
    model = CPCTransformer(**SMALL | {"max_steps": 0}).fit(recordings).model_
    far = CPC(model.encoder, GRU(8), Bilinear(steps=[14]), Contrastive("mixed"))
    save_pretrained(far, tmp_path)
    num_samples = 14 * model.encoder.hop_samples
    refuses(r"14 latents, but the model", CPCTransformer(**SMALL, init_from=tmp_path).fit, recordings[:, :num_samples])
    CPCTransformer(**SMALL, init_from=tmp_path).fit(recordings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "max"}, "pool='max' is not one of"),
        ({"features": "cz"}, "not one of c, z, zc"),
        ({"valid_share": 1.0}, "at least 0 and below 1"),
        ({"kernels": (4,)}, "give both, or none"),
        ({"strides": (100,), "kernels": (100,)}, "use longer recordings"),
    ],
)
def test_options_are_refused(recordings: np.ndarray, options: dict, message: str) -> None:
    refuses(message, CPCTransformer(**SMALL | options).fit, recordings)


def test_short_recordings_and_unknown_groups_are_left_out_of_training(recordings: np.ndarray) -> None:
    ragged = [recordings[0][:3], recordings[1][:1], *recordings[2:]]
    groups = [None, np.nan, *(np.arange(22) // 2)]
    for seed in range(3):
        made = CPCTransformer(**SMALL | {"random_state": seed}, valid_share=0.3).fit(ragged, groups=groups)
        assert np.isfinite(made.transform(ragged)).all()


def test_few_recordings_are_no_copies_in_a_batch(recordings: np.ndarray) -> None:
    made = CPCTransformer(**SMALL, valid_share=0.1).fit(recordings)
    num_latents = made.model_.encoder.num_latents(160)
    assert max(made.bound_.num_candidates) <= 5 * num_latents  # at most five recordings are held out, each once


def test_groups_are_the_batches_of_same_speaker_negatives(recordings: np.ndarray) -> None:
    groups = np.arange(24) // 6
    made = CPCTransformer(**SMALL, negatives="same_speaker_excluding").fit(recordings, groups=groups)
    assert np.isfinite(made.losses_).all()
    refuses("have no group", CPCTransformer(**SMALL, negatives="same_speaker").fit, recordings)


def test_negatives_are_of_the_same_group_if_groups_fill_batches(recordings: np.ndarray) -> None:
    """Six windows are three batches of two. A recording that is too short to train on decides nothing."""
    groups = [*np.repeat(list("abcd"), 6), "e"]
    with_short = [*recordings, recordings[0][:3]]
    for batch_size, names, negatives in (
        (2, groups, "same_speaker"),
        (3, groups, "mixed"),
        (1, groups, "mixed"),
        (2, [None, *groups[1:]], "mixed"),
        (2, [*groups[:-1], None], "same_speaker"),
    ):
        made = CPCTransformer(**SMALL | {"batch_size": batch_size}).fit(with_short, groups=names)
        assert made.model_.loss_part.negatives == made.bound_.strategy == negatives
        sampler = "same_speaker" if negatives == "same_speaker" else "uniform"
        assert made._provenance["data"]["init_args"]["sampler"] == sampler


def test_a_model_of_negatives_of_the_same_group_is_trained_further_with_groups(
    recordings: np.ndarray, tmp_path: Path
) -> None:
    groups = np.arange(24) // 6
    CPCTransformer(**SMALL, negatives="same_speaker").fit(recordings, groups=groups).save(tmp_path / "model")
    earlier = {**SMALL, "init_from": tmp_path / "model"}
    refuses("has negatives of the same group: give `groups` to fit", CPCTransformer(**earlier).fit, recordings)
    as_it_is = CPCTransformer(**earlier | {"max_steps": 0})
    assert as_it_is.fit(recordings).bound_ is None
    assert as_it_is.fit(recordings[:1], groups=["a"]).bound_ is None
    assert as_it_is.fit(recordings, groups=groups).bound_.strategy == "same_speaker"
    assert as_it_is._provenance["data"]["init_args"]["sampler"] == "same_speaker"


def test_inputs_are_refused(recordings: np.ndarray) -> None:
    broken = recordings.copy()
    broken[3, 7, 1] = np.nan
    refuses("recording 3 is not finite in channel 1 at sample 7", CPCTransformer(**SMALL).fit, broken)
    refuses(r"groups has the shape \[2\]: give one group", CPCTransformer(**SMALL).fit, recordings, groups=[0, 1])
    made = CPCTransformer(**SMALL).fit(recordings)
    refuses(r"recording 0 has the shape \[160, 2\]", made.transform, recordings[..., :2])
    refuses("but the model reads 3 channels: give", made.transform, recordings[0])
    for empty in (recordings[:0], recordings[None]):
        refuses("recordings are \\[n, samples, channels\\]", made.transform, empty)


@pytest.fixture(scope="module")
def ragged(recordings: np.ndarray) -> list[np.ndarray]:
    return [recording[: 80 + 3 * row, 0] for row, recording in enumerate(recordings)]


def test_recordings_of_one_channel_may_have_unequal_lengths(ragged: list[np.ndarray]) -> None:
    expected = CPCTransformer(**SMALL).fit([samples[:, None] for samples in ragged]).transform(ragged)
    series = pd.Series(ragged, index=range(7, 31))
    for X in (ragged, series, [torch.from_numpy(samples) for samples in ragged], [list(samples) for samples in ragged]):
        np.testing.assert_array_equal(CPCTransformer(**SMALL).fit(X).transform(X), expected)
    made = CPCTransformer(**SMALL).fit(series)
    assert (made.num_channels_, made.n_features_in_) == (1, 1)
    np.testing.assert_allclose(made.transform(np.stack([ragged[0]])), expected[:1], rtol=1e-4, atol=1e-5)
    refuses(r"recording 1 has the shape \[0\]", made.transform, [ragged[0], ragged[1][:0]])


def test_a_table_that_looks_like_one_recording_is_refused_with_advice_that_works(recordings: np.ndarray) -> None:
    parts = [pd.DataFrame(part[:60], columns=["x", "y", "z"]) for part in recordings]
    long = pd.concat([part.assign(id=row) for row, part in enumerate(parts)])
    with pytest.raises(ValueError, match=r"columns \['x', 'y', 'z', 'id'\], which look like channels") as raised:
        CPCTransformer(**SMALL).fit(long)
    advice = str(raised.value).split("apart, give ")[1].split(". If")[0]
    made = CPCTransformer(**SMALL).fit(eval(advice, {"X": long}))
    expected = CPCTransformer(**SMALL).fit(recordings[:, :60]).transform(recordings[:, :60])
    np.testing.assert_array_equal(made.transform(recordings[:, :60]), expected)
    for X in (recordings[0], torch.from_numpy(recordings[0]), pd.DataFrame(recordings[0]), recordings[0].tolist()):
        refuses(r"\[160, 3\], .*give \[X\].*set `num_channels` to 1", CPCTransformer(**SMALL).fit, X)
    assert CPCTransformer(**SMALL).fit([recordings[0]]).num_channels_ == 3
    rows, shape = recordings[:, :20, 0], {"kernels": (2,), "strides": (2,)}  # 24 recordings of 20 samples
    assert CPCTransformer(**SMALL, **shape, num_channels=1).fit(rows).n_features_in_ == 20
    months = pd.DataFrame(recordings[:, :12, 0], columns=list("JFMAmjlaSOND"))
    assert CPCTransformer(**SMALL, **shape, num_channels=1).fit(months).num_channels_ == 1
    times = pd.DataFrame(recordings[..., 0], columns=[f"{time / 20}s" for time in range(160)])
    assert CPCTransformer(**SMALL).fit(times).n_features_in_ == 160
    one = CPCTransformer(**SMALL).fit([recordings[0, :, :1]])
    refuses("more rows than columns", one.transform, recordings[0, :, :1])
    refuses("one channel, but the model reads 3 channels", CPCTransformer(**SMALL, num_channels=3).fit, recordings[0])


def test_data_frames_are_read_by_the_names_of_their_columns(recordings: np.ndarray, tmp_path: Path) -> None:
    frames = [pd.DataFrame(recording, columns=["gx", "gy", "gz"]) for recording in recordings]
    turned = [frame[["gz", "gx", "gy"]] for frame in frames]
    made = CPCTransformer(**SMALL).fit(frames)
    expected = made.transform(recordings)  # arrays have no names
    assert made.model_.encoder.channel_names == ("gx", "gy", "gz")
    assert made.feature_names_in_.tolist() == ["gx", "gy", "gz"]
    for X in (frames, turned, [*turned[:12], *frames[12:]]):
        np.testing.assert_array_equal(made.transform(X), expected)
    np.testing.assert_array_equal(CPCTransformer(**SMALL).fit([frames[0], *turned[1:]]).transform(turned), expected)
    for other in ({"gz": "gw"}, {"gz": "gx"}):
        refuses(r"recording 1 has .* \['gx', 'gy'", made.transform, [frames[0], frames[1].rename(columns=other)])
    refuses("recording 0 has the columns", made.transform, [frames[0].assign(id=1)])
    made.save(tmp_path)
    again = CPCTransformer(**SMALL | {"max_steps": 0}, init_from=tmp_path).fit(turned)
    np.testing.assert_array_equal(again.transform(turned), expected)
    assert again.feature_names_in_.tolist() == ["gz", "gx", "gy"]
    shouted = [frame.rename(columns=str.upper) for frame in turned]
    np.testing.assert_array_equal(made.transform(shouted), expected)
    nameless = CPCTransformer(**SMALL).fit(recordings)
    assert not hasattr(nameless, "feature_names_in_")
    refuses("in another order", nameless.transform, [frames[0], turned[1]])


def test_units_are_converted_to_those_of_the_model(recordings: np.ndarray, tmp_path: Path) -> None:
    made = CPCTransformer(**SMALL, units=["g", "m/s2", "deg/s"]).fit(recordings)
    expected = made.transform(recordings)
    made.save(tmp_path)
    assert load_pretrained(tmp_path).encoder.units == ("g", "m/s2", "deg/s")
    others = (recordings * [9806.65, 1000, np.pi / 180]).astype(np.float32)
    options = SMALL | {"max_steps": 0, "init_from": tmp_path}
    again = CPCTransformer(**options, units=("mm/s2", "mm/s2", "rad/s")).fit(others)
    np.testing.assert_allclose(again.transform(others), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(CPCTransformer(**options).fit(recordings).transform(recordings), expected)
    for units, message in (("mV", "mV cannot be converted to g"), (["g"], "give one for each channel")):
        refuses(message, CPCTransformer(**options, units=units).fit, recordings)
    with pytest.warns(UserWarning, match="not about 0 and 1"):
        same = CPCTransformer(**options).fit(1e5 * recordings)
    with pytest.warns(UserWarning, match="not about 0 and 1"):
        same.transform(1e5 * recordings)
    CPCTransformer(**SMALL).fit(recordings).save(tmp_path)
    refuses("None for X in the units of", CPCTransformer(**options, units="g").fit, recordings)


def test_contexts_of_both_directions_do_not_read_padding(recordings: np.ndarray) -> None:
    ecg = 100 * recordings[:2, :, [0] * 12]
    model = CPCTransformer(init_from="ecg-small", sample_rate_hz=500, max_steps=0).fit(ecg)
    found = model.transform([ecg[0, :-37], ecg[1]])
    np.testing.assert_allclose(found[:1], model.transform([ecg[0, :-37]]), atol=1e-5)


def test_numpys_numbers_and_arrays_are_options(ragged: list[np.ndarray], tmp_path: Path, unchecked_types: None) -> None:
    counts = {"dim": 8, "max_steps": 2, "num_steps": 3, "window_samples": 40, "batch_size": 4, "random_state": 0}
    kinds = [np.int64, np.int32, np.int16] * 2
    options = {name: kind(n) for (name, n), kind in zip(counts.items(), kinds, strict=True)}
    options |= {"kernels": np.array([4, 2]), "strides": np.array([2, 2]), "valid_share": np.float64(0.25)}
    options |= {"sample_rate_hz": np.float32(20), "level_seconds": np.float32(0.5), "learning_rate": np.float32(1e-3)}
    made = CPCTransformer(**options).fit(ragged)
    made.save(tmp_path)
    same = CPCTransformer(**{name: value.tolist() for name, value in options.items()}).fit(ragged)
    np.testing.assert_array_equal(made.transform(ragged), same.transform(ragged))
    loaded = CPCTransformer(init_from=tmp_path, sample_rate_hz=20, max_steps=0).fit(ragged)
    np.testing.assert_array_equal(loaded.transform(ragged), made.transform(ragged))


def test_groups_that_pandas_does_not_know(recordings: np.ndarray) -> None:
    groups = pd.Series(["a", pd.NA, "b", None] * 6, dtype="string", index=range(24, 48))
    expected = CPCTransformer(**SMALL).fit(recordings, groups=["a", np.nan, "b", ""] * 6)
    assert CPCTransformer(**SMALL).fit(recordings, groups=groups).losses_ == expected.losses_
    refuses(r"groups has the shape \[24, 1\]", CPCTransformer(**SMALL).fit, recordings, groups=groups.to_frame())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x * 1j, "Complex data not supported"),
        (lambda x: [*x[:1], x[1] * 1j], "recording 1 .*Complex data not supported"),
        (lambda x: x.astype("datetime64[s]"), "recording 0 .*datetime64"),
        (lambda x: [pd.DataFrame(x[0]).assign(who="me")], "recording 0 cannot be read as real numbers"),
    ],
)
def test_what_is_no_real_number_is_refused(recordings: np.ndarray, change: Any, message: str) -> None:
    refuses(message, CPCTransformer(**SMALL).fit, change(recordings))


def test_a_pickle_holds_the_model_of_the_cpu(recordings: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here is no GPU: a model that notes in a weight that it was moved stands for a model of one."""
    monkeypatch.setattr(CPC, "cpu", lambda self: self.requires_grad_(False))
    made = CPCTransformer(**SMALL).fit(recordings)
    again = pickle.loads(pickle.dumps(make_pipeline(made)))[0]
    assert not any(weight.requires_grad for weight in again.model_.parameters())
    assert all(weight.requires_grad for weight in made.model_.parameters()), "the estimator keeps its model"
    np.testing.assert_array_equal(again.transform(recordings), made.transform(recordings))
    refuses("`device`=cuda:99 cannot be used", again.set_params(device="cuda:99").transform, recordings)


def test_lines_about_the_data_are_printed_on_demand(recordings: np.ndarray, capfd: pytest.CaptureFixture[str]) -> None:
    ragged = [recordings[0][:8], *recordings[1:]]
    for verbose in (False, True):
        made = CPCTransformer(**SMALL, num_steps=2, verbose=verbose).fit(ragged)
        made.transform(ragged)
        output = capfd.readouterr()
        assert ("instead of 16" in output.out, "pretrain" in output.err) == (verbose, verbose)
        assert verbose or output == ("", "")


def test_errors_of_the_library_name_arguments_of_the_estimator(recordings: np.ndarray, tmp_path: Path) -> None:
    CPCTransformer(**SMALL | {"max_steps": 0}).fit(recordings).save(tmp_path)
    cases: list[tuple[dict[str, Any], np.ndarray, str]] = [
        ({"negatives": "easy"}, recordings, "`negatives`='easy' is not one of"),
        ({"negatives": "mixed_excluding"}, recordings[:1], "only one sequence .*`negatives`"),
        ({"negatives": "same_speaker"}, recordings, "fill in `groups`, .* or choose other negatives .`negatives`."),
        ({"init_from": tmp_path, "window_samples": 20}, recordings, "raise `window_samples`, use longer recordings"),
    ]
    for options, X, message in cases:
        with pytest.raises(ValueError, match=message) as raised:
            CPCTransformer(**SMALL, **options).fit(X)
        assert not re.search(r"--\w|init_args|(data|model|loss)\.\w", str(raised.value))
