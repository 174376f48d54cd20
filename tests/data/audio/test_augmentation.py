"""What augmentation does to a waveform, against closed forms, and where it is applied."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opened import opened
from scipy import signal, stats
from torchdata.stateful_dataloader import StatefulDataLoader

import cpc
from cpc.data import Audio, index_folder
from cpc.data.audio.augmentation import (
    Augmenter,
    WaveformAugmentation,
    coloured_noise,
    drop_band,
    reverberate,
    room_response,
    shift_pitch,
)
from cpc.data.audio.pack import pack
from cpc.data.recordings.windows import NUM_CHANGES, WindowDataset

RATE = 16000
EVERYTHING: dict[str, Any] = {
    "pitch_cents": 300.0,
    "noise_snr_db": (5.0, 15.0),
    "noise_band_hz": (80.0, 240.0),
    "reverb_ms": (100.0, 400.0),
    "band_drop_hz": 150.0,
    "time_drop_ms": 20.0,
    "gain_db": 6.0,
}


def sine(hz: float, num_samples: int = 20480) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(num_samples) / RATE).astype(np.float32)


def level_db(x: np.ndarray) -> float:
    return 10 * np.log10(np.mean(np.square(x, dtype=np.float64)))


def pitch_hz(x: np.ndarray) -> float:
    """Of a sine: where its spectrum is highest, a hundredth of a hertz apart."""
    spectrum = np.abs(np.fft.rfft(x * np.hanning(len(x)), 100 * RATE))
    return float(np.argmax(spectrum)) / 100


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory, write_audio: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("noise")
    for number, seconds in enumerate((0.3, 2.0)):  # one is shorter than a window
        write_audio(folder / f"{number}.wav", seconds, sample_rate_hz=8000, seed=100 + number)
    index_folder(folder, valid_share=0.0, test_share=0.0, progress=False)
    return folder


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory, write_audio: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    for number in range(8):
        # 0.15 s are shorter than a window of 3200 samples
        where, seconds = ("valid", 0.5) if number > 5 else ("train", 0.15 if number == 0 else 0.5)
        write_audio(folder / where / f"{number}.wav", seconds, seed=number)
    index_folder(folder, split_level=0, progress=False)
    return folder


def audio(speech: Path, **options: Any) -> Audio:
    given = WaveformAugmentation(**options) if options else None
    return Audio(manifest=str(speech), window_samples=3200, batch_size=4, augmentation=given)


def model() -> cpc.CPC:
    encoder = cpc.encoders.AudioEncoder(dim=8)
    return cpc.CPC(encoder, cpc.contexts.GRU(dim=8), cpc.predictors.Bilinear(num_steps=2))


def windows(data: Audio) -> WindowDataset:
    return opened(data, model().encoder).windows("train", is_training=True)


@pytest.mark.parametrize("noise", ["white", "pink", "brown", "recorded"])
@pytest.mark.parametrize("band", [None, (80.0, 240.0)])
def test_noise_has_its_ratio_and_lies_in_its_band(noise: str, band: tuple | None, recordings: Path) -> None:
    where = pack(cpc.data.read_manifest(recordings), RATE, progress=False) if noise == "recorded" else None
    options = WaveformAugmentation(noise_snr_db=(7.0, 7.0), noise=noise, noise_band_hz=band)
    x = 0.1 * sine(500)
    added = Augmenter(options, RATE, where)(x, key=3) - x
    assert level_db(x) - level_db(added) == pytest.approx(7, abs=0.01)
    if band is not None:
        hz, power = signal.periodogram(added, RATE, "hann")
        assert power[(hz < 70) | (hz > 250)].sum() < 0.01 * power.sum()


@pytest.mark.parametrize(("colour", "db_per_octave"), [("white", 0.0), ("pink", -3.01), ("brown", -6.02)])
def test_colours_fall_as_they_are_defined(colour: str, db_per_octave: float) -> None:
    noise = coloured_noise(40 * RATE, colour, RATE, np.random.default_rng(0))
    hz, power = signal.welch(noise, RATE, nperseg=RATE)
    octaves = [power[(hz >= low) & (hz < 2 * low)].mean() for low in (100, 200, 400, 800, 1600, 3200)]
    np.testing.assert_allclose(np.diff(10 * np.log10(octaves)), db_per_octave, atol=0.25)


def test_silence_stays_silent() -> None:
    silence = np.zeros(8000, np.float32)
    changed = Augmenter(WaveformAugmentation(**EVERYTHING), RATE)(silence, key=1)
    assert not changed.any()
    assert len(changed) == 8000


def test_a_dropped_band_is_gone_and_what_lies_beside_it_stays() -> None:
    middle = slice(2000, -2000)  # a sine that begins and ends is no sine there
    for hz in (1010, 1100, 1190):
        assert level_db(drop_band(sine(hz), 1000.0, 1200.0, RATE)[middle]) < level_db(sine(hz)) - 40
    for hz in (200, 960, 1240, 5000):
        np.testing.assert_allclose(drop_band(sine(hz), 1000.0, 1200.0, RATE)[middle], sine(hz)[middle], atol=0.01)


@pytest.mark.parametrize("rt60_ms", [100.0, 300.0, 800.0])
def test_a_room_decays_by_60_db_in_its_time(rt60_ms: float) -> None:
    """By Schroeder's backward integration (1965): the slope from -5 to -35 dB."""
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(8):
        response = room_response(rt60_ms, 6.0, RATE, rng).astype(np.float64)
        assert np.square(response).sum() == pytest.approx(1, abs=1e-5)
        assert 10 * np.log10(response[0] ** 2 / np.square(response[1:]).sum()) == pytest.approx(6, abs=1e-3)
        left = 10 * np.log10(np.square(response[1:])[::-1].cumsum()[::-1])
        left -= left[0]
        first, last = np.argmax(left < -5), np.argmax(left < -35)
        estimates.append(2 * (last - first) / RATE * 1000)
    assert np.mean(estimates) == pytest.approx(rt60_ms, rel=0.05)


