"""The embedded corpus: English prose, synthesised in the voices of many speakers, with exact phone alignments.

The folder holds `manifest.csv`, `alignments.csv`, `audio/<speaker>/<utterance>.flac` (16 kHz, 16 bit) and
`corpus.json`, its provenance. Splits: `train`; `valid`, the same speakers with other sentences; `test`, other speakers
with other sentences.
"""

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from tqdm import tqdm

from cpc.config.argument_rules import Count, Positive, Range, Seed, checked
from cpc.data.audio.alignments import ALIGNMENTS_NAME
from cpc.data.audio.manifest import MANIFEST_NAME, Manifest, read_manifest
from cpc.data.store.folders import map_in_order
from cpc.data.store.text_files import format_table
from cpc.data.synthetic import prose
from cpc.data.synthetic.espeak import SAMPLE_RATE_HZ as ESPEAK_RATE_HZ
from cpc.data.synthetic.espeak import Espeak, Speech, Voice, phone_segments
from cpc.data.synthetic.record import REMEDY, make_once

# espeak-ng's accents of English except Shavian; "en" is British.
ACCENTS = ("en-us", "en", "en-gb-scotland", "en-029", "en-gb-x-rp", "en-us-nyc", "en-gb-x-gbclan", "en-gb-x-gbcwmd")
# Variants that sound human. Robots, whispers, croaks, Klatt synthesisers and variants that overdrive the library are
# left out. Also left out are variants such as Alicia, shelby and victor: a linear probe trained on all other variants
# recognises their phones only half as often.
FEMALE_VARIANTS = tuple("f1 f2 f3 f4 f5 Andrea Annie aunty belinda grandma linda steph".split())
MALE_VARIANTS = tuple("m1 m2 m3 m4 m5 m6 m7 m8 Alex Diogo Mario Mike michel quincy robert".split())

PITCHES = (35, 65)
PITCH_RANGES = (30, 75)
WORDS_PER_MINUTE = (145, 205)


@dataclass(frozen=True)
class Speaker:
    """A speaker of the corpus."""

    name: str
    sex: str
    voice: Voice
    is_heldout: bool


