"""The speakers of the synthesised corpus: accents, voices, pitch and tempo, evenly distributed."""

from dataclasses import dataclass

import numpy as np

from cpc.data.synthetic.espeak import Voice

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
    """A speaker of the corpus.

    Attributes:
        name: name in the manifest.
        sex: "f" or "m".
        voice: voice of the library.
        is_heldout: True if the speaker is only in the test split.
    """

    name: str
    sex: str
    voice: Voice
    is_heldout: bool


def draw_speakers(num_speakers: int, num_heldout: int, seed: int) -> list[Speaker]:
    """Draw random speakers. The last `num_heldout` are held out.

    In each group sexes alternate, and accents and variants take turns. If there are enough variants, held-out speakers
    have other variants than training speakers, so that their vocal tracts are not in the training data.
    """
    if not 0 < num_heldout < num_speakers:
        raise ValueError(
            f"num_heldout_speakers={num_heldout} of num_speakers={num_speakers}: at least one must be held out, and "
            "at least one must remain"
        )
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