def test_reverberation_is_a_causal_convolution() -> None:
    rng = np.random.default_rng(0)
    x, response = rng.standard_normal(3000).astype(np.float32), room_response(50.0, 3.0, RATE, rng)
    expected = np.convolve(x.astype(np.float64), response)[:3000]
    np.testing.assert_allclose(reverberate(x, response), expected, atol=1e-5)


@pytest.mark.parametrize("cents", [-1200.0, -40.0, 0.0, 300.0, 1200.0])
def test_pitch_goes_up_by_its_cents_and_nothing_else_changes(cents: float) -> None:
    for hz in (150.0, 440.0, 2000.0):
        shifted = shift_pitch(sine(hz), cents, RATE)
        assert len(shifted) == 20480
        assert shifted.dtype == np.float32
        assert 1200 * np.log2(pitch_hz(shifted) / hz) == pytest.approx(cents, abs=5)
        assert level_db(shifted[1600:-1600]) == pytest.approx(level_db(sine(hz)), abs=0.6)


@pytest.mark.parametrize("cents", [-300.0, -100.0, 100.0, 300.0])
def test_sounds_keep_their_time_when_pitch_is_shifted(cents: float) -> None:
    x = np.zeros(20480, np.float32)
    for start in range(2000, 20000, 4000):
        x[start : start + 1500] = sine(300, 1500)
    shifted = shift_pitch(x, cents, RATE)
    for start in range(2000, 20000, 4000):
        loud = np.flatnonzero(np.abs(shifted[start - 1000 : start + 2500]) > 0.3) - 1000
        assert abs(loud[0]) < 0.012 * RATE
        assert abs(loud[-1] - 1500) < 0.012 * RATE


@pytest.mark.parametrize("cents", [-400.0, 400.0])
def test_the_end_does_not_sound_at_the_beginning(cents: float) -> None:
    x = np.zeros(20480, np.float32)
    x[-4000:] = np.cos(2 * np.pi * 200 * np.arange(-4000, 0) / RATE)  # loudest at the end
    assert np.abs(shift_pitch(x, cents, RATE)[:10000]).max() < 1e-3


