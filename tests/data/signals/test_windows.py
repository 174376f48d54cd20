"""Windows, statistics and labels of signals against numpy on the raw arrays."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from opened import opened
from refusals import refuses

import cpc
from cpc.data import Signals
from cpc.data.recordings.windows import FLOOR_QUANTILE, Starts, ranges_of, signal_statistics, usable_starts
from cpc.encoders import SignalEncoder

RATE_HZ = 20.0
LENGTHS = [400, 250, 90, 333, 1, 260]
GROUPS = ["a", "a", "b", "b", "c", "c"]
SPLITS = ["train", "train", "valid", "train", "train", "test"]


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(length, 2)) * [1, 30] + [5, -100]).astype(np.float32) for length in LENGTHS]


@pytest.fixture(scope="module")
def source(arrays: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signals") / "signals.npz"
    label = np.concatenate([np.arange(length) // 100 for length in LENGTHS])
    np.savez(path, x=np.concatenate(arrays), length=LENGTHS, group=GROUPS, split=SPLITS, label=label)
    return path


def encoder(**options: object) -> SignalEncoder:
    return SignalEncoder(2, 4, RATE_HZ, kernels=(4, 2), strides=(2, 2), **options)


def data(source: Path, **options: object) -> Signals:
    return Signals(**{"source": str(source), "sample_rate_hz": RATE_HZ, "window_seconds": 5.0, **options})


def test_windows_need_a_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the recordings have one latent; a batch of one window never fails, in training or held out."""
    lengths, rng = [60, 5] * 8, np.random.default_rng(4)
    path = tmp_path / "short.npz"
    np.savez(path, x=rng.normal(size=(sum(lengths), 2)), length=lengths, split=["train"] * 8 + ["valid"] * 8)
    model = cpc.CPC(encoder(), cpc.contexts.GRU(4), cpc.predictors.Bilinear(2))
    modality = data(path, batch_size=1, valid_share=0.0)
    corpus = opened(modality, model.encoder)
    training, held_out = modality.training(corpus, model), modality.held_out(corpus, model)
    drawn = [training.dataset.lengths[row] for step in range(100) for row, _ in training.batches.batch(step)]
    assert set(drawn) == {60}
    assert [len(batch.x) for batch in held_out.batches("mixed")] == [1] * 4
    assert "split 'train': 4 of 8 recordings have fewer than the 2 latents" in capsys.readouterr().err
    assert len(corpus.windows("train").lengths) == 8
    with pytest.raises(ValueError, match="the longest recording gives 15 latents, but the model predicts 15 steps"):
        modality.training(corpus, cpc.CPC(encoder(), cpc.contexts.GRU(4), cpc.predictors.Bilinear(15)))


