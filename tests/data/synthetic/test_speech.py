import hashlib
import importlib
import itertools
import json
import time
from collections import defaultdict

import numpy as np
import pytest
import soundfile
from refusals import refuses

from cpc.data import read_alignments, read_manifest
from cpc.data.synthetic import speech as synthesis
from cpc.data.synthetic.espeak import CLASS_OF_MNEMONIC, Espeak, Speech, Voice, phone_class, phone_segments
from cpc.data.synthetic.espeak import SAMPLE_RATE_HZ as ESPEAK_RATE_HZ
from cpc.data.synthetic.speech import ACCENTS, FEMALE_VARIANTS, MALE_VARIANTS, draw_speakers, resample, synthesize

SMALL = {"num_speakers": 8, "num_heldout_speakers": 2, "minutes": 2.0, "progress": False}
TEXT = "A copper kettle kept talking to the old fisher."


@pytest.fixture(scope="session", autouse=True)
def _library():
    pytest.importorskip("espeakng_loader", reason="the optional extra `speech` is not installed")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthesis") / "corpus"
    synthesize(folder, **SMALL)
    return folder


def rows(folder):
    manifest = read_manifest(folder)
    return [dict(zip(manifest.columns, row, strict=True)) for row in zip(*manifest.columns.values(), strict=True)]


def samples_of(folder, row):
    return soundfile.read(folder / row["path"])[0]


# --- the library


def test_espeak_says_the_same_at_any_time_whatever_was_said_before_and_beside_it():
    voices = [Voice("en-us", variant) for variant in (*FEMALE_VARIANTS, *MALE_VARIANTS)]

    def said(warm_up):
        with Espeak() as espeak, Espeak() as other:
            for text in warm_up:
                other.speak(text, voices[2])
            return [espeak.speak("Few people ate there.", voice) for voice in voices]

    first = said([])
    time.sleep(1.1)  # the library seeds its noise with the time in seconds
    for once, again in zip(first, said(["Hello there.", TEXT]), strict=True):
        assert np.array_equal(once.samples, again.samples)
        assert once.phonemes == again.phonemes


def test_espeak_refuses_voices_it_does_not_have():
    with Espeak() as espeak:
        assert espeak.version.startswith("1.")
        for voice in (Voice("en-us", "nosuch"), Voice("en-nowhere", "f1")):
            refuses(rf"no voice '{voice.accent}\+{voice.variant}'", espeak.speak, TEXT, voice)


def test_every_voice_of_the_corpus_speaks_without_overdriving():
    with Espeak() as espeak:
        for variant in (*FEMALE_VARIANTS, *MALE_VARIANTS):
            peak = np.abs(espeak.speak(TEXT, Voice("en-us", variant)).samples.astype(int)).max()
            assert 3000 < peak < 32000, variant
        for accent in ACCENTS:
            labels = {phone_class(name) for _, name in espeak.speak(TEXT, Voice(accent, "m1")).phonemes}
            assert labels <= {"sil", *CLASS_OF_MNEMONIC.values()}


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch, tmp_path):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    refuses(r"--extra speech.*contrastive-predictive-coding\[speech\]", synthesize, tmp_path / "corpus", **SMALL)
    assert list(tmp_path.iterdir()) == []


# --- phones


@pytest.mark.parametrize(
    ("mnemonic", "phone"),
    [("'3:", "er"), ("3", "axr"), ("t[", "t"), ("t#", "dx"), ("n-", "n"), ("_:", "sil"), ("_!", "sil"), (",aI3", "ay"),
     ("w#", "w"), ("x", "x"), ("'Q1", "Q1")],
)  # fmt: skip
def test_phone_classes(mnemonic, phone):
    assert phone_class(mnemonic) == phone


def test_a_pause_goes_to_the_phone_it_prepares_but_silence_stays_silence():
    samples = np.zeros(1000, dtype=np.int16)
    for start, end in ((100, 300), (350, 500), (700, 900)):
        samples[start:end] = 5000
    events = [(100, "a"), (350, "t"), (400, "l"), (400, "'i:"), (520, "_:"), (700, "k"), (900, "_"), (950, "_:")]
    assert phone_segments(Speech(samples, events)) == [
        (0, 100, "sil"),
        (100, 300, "ae"),
        (300, 400, "t"),  # from the end of the vowel, through its closure; "l" was given no samples
        (400, 520, "iy"),
        (520, 700, "sil"),
        (700, 900, "k"),
        (900, 1000, "sil"),
    ]