@pytest.mark.parametrize("num_samples", [1, 2, 159, 641, 4999])
def test_windows_of_any_length_keep_it(num_samples: int) -> None:
    x = 0.1 * np.random.default_rng(0).standard_normal(num_samples).astype(np.float32)
    for key in range(20):
        changed = Augmenter(WaveformAugmentation(**EVERYTHING), RATE)(x, key)
        assert changed.shape == x.shape
        assert changed.dtype == np.float32
        assert np.isfinite(changed).all()


def test_dropped_time_is_one_span_of_zeros() -> None:
    x = 1 + np.arange(3200, dtype=np.float32)
    augmenter = Augmenter(WaveformAugmentation(time_drop_ms=50.0), RATE)
    lengths, starts = [], []
    for key in range(400):
        changed = augmenter(x, key)
        (dropped,) = np.nonzero(changed == 0)
        assert (np.diff(dropped) == 1).all()
        np.testing.assert_array_equal(np.delete(changed, dropped), np.delete(x, dropped))
        lengths.append(len(dropped))
        starts.append(dropped[0] if len(dropped) else 0)
    # uniform: 0..800 samples, anywhere; four standard errors
    assert np.mean(lengths) == pytest.approx(400, abs=4 * 800 / np.sqrt(12 * 400))
    assert min(starts) < 100
    assert max(np.add(starts, lengths)) > 3100


def test_gain_is_uniform_in_decibels() -> None:
    x = 0.1 * np.random.default_rng(0).standard_normal(1600).astype(np.float32)
    augmenter = Augmenter(WaveformAugmentation(gain_db=10.0), RATE)
    gains_db = np.array([level_db(augmenter(x, key)) - level_db(x) for key in range(400)])
    assert stats.kstest(gains_db, stats.uniform(-10, 20).cdf).pvalue > 1e-3
    np.testing.assert_allclose(augmenter(x, 7) / x, np.full(1600, 10 ** (gains_db[7] / 20)), rtol=1e-5)


def test_a_key_decides_everything_and_each_change_has_draws_of_its_own() -> None:
    x = 0.1 * np.random.default_rng(0).standard_normal(4800).astype(np.float32)
    augmenter = Augmenter(WaveformAugmentation(**EVERYTHING), RATE)
    np.testing.assert_array_equal(augmenter(x, 7), augmenter(x.copy(), 7))
    assert np.abs(augmenter(x, 7) - augmenter(x, 8)).max() > 0.01
    drop, both = {"time_drop_ms": 20.0}, {"time_drop_ms": 20.0, "noise_snr_db": (5.0, 15.0)}
    dropped = [Augmenter(WaveformAugmentation(**options), RATE)(x, 7) == 0 for options in (drop, both)]
    assert dropped[0].any()
    np.testing.assert_array_equal(*dropped)


def test_the_target_is_the_window_unchanged_and_padding_stays_zero(speech: Path) -> None:
    plain, past, both = (
        windows(audio(speech, **options)) for options in ({}, EVERYTHING, EVERYTHING | {"applied_to": "both"})
    )
    starts = [(0, 0), (2, 1234), (3, 0), (2, 1234)]
    drawn = [(file, start * NUM_CHANGES + change) for change, (file, start) in enumerate(starts)]
    clean, changed = plain.__getitems__(starts), past.__getitems__(drawn)
    assert clean.target is None
    assert both.__getitems__(drawn).target is None
    assert torch.equal(changed.target, clean.x)  # type: ignore[arg-type]
    assert torch.equal(changed.x, both.__getitems__(drawn).x)
    for name in ("num_valid", "sequence_id", "group_id", "labels"):
        assert torch.equal(getattr(changed, name), getattr(clean, name))
    assert clean.num_valid[0] == 2400
    assert not changed.x[0, 2400:].any()
    assert (changed.x - clean.x).abs().amax(1).min() > 0.01
    assert not torch.equal(changed.x[1], changed.x[3])  # the same window, drawn again