def draw_speakers(num_speakers: int, num_heldout: int, seed: int) -> list[Speaker]:
    """Draw random speakers. The last `num_heldout` are held out.

    In each group sexes alternate, and accents and variants take turns. If there are enough variants, held-out speakers
    have other variants than training speakers, so that their vocal tracts are not in the training data.
    """
    Range(1, num_speakers - 1).check(f"of `num_speakers`={num_speakers}, `num_heldout_speakers`", num_heldout)
    rng = np.random.default_rng([seed, num_speakers, num_heldout])
    shuffled = {sex: rng.permutation(names).tolist() for sex, names in (("f", FEMALE_VARIANTS), ("m", MALE_VARIANTS))}
    speakers = []
    for position in range(num_speakers):
        is_heldout = position >= num_speakers - num_heldout
        turn = position - (num_speakers - num_heldout) if is_heldout else position
        sex = "fm"[turn % 2]
        variants = shuffled[sex]
        reserved = min((num_heldout + 1) // 2, len(variants) // 3)
        variants = variants[:reserved] if is_heldout else variants[reserved:]
        voice = Voice(
            # The accents shift by one after every round, so that each accent has both sexes.
            accent=ACCENTS[(turn + turn // len(ACCENTS)) % len(ACCENTS)],
            variant=variants[turn // 2 % len(variants)],
            pitch=int(rng.integers(*PITCHES, endpoint=True)),
            pitch_range=int(rng.integers(*PITCH_RANGES, endpoint=True)),
            words_per_minute=int(rng.integers(*WORDS_PER_MINUTE, endpoint=True)),
        )
        speakers.append(Speaker(f"s{position:03d}", sex, voice, is_heldout))
    return speakers


SAMPLE_RATE_HZ = 16_000
PROVENANCE_NAME = "corpus.json"
# Shares of the splits, both of the minutes and of the sentences.
SHARES = {"train": 0.80, "valid": 0.08, "test": 0.12}
# Same-speaker strategies compare utterances of one speaker, so each speaker needs two utterances.
MIN_UTTERANCES = 2
# A file lasts at least this long, so that the usual window of 1.28 seconds fits into every file.
MIN_SECONDS = 1.5
LEVELS_DBFS = (-32.0, -20.0)
SIGNAL_TO_NOISE_DB = (15.0, 35.0)

# Version of the recipe; raise it whenever the same parameters give another corpus.
_RECIPE = 1


# A speaker, the seconds of speech in each split, and the sentences of each split in order.
_Script = tuple[Speaker, dict[str, float], dict[str, list[int]]]
# A file: its row of the manifest, its segments in seconds, which cover all of its samples, and a hash of the samples.
_Utterance = tuple[dict[str, str], list[tuple[float, float, str]], str]


@checked
def synthesize(
    out: str | Path,
    *,
    num_speakers: Count = 48,
    minutes: Positive = 60.0,
    num_heldout_speakers: Count = 8,
    seed: Seed = 0,
    num_workers: Count | None = None,
    progress: bool = True,
) -> Manifest:
    """Synthesise the corpus, unless it exists already.

    Samples and alignments depend only on the arguments and the versions of Python, espeak-ng and numpy, not on
    `num_workers`.

    Args:
        out: folder to write; it appears when the corpus is complete.
        num_speakers: number of speakers.
        minutes: minutes of speech in all splits together: 80 % train, 8 % valid, 12 % test.
        num_heldout_speakers: number of speakers that are only in the test split.
        seed: seed of speakers, sentences, noise and levels.
        num_workers: threads; by default one per core, at most 8.
        progress: show a progress bar.

    Raises:
        ValueError: if the extra `speech` is not installed, `out` holds anything except the corpus of these arguments,
            or an argument is out of range.
    """
    out = Path(out)
    sentences = prose.sentences()
    parameters = {
        "recipe": _RECIPE,
        "seed": seed,
        "num_speakers": num_speakers,
        "num_heldout_speakers": num_heldout_speakers,
        "minutes": float(minutes),
        "text_sha256": prose.digest(sentences),
    }

    def make(folder: Path) -> dict[str, Any]:
        speakers = draw_speakers(num_speakers, num_heldout_speakers, seed)
        scripts = _scripts(speakers, len(sentences), minutes, seed)
        with Espeak() as espeak:
            version = espeak.version
        read_aloud = partial(_read_aloud, sentences=sentences, folder=folder, seed=seed)
        results = map_in_order(read_aloud, scripts, num_workers or min(os.cpu_count() or 1, 8))
        bar = tqdm(results, total=len(scripts), desc="synthesise", unit="speaker", disable=not progress)
        utterances = [utterance for speaker_utterances in bar for utterance in speaker_utterances]
        utterances.sort(key=lambda utterance: (list(SHARES).index(utterance[0]["split"]), utterance[0]["path"]))
        _write_tables(folder, utterances)
        return {
            "corpus": "English prose from pydoc_data.topics, read aloud by espeak-ng",
            "versions": {
                "python": platform.python_version(),
                "espeak-ng": version,
                "espeakng-loader": metadata.version("espeakng-loader"),
            },
            "alignments_sha256": hashlib.sha256((folder / ALIGNMENTS_NAME).read_bytes()).hexdigest(),
            "audio_sha256": prose.digest(sha256 for *_, sha256 in utterances),
        }

    is_new = make_once(out, PROVENANCE_NAME, parameters, make)
    try:
        if not (out / ALIGNMENTS_NAME).is_file():
            raise ValueError(f"there is no {out / ALIGNMENTS_NAME}")
        return read_manifest(out, check_files=not is_new)
    except ValueError as error:
        raise ValueError(f"{out} is incomplete: {REMEDY}\n{error}") from error


def _scripts(speakers: list[Speaker], num_sentences: int, minutes: float, seed: int) -> list[_Script]:
    """Distribute the sentences. Splits share no sentences; the speakers of a split start at different sentences."""
    order = np.random.default_rng([seed, num_sentences]).permutation(num_sentences).tolist()
    edges = np.rint(np.cumsum([0.0, *SHARES.values()]) * num_sentences).astype(int).tolist()
    pools = {split: order[start:end] for split, start, end in zip(SHARES, edges[:-1], edges[1:], strict=True)}
    scripts = []
    for is_heldout, splits in ((False, ("train", "valid")), (True, ("test",))):
        group = [speaker for speaker in speakers if speaker.is_heldout == is_heldout]
        seconds = {split: 60 * minutes * SHARES[split] / len(group) for split in splits}
        for turn, speaker in enumerate(group):
            starts = {split: turn * len(pools[split]) // len(group) for split in splits}
            rotated = {split: pools[split][start:] + pools[split][:start] for split, start in starts.items()}
            scripts.append((speaker, seconds, rotated))
    return scripts


def _read_aloud(script: _Script, sentences: tuple[str, ...], folder: Path, seed: int) -> list[_Utterance]:
    """Synthesise and write the utterances of a speaker: whole sentences that last about the given seconds in all."""
    (speaker, seconds_of, sentences_of), utterances = script, []
    (folder / "audio" / speaker.name).mkdir(parents=True)
    with Espeak() as espeak:
        for split, seconds in seconds_of.items():
            spoken_seconds, num_spoken = 0.0, 0
            for sentence in sentences_of[split]:
                speech = espeak.speak(sentences[sentence], speaker.voice)
                duration = len(speech.samples) / ESPEAK_RATE_HZ
                if duration < MIN_SECONDS:
                    continue
                is_enough = abs(spoken_seconds - seconds) <= abs(spoken_seconds + duration - seconds)
                if is_enough and num_spoken >= MIN_UTTERANCES:
                    break
                utterances.append(_record(speech, sentence, sentences[sentence], split, speaker, folder, seed))
                spoken_seconds += duration
                num_spoken += 1
            else:
                spoken = f"all {num_spoken} sentences of the {split} split in {spoken_seconds:.0f} of {seconds:.0f} s"
                raise ValueError(f"{speaker.name} has read {spoken}: lower `minutes` or raise `num_speakers`")
    return utterances


def _record(
    speech: Speech, sentence: int, text: str, split: str, speaker: Speaker, folder: Path, seed: int
) -> _Utterance:
    name = f"{speaker.name}-{sentence:04d}"
    samples = _simulate_recording(speech.samples, np.random.default_rng([seed, *name.encode()]))
    path = f"audio/{speaker.name}/{name}.flac"
    soundfile.write(folder / path, samples, SAMPLE_RATE_HZ, subtype="PCM_16")
    segments = [(start / ESPEAK_RATE_HZ, end / ESPEAK_RATE_HZ, label) for start, end, label in phone_segments(speech)]
    segments[-1] = (segments[-1][0], len(samples) / SAMPLE_RATE_HZ, segments[-1][2])
    row = {
        "path": path,
        "split": split,
        "speaker": speaker.name,
        "num_samples": str(len(samples)),
        "sample_rate_hz": str(SAMPLE_RATE_HZ),
        "num_channels": "1",
        "text": text,
        "accent": speaker.voice.accent,
        "sex": speaker.sex,
    }
    return row, segments, hashlib.sha256(samples.tobytes()).hexdigest()


def _simulate_recording(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Resample speech to 16 kHz, scale it to a random level and add white noise; return `[num_samples]` int16."""
    signal = resample(samples)
    power = float(np.sqrt(np.mean(signal**2)))
    level = 10 ** (rng.uniform(*LEVELS_DBFS) / 20)
    gain = min(level / power, 0.9 / float(np.abs(signal).max()))
    noise_power = gain * power * 10 ** (-rng.uniform(*SIGNAL_TO_NOISE_DB) / 20)
    noise = noise_power * rng.standard_normal(len(signal), dtype=np.float32)
    return np.rint(32767 * np.clip(gain * signal + noise, -1, 1)).astype(np.int16)


def resample(samples: np.ndarray) -> np.ndarray:
    """Resample S samples at 22 050 Hz to 16 kHz to ceil(320 / 441 S) in float64; sample n stays at time n / rate."""
    up, down, granule = 320, 441, 32  # granule: keeps large prime factors out of transform lengths
    num_blocks = -(-len(samples) // (down * granule)) * granule
    spectrum = np.fft.rfft(samples, num_blocks * down)[: num_blocks * up // 2 + 1]
    frequencies_hz = np.linspace(0, SAMPLE_RATE_HZ / 2, len(spectrum))
    # The spectrum is cut at 8 kHz; a half cosine from 7.6 kHz on prevents ringing.
    spectrum *= 0.5 + 0.5 * np.cos(np.pi * np.clip((frequencies_hz - 7600) / 400, 0, 1))
    return (np.fft.irfft(spectrum, num_blocks * up) * (up / down))[: -(-len(samples) * up // down)]


def _write_tables(folder: Path, utterances: list[_Utterance]) -> None:
    columns = {name: [row[name] for row, *_ in utterances] for name in utterances[0][0]}
    Manifest(folder, columns).write(folder / MANIFEST_NAME)
    rows = [(row["path"], *segment) for row, segments, _ in utterances for segment in segments]
    paths, starts, ends, labels = zip(*rows, strict=True)
    times = {"start": [f"{start:.6f}" for start in starts], "end": [f"{end:.6f}" for end in ends]}
    (folder / ALIGNMENTS_NAME).write_bytes(format_table({"path": paths, **times, "label": labels}))