def test_statistics_are_those_of_the_training_split(source: Path, arrays: list[np.ndarray]) -> None:
    made = encoder(level_seconds=1.0)
    corpus = opened(data(source), made)
    train = np.concatenate([arrays[row] for row, split in enumerate(SPLITS) if split == "train"]).astype(np.float64)
    mean, std, floor = corpus.statistics("train")
    np.testing.assert_allclose(mean, train.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, train.std(0), rtol=1e-12)
    parts = [
        arrays[row][start : start + 20].astype(np.float64).std(0)
        for row in (0, 1, 3)
        for start in range(0, LENGTHS[row] // 20 * 20, 20)
    ]
    np.testing.assert_allclose(floor, np.quantile(parts, FLOOR_QUANTILE, axis=0), rtol=1e-12)


def test_missing_samples_do_not_enter_statistics() -> None:
    x = np.random.default_rng(1).normal(3, 2, size=(100, 1))
    x[10:30] = np.nan
    mean, std, floor = signal_statistics([x], 10)
    known = x[~np.isnan(x)]
    np.testing.assert_allclose([mean[0], std[0]], [known.mean(), known.std()], rtol=1e-12)
    blocks = [x[start : start + 10].std() for start in range(0, 100, 10) if not np.isnan(x[start])]
    np.testing.assert_allclose(floor[0], np.quantile(blocks, FLOOR_QUANTILE), rtol=1e-12)
    refuses("channel 1 has no known sample", signal_statistics, [np.stack([np.arange(5.0), np.full(5, np.nan)], 1)], 2)


def test_windows_mark_their_known_samples(tmp_path: Path) -> None:
    """A sample is known if a channel is; a batch without missing samples has no mask, also if it has padding."""
    x = np.random.default_rng(2).normal(size=(2, 300, 2)).astype(np.float32)
    x[0, 40:80] = np.nan
    x[1, 250:, 0] = np.nan
    np.save(tmp_path / "x.npy", x)
    made = encoder()
    corpus = opened(data(tmp_path / "x.npy", missing="mask", train_split="train", valid_share=0.0), made)
    windows = corpus.windows(None)
    batch = windows.__getitems__([(0, 20), (1, 200)])
    assert batch.is_known[0].nonzero()[:, 0].tolist() == [*range(20), *range(60, 100)]
    assert batch.is_known[1].all()
    assert made.known_latents(batch.is_known)[0].nonzero()[:, 0].tolist() == [*range(5), *range(15, 25)]
    assert windows.__getitems__([(0, 100), (1, 200)]).is_known is None


def test_only_masked_batches_are_searched(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("refuse", "mask")
    windows = {option: opened(data(source, missing=option), encoder()).windows("train") for option in options}
    assert all(each.__getitems__([(0, 0), (2, 1)]).is_known is None for each in windows.values())
    monkeypatch.setattr(np, "isnan", None)
    assert windows["refuse"].__getitems__([(0, 0), (2, 1)]).is_known is None
    with pytest.raises(TypeError, match="not callable"):
        windows["mask"].__getitems__([(0, 0), (2, 1)])


@pytest.mark.parametrize("window_samples", [8, 20, 21, 400])
def test_usable_starts_are_those_of_windows_with_two_known_latents(window_samples: int) -> None:
    """The oracle cuts each window, and looks at its own latents."""
    rng, made = np.random.default_rng(3), SignalEncoder(2, 4, RATE_HZ, kernels=(6, 2), strides=(2, 2))
    is_known = np.repeat(rng.random(23) < 0.3, rng.integers(1, 20, 23))
    starts = range(max(len(is_known) - window_samples, 0) + 1)
    windows = [torch.from_numpy(is_known[start : start + window_samples]) for start in starts]
    known = [made.known_latents(window[None])[0].tolist() for window in windows]
    for steps in ([0], [1], [2, 3], [4]):
        expected = [any(one[t] and one[t + k] for k in steps for t in range(len(one) - k)) for one in known]
        is_usable = usable_starts(is_known, made, window_samples, steps)
        assert is_usable.tolist() == expected
        assert window_samples == 400 or steps[0] > 1 or 0 < sum(expected) < len(expected)
        numbered = Starts(np.array([sum(expected)]), {0: ranges_of(is_usable)})
        assert [numbered.first_sample(0, i) for i in range(sum(expected))] == np.flatnonzero(expected).tolist()


def test_mostly_missing_recordings_train_and_are_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every batch of one window has a loss, though nine tenths of the samples are missing."""
    x = np.random.default_rng(5).normal(size=(6, 2000, 2)).astype(np.float32)
    x[:, 100:1900] = np.nan
    x[:, 1000:1060] = 1.0
    x[4, 4:] = np.nan  # one known latent
    np.savez(tmp_path / "gaps.npz", x=x, split=["train"] * 3 + ["valid"] * 3)
    model = cpc.CPC(encoder(), cpc.contexts.GRU(4), cpc.predictors.Bilinear(2))
    modality = data(tmp_path / "gaps.npz", missing="mask", batch_size=1)
    corpus = opened(modality, model.encoder)
    modality.standardise(model.encoder, corpus)
    batch = modality.initialisation_batch(corpus)
    assert not batch.isnan().all(2).all(1).any()
    model.initialise_from(batch)
    training, held_out = modality.training(corpus, model), modality.held_out(corpus, model)
    firsts = set()
    for step in range(100):
        ((recording, number),) = draws = training.batches.batch(step)
        firsts.add(training.dataset.starts.first_sample(recording, number))
        assert model.loss(training.dataset.__getitems__(draws)).loss.isfinite()
    assert any(start < 100 for start in firsts)
    assert any(900 < start < 1060 for start in firsts)
    assert any(start > 1800 for start in firsts)
    batches = list(held_out.batches("mixed"))
    assert all(model.loss(batch).loss.isfinite() for batch in batches)
    assert {batch.sequence_id.item() for batch in batches} == {3, 5}
    said = capsys.readouterr().err
    assert re.search(r"split 'valid': of 5703 windows \d{4} are left out, .*; 1 of 3 recordings gives none", said)


def test_a_split_without_a_known_pair_of_latents_is_an_error(tmp_path: Path) -> None:
    x = np.full((2, 500, 2), np.nan, np.float32)
    x[:, :4] = [[1, 2], [3, 5], [2, 2], [0, 1]]
    np.savez(tmp_path / "gaps.npz", x=x)
    model = cpc.CPC(encoder(), cpc.contexts.GRU(4), cpc.predictors.Bilinear(2))
    modality = data(tmp_path / "gaps.npz", missing="mask", valid_share=0.0)
    refuses(r"of 802 windows 802 are left out", modality.training, opened(modality, model.encoder), model)


def test_masks_need_an_encoder_that_knows_its_latents(source: Path) -> None:
    class Other(SignalEncoder):
        known_latents = property()  # an AttributeError, as if there were none

    with pytest.raises(ValueError, match=r"`missing`=mask needs an encoder .* Other has no method known_latents"):
        data(source, missing="mask").check_encoder(Other(2, 4, RATE_HZ, kernels=(4, 2), strides=(2, 2)))


def test_labels_of_latents_are_those_of_the_sample_at_their_centre(source: Path) -> None:
    made = encoder(front="raw", causal=False)
    corpus = opened(data(source, labels="label"), made)
    labels = corpus.windows(None).__getitems__([(0, 60), (3, 233)]).labels
    for row, (recording, start) in zip(labels, [(0, 60), (3, 233)], strict=True):
        centres = np.round(made.first_centre_samples + 4 * np.arange(25)).astype(int)
        expected = np.clip(start + centres, 0, LENGTHS[recording] - 1) // 100
        assert row.tolist() == expected.tolist()


def test_refusals(source: Path) -> None:
    refuses("`labels`='mood' is not among the labels of the source", opened, data(source, labels="mood"), encoder())
    refuses("has 1 channels", opened, data(source, channels=[0]), encoder())
    refuses("sample_rate_hz`=10, but", data(source, sample_rate_hz=10.0).check_encoder, encoder())
    corpus = opened(data(source), encoder())
    refuses("is of split 'dev'; the splits are test, train, valid", corpus.check, "dev")
    corpus.check("train", needs_speakers=True)
    assert torch.isfinite(corpus.initialisation_windows("train", 8, 0)).all()
    assert [corpus.speakers[group] for group in corpus.group_ids] == GROUPS