def test_the_closure_of_a_real_stop_is_silent_and_its_release_is_not():
    with Espeak() as espeak:
        speech = espeak.speak(TEXT, Voice("en-us", "f2"))  # f2 has an echo of its own, which must not fill the closure
    level = np.abs(speech.samples.astype(int))
    closures = 0
    segments = phone_segments(speech)
    for (_, _, before), (start, end, label) in itertools.pairwise(segments):
        if label in ("k", "t", "p") and before != "sil":
            closed = round(0.015 * ESPEAK_RATE_HZ)
            assert level[start : start + closed].max() <= speech.silence_ceiling
            assert level[start - 50 : start].max() > speech.silence_ceiling
            assert level[start + closed : end].max() > 500
            closures += 1
    assert closures >= 5


# --- speakers


def test_speakers_are_balanced_and_held_out_voices_are_unheard():
    speakers = draw_speakers(48, 8, seed=0)
    assert len({speaker.name for speaker in speakers}) == len({speaker.voice for speaker in speakers}) == 48
    heldout = [speaker for speaker in speakers if speaker.is_heldout]
    others = [speaker for speaker in speakers if not speaker.is_heldout]
    assert {speaker.voice.accent for speaker in heldout} == set(ACCENTS)
    assert len({speaker.voice.variant for speaker in heldout}) == 8
    assert not {speaker.voice.variant for speaker in heldout} & {speaker.voice.variant for speaker in others}
    for group in (heldout, others):
        assert sum(speaker.sex == "f" for speaker in group) == len(group) / 2
    for accent in ACCENTS:
        sexes = [speaker.sex for speaker in others if speaker.voice.accent == accent]
        assert len(sexes) == 5
        assert set(sexes) == {"f", "m"}
    assert draw_speakers(48, 8, seed=1) != speakers
    for num_heldout in (0, 48, 50):
        refuses(f"=48, .*={num_heldout} must be at least 1 and at most 47", draw_speakers, 48, num_heldout, seed=0)


# --- signal


def test_resampling_keeps_every_moment_in_its_place():
    seconds = 0.73
    old_time = np.arange(round(seconds * 22050)) / 22050
    window = np.sin(np.pi * old_time / seconds) ** 2
    new_time = np.arange(int(np.ceil(len(old_time) * 320 / 441))) / 16000
    new_window = np.sin(np.pi * new_time / seconds) ** 2
    for frequency_hz in (100, 1000, 7000):
        resampled = resample(window * np.sin(2 * np.pi * frequency_hz * old_time))
        assert len(resampled) == len(new_time)
        assert np.abs(resampled - new_window * np.sin(2 * np.pi * frequency_hz * new_time)).max() < 1e-3
    assert np.abs(resample(window * np.sin(2 * np.pi * 9000 * old_time))).max() < 1e-3  # does not fold back


# --- the corpus


def test_splits_share_no_texts_nor_test_speakers_and_have_their_shares(corpus):
    split_items = defaultdict(lambda: {"speaker": set(), "text": set()})
    seconds, count = defaultdict(float), defaultdict(int)
    for row in rows(corpus):
        seconds[row["split"]] += int(row["num_samples"]) / 16000
        count[row["split"], row["speaker"]] += 1
        split_items[row["split"]]["speaker"].add(row["speaker"])
        split_items[row["split"]]["text"].add(row["text"])
    assert set(split_items) == {"train", "valid", "test"}
    assert split_items["train"]["speaker"] == split_items["valid"]["speaker"]
    assert len(split_items["train"]["speaker"]) == 6
    assert len(split_items["test"]["speaker"]) == 2
    assert not split_items["train"]["speaker"] & split_items["test"]["speaker"]
    for split, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not split_items[split]["text"] & split_items[other]["text"]

    assert min(count.values()) >= 2
    assert seconds["train"] == pytest.approx(0.8 * 120, rel=0.1)
    assert seconds["test"] == pytest.approx(0.12 * 120, rel=0.2)


def test_files_are_whole_and_neither_clipped_nor_empty_nor_shorter_than_a_window(corpus):
    for row in rows(corpus):
        info = soundfile.info(corpus / row["path"])
        assert (info.samplerate, info.channels, info.subtype, info.format) == (16000, 1, "PCM_16", "FLAC")
        assert info.frames == int(row["num_samples"]) >= 20480
        x = samples_of(corpus, row)
        assert np.abs(x).max() < 0.99
        assert -36 < 20 * np.log10(x.std()) < -19
        assert abs(x.mean()) < 0.01