def test_every_start_is_drawn_as_without_augmentation_and_short_files_change_anew(speech: Path) -> None:
    data, net = audio(speech, **EVERYTHING), model()
    training = data.training(opened(data, net.encoder), net)
    drawn = [draw for index in range(300) for draw in training.batches.batch(index)]
    starts = np.array([number // NUM_CHANGES for file, number in drawn if file == 1])
    assert starts.max() <= 8000 - 3200
    assert starts.mean() == pytest.approx(2400, abs=4 * 4800 / np.sqrt(12 * len(starts)))
    of_short = [number for file, number in drawn if file == 0]
    assert max(of_short) < NUM_CHANGES
    assert len(set(of_short)) == len(of_short)


def loader(data: Audio, num_workers: int) -> StatefulDataLoader:
    net = model()
    training = data.training(opened(data, net.encoder), net)
    sampling = {"batch_sampler": training.batches, "num_workers": num_workers}
    return StatefulDataLoader(training.dataset, collate_fn=lambda whole: whole, **sampling)


# torchdata 0.11 calls a function that torch 2.14 deprecates; nothing replaces it.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_workers_and_a_resume_change_nothing(speech: Path, recordings: Path) -> None:
    data = audio(speech, **EVERYTHING, noise=str(recordings))
    taken = iter(loader(data, 0))
    expected = [next(taken) for _ in range(6)]
    two = loader(data, 2)
    batches = iter(two)
    found = [next(batches) for _ in range(3)]
    state = two.state_dict()
    del batches
    resumed = loader(data, 2)
    resumed.load_state_dict(state)
    batches = iter(resumed)
    found += [next(batches) for _ in range(3)]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.target, other.target)  # type: ignore[arg-type]


def test_nothing_else_than_training_is_changed(speech: Path) -> None:
    plain, augmented, net = audio(speech), audio(speech, **EVERYTHING), model()
    batches = [data.held_out(opened(data, net.encoder), net).batches("mixed") for data in (plain, augmented)]
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.x, other.x)
        assert other.target is None
    for data in (plain, augmented):
        assert opened(data, net.encoder).windows("train").augmenter is None
    first, second = (data.initialisation_batch(opened(data, net.encoder)) for data in (plain, augmented))
    assert torch.equal(first, second)


def test_clean_latents_are_predicted_from_changed_contexts(speech: Path, generator: torch.Generator) -> None:
    batch = windows(audio(speech, **EVERYTHING)).__getitems__([(file, 1000 * NUM_CHANGES) for file in (1, 2, 3, 4)])
    net = model()
    output = net(batch.x)
    clean = output._replace(latents=net.encoder(batch.target))
    expected = net.loss_part(clean, net.sequences(clean, batch), generator)
    assert torch.equal(net.loss(batch).loss, expected.loss)
    gradients = [torch.autograd.grad(loss, list(net.parameters())) for loss in (net.loss(batch).loss, expected.loss)]
    torch.testing.assert_close(*gradients)  # through contexts and positives
    assert not torch.equal(net.loss(batch).loss, net.loss(batch._replace(target=None)).loss)
    # what is predicted of an unchanged batch is its own latents
    same = batch._replace(x=batch.target)
    assert torch.allclose(net.loss(same).loss, net.loss(same._replace(target=None)).loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has no effect"),
        ({"pitch_cents": 0}, "`augmentation.pitch_cents`=0 must be positive and at most 1200"),
        ({"noise_snr_db": (15, 5)}, r"noise_snr_db`=\[15, 5\] must be two .* -100 to 100, the lower one first"),
        ({"band_drop_hz": 9000}, "band_drop_hz`=9000 must be positive and at most 8000"),
        ({"noise_snr_db": (5, 15), "noise_band_hz": (7000, 9000)}, "noise_band_hz`=.*from 0 to 8000"),
        ({"noise_snr_db": (5, 15), "noise_band_hz": (80, 85)}, "noise_band_hz`=.*at least 10 Hz wide"),
        ({"pitch_cents": 100, "noise": "pink"}, "have no effect without `augmentation.noise_snr_db`"),
    ],
)
def test_options_that_cannot_be_met(options: dict, message: str, speech: Path, unchecked_types: None) -> None:
    data = replace(audio(speech), augmentation=WaveformAugmentation(**options))
    with pytest.raises(ValueError, match=message):
        data.check(model())


def test_noise_that_is_not_there_is_named(speech: Path) -> None:
    with pytest.raises(ValueError, match=r"`augmentation.noise`='nowhere': there is no manifest"):
        windows(audio(speech, noise_snr_db=(5.0, 15.0), noise="nowhere"))
