"""Conversion of espeak-ng's phonemes to the phone classes of the synthesised corpus."""

import numpy as np

from cpc.data.synthetic.espeak import Speech

SILENCE = "sil"

# The names are those of ARPAbet, with the British "oh" (lot), "ia" (near), "ea" (square). A class is a phoneme of
# English, not a sound: "oh" sounds like "aa" in American accents. In the same way the labels of LibriSpeech come from
# one dictionary for all accents. Allophones are merged, and rare phonemes are merged with similar phonemes: "zh" with
# "sh" (as in TIMIT's 39 phones), the vowel of "cure" with "ao", the triphthong of "fire" with "ay".
CLASS_OF_MNEMONIC = {phone: phone for phone in "bdfgklmnprsvwz"} | {
    mnemonic: phone
    for phone, mnemonics in {
        "t": "t t2 ?",
        "dx": "t#",
        "ch": "tS",
        "jh": "dZ",
        "th": "T",
        "dh": "D",
        "sh": "S Z",
        "hh": "h",
        "ng": "N",
        "el": "@L",
        "y": "j ;",
        "iy": "i: i",
        "ih": "I I2 I#",
        "eh": "E",
        "ae": "a aa",
        "aa": "A: A@",
        "oh": "0",
        "ao": "O: O@ o@ O2 U@",
        "ah": "V",
        "uh": "U",
        "uw": "u: u",
        "ax": "@ @2 @5 @- a#",
        "axr": "3",
        "er": "3: VR IR",
        "ey": "eI",
        "ay": "aI aI2 aI@ aI3",
        "aw": "aU",
        "oy": "OI",
        "ow": "oU",
        "ia": "i@ i@3",
        "ea": "e@",
    }.items()
    for mnemonic in mnemonics.split()
}

_STRESS_MARKS = "',%="
_MODIFIERS = "0123456789#-[]:;!?|"


def phone_class(mnemonic: str) -> str:
    """Return the class of an espeak-ng phoneme; a phoneme that is not in the table is its own class.

    >>> phone_class("'3:"), phone_class("t["), phone_class("_!")
    ('er', 't', 'sil')
    """
    mnemonic = mnemonic.lstrip(_STRESS_MARKS)
    if mnemonic.startswith("_"):
        return SILENCE
    stem = mnemonic
    while stem not in CLASS_OF_MNEMONIC and stem[-1:] and stem[-1] in _MODIFIERS:
        stem = stem[:-1]  # "t[", "n-", "w#": variants of a phoneme in one accent
    return CLASS_OF_MNEMONIC.get(stem, mnemonic)


def phone_segments(speech: Speech) -> list[tuple[int, int, str]]:
    """Return the phones from the first to the last sample as (start, end, class), without gaps.

    The library reports a stop at its release, and a word after the preceding pause. Such a pause is added to the
    phone that follows, as phonetic transcriptions do with the closure of a stop. Phonemes without samples (an l that
    only changes its vowel) are left out.
    """
    num_samples = len(speech.samples)
    audible = np.flatnonzero(np.abs(speech.samples.astype(np.int32)) > speech.silence_ceiling)
    starts, labels = [0], [SILENCE]
    for sample, mnemonic in speech.phonemes:
        label = phone_class(mnemonic)
        if SILENCE not in (label, labels[-1]):
            last_sound = np.searchsorted(audible, sample) - 1
            pause = int(audible[last_sound]) + 1 if last_sound >= 0 else 0
            sample = max(pause, starts[-1])
        if label == labels[-1] == SILENCE:
            continue
        starts.append(sample)
        labels.append(label)
    ends = [*starts[1:], num_samples]
    return [(start, end, label) for start, end, label in zip(starts, ends, labels, strict=True) if end > start]