def test_labels_cover_every_file_without_gap(corpus):
    alignments = read_alignments(corpus)
    assert sorted(alignments.names) == sorted(row["path"] for row in rows(corpus))
    assert set(alignments.labels) <= {"sil", *CLASS_OF_MNEMONIC.values()}
    assert len(alignments.labels) > 35
    for row in rows(corpus):
        segments = alignments.segments(row["path"])
        assert segments[0].start_seconds == 0
        assert segments[-1].end_seconds == pytest.approx(int(row["num_samples"]) / 16000, abs=1e-6)
        for segment, following in itertools.pairwise(segments):
            assert segment.end_seconds == following.start_seconds
        assert segments[0].label == segments[-1].label == "sil"
        words = len(row["text"].split())
        assert words < len(segments) < 12 * words


def frames(x):
    """Spectra of frames of 25 ms every 5 ms, and the seconds of their centres."""
    windows = np.lib.stride_tricks.sliding_window_view(x, 400)[::80] * np.hanning(400)
    return np.abs(np.fft.rfft(windows, 512)) ** 2, (np.arange(len(windows)) * 80 + 200) / 16000


@pytest.fixture(scope="module")
def labelled(corpus):
    """Per file: power spectra [T, 257], centres [T], segments."""
    alignments = read_alignments(corpus)
    return [(*frames(samples_of(corpus, row)), alignments.segments(row["path"])) for row in rows(corpus)]


def labels_at(segments, seconds):
    starts = [segment.start_seconds for segment in segments]
    at = np.clip(np.searchsorted(starts, seconds, side="right") - 1, 0, None)
    return np.array([segment.label for segment in segments])[at]


def test_labels_sound_like_what_they_say(labelled):
    level_db, share_above_3_khz, periodicity = defaultdict(list), defaultdict(list), defaultdict(list)
    frequencies_hz = np.fft.rfftfreq(512, 1 / 16000)
    for power, centres, segments in labelled:
        total = power.sum(axis=1)
        loudness = 10 * np.log10(total / total.mean())
        above = power[:, frequencies_hz > 3000].sum(axis=1) / total
        correlation = np.fft.irfft(power, axis=1)  # of 25 ms: lags of 2.5 to 12.5 ms are pitches of 400 to 80 Hz
        voiced = correlation[:, 40:200].max(axis=1) / correlation[:, 0]
        for label, *values in zip(labels_at(segments, centres), loudness, above, voiced, strict=True):
            for found, value in zip((level_db, share_above_3_khz, periodicity), values, strict=True):
                found[str(label)].append(value)

    def median(found, label):
        return np.median(found[label])

    vowels = ("iy", "ih", "eh", "ae", "oh", "ao", "ax", "ey", "ay", "uw")
    for vowel in vowels:
        assert median(level_db, vowel) > median(level_db, "sil") + 15
        assert median(share_above_3_khz, vowel) < 0.2
        assert median(periodicity, vowel) > 0.3
    for fricative in ("s", "sh"):
        assert median(share_above_3_khz, fricative) > 0.5
        assert median(periodicity, fricative) < 0.3
    assert median(share_above_3_khz, "s") > median(share_above_3_khz, "sh")  # [s] lies higher
    assert median(level_db, "sil") < min(median(level_db, label) for label in ("f", "dh", "m", "b", "d", "w", *vowels))


def test_labels_explain_the_spectrum_best_where_they_are(labelled):
    edges = np.unique(np.geomspace(2, 256, 20).astype(int))
    spectra = [np.log(np.add.reduceat(power, edges, axis=1) + 1e-9) for power, *_ in labelled]
    x = np.concatenate([spectrum - spectrum.mean() for spectrum in spectra])
    x = (x - x.mean(axis=0)) / x.std(axis=0)

    def explained(shift_seconds):
        y = np.concatenate([labels_at(segments, centres - shift_seconds) for _, centres, segments in labelled])
        return sum((y == label).mean() * (x[y == label].mean(axis=0) ** 2).mean() for label in np.unique(y))

    shares = {shift: explained(shift / 1000) for shift in (-30, -20, -10, 0, 10, 20, 30)}
    assert max(shares, key=shares.__getitem__) == 0
    assert shares[0] > 1.2 * max(shares[-30], shares[30])


def test_speakers_sound_different(corpus):
    def voice(row):
        power, _ = frames(samples_of(corpus, row))
        spectrum = np.log(np.add.reduceat(power, np.unique(np.geomspace(2, 256, 24).astype(int)), axis=1))
        loud = power.sum(axis=1) > np.median(power.sum(axis=1))
        return spectrum[loud].mean(axis=0) - spectrum[loud].mean()

    def pitch_hz(row):
        power, _ = frames(samples_of(corpus, row))
        correlation = np.fft.irfft(power[power.sum(axis=1) > np.quantile(power.sum(axis=1), 0.7)], axis=1)
        return np.median(16000 / (45 + correlation[:, 45:230].argmax(axis=1)))

    voices = defaultdict(list)
    pitches = defaultdict(list)
    for row in rows(corpus):
        if row["split"] == "train":
            voices[row["speaker"]].append(voice(row))
        pitches[row["sex"]].append(pitch_hz(row))
    names = list(voices)
    means = np.array([np.mean(voices[name], axis=0) for name in names])
    valid = [row for row in rows(corpus) if row["split"] == "valid"]
    nearest = [names[np.square(means - voice(row)).mean(axis=1).argmin()] for row in valid]
    assert np.mean([name == row["speaker"] for name, row in zip(nearest, valid, strict=True)]) > 0.8
    assert 70 < np.median(pitches["m"]) < 140 < np.median(pitches["f"]) < 300


def test_provenance_tells_how_to_make_it_again(corpus):
    record = json.loads((corpus / "corpus.json").read_text())
    assert record["parameters"]["seed"] == 0
    assert record["parameters"]["minutes"] == 2.0
    assert set(record["versions"]) == {"cpc", "python", "espeak-ng", "espeakng-loader", "numpy"}
    digest = hashlib.sha256((corpus / "alignments.csv").read_bytes()).hexdigest()
    assert record["alignments_sha256"] == digest


# --- again


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_same_arguments_give_the_same_bytes(corpus, tmp_path, num_workers):
    synthesize(tmp_path / "again", **SMALL, num_workers=num_workers)
    expected, found = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}
        for folder in (corpus, tmp_path / "again")
    )
    assert found == expected


def test_a_corpus_that_is_there_is_returned_at_once(corpus, monkeypatch):
    def speak():
        raise AssertionError("spoke again")

    monkeypatch.setattr(synthesis, "Espeak", speak)
    assert synthesize(corpus, **SMALL).columns == read_manifest(corpus).columns
    refuses(r"seed is 0 in its record, 3 here; minutes", synthesize, corpus, **SMALL | {"minutes": 3.0}, seed=3)


def test_an_incomplete_corpus_is_named(tmp_path):
    out = tmp_path / "corpus"
    out.mkdir()  # an empty folder is fair game
    manifest = synthesize(out, **(SMALL | {"minutes": 0.1}))
    manifest.files[3].unlink()
    refuses(r"is incomplete: remove the (.|\n)*1 of the .* absent", synthesize, out, **SMALL | {"minutes": 0.1})


def test_impossible_durations_are_refused(tmp_path, monkeypatch):
    for minutes in (0.0, -1.0, float("nan"), float("inf")):
        refuses("`minutes`=", synthesize, tmp_path / "corpus", **SMALL | {"minutes": minutes})
    few = synthesis.prose.sentences()[:60]
    monkeypatch.setattr(synthesis.prose, "sentences", lambda: few)
    refuses(r"lower `minutes` or raise", synthesize, tmp_path / "corpus", **SMALL | {"minutes": 10.0})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_default_corpus_takes_well_under_a_minute_and_has_its_shares(tmp_path):
    start = time.perf_counter()
    synthesize(tmp_path / "corpus", progress=False)
    assert time.perf_counter() - start < 60
    alignments = read_alignments(tmp_path / "corpus")
    phone_seconds = defaultdict(float)
    minutes = defaultdict(float)
    for row in rows(tmp_path / "corpus"):
        minutes[row["split"]] += int(row["num_samples"]) / 16000 / 60
        for start, end, label in alignments.segments(row["path"]):
            phone_seconds[label] += end - start
    assert 40 <= len(phone_seconds) <= 50
    assert min(phone_seconds.values()) > 0.0008 * 3600
    assert minutes == pytest.approx({"train": 48, "valid": 5, "test": 7.2}, rel=0.1)
    said = [(row["split"], row["text"]) for row in rows(tmp_path / "corpus")]
    assert len(set(said)) == len(said)
