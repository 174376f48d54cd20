"""The espeak-ng library of the `espeakng-loader` wheel, through ctypes: speech with the position of every phoneme.

The library keeps its state in global variables, some of which no call resets. Every `Espeak` therefore loads its own
copy, which may run in another thread. Constants and structures follow espeak-ng's `speak_lib.h`.
"""

import _ctypes
import ctypes
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpc.config.extras import import_extra

SAMPLE_RATE_HZ = 22_050

_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_PHONEME_EVENTS = 0x0001
_INITIALIZE_DONT_EXIT = 0x8000
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4
_POS_CHARACTER = 1
_CHARS_UTF8 = 1
_EVENT_LIST_TERMINATED, _EVENT_PHONEME = 0, 7
_BUFFER_MS = 1000

# At half of the default volume, no voice activates the library's gain control, which distorts.
_VOLUME_PERCENT = 50
# A command to the library: echo of the lowest possible strength, 1/256. Without it some voices have up to 15/256.
_FAINTEST_ECHO = "\x011H"


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # in rounded milliseconds; not used
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),  # a union with a number and a pointer
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class Voice(NamedTuple):
    """A voice of the library."""

    accent: str
    variant: str  # name of a file in the library's `voices/!v`, such as "f3": it sets formants, timbre and basic pitch
    pitch: int = 50  # 0 to 99; 50 is the pitch of the variant
    pitch_range: int = 50  # 0 (monotone) to 99; 50 is the range of the variant
    words_per_minute: int = 175


class Speech(NamedTuple):
    """Synthesised speech with its phonemes."""

    samples: np.ndarray
    phonemes: list[tuple[int, str]]

    @property
    def silence_ceiling(self) -> int:
        """Largest magnitude of a sample in a pause, which contains only the echo of strength 1/256."""
        return int(np.abs(self.samples.astype(np.int32)).max(initial=0)) // 256 + 1


class Espeak:
    """A private instance of the library, and a context manager that unloads it; a ValueError without the wheel."""

    def __init__(self) -> None:
        loader = import_extra("espeakng_loader", "speech", "speech synthesis needs the espeak-ng library")
        self._data = Path(loader.get_data_path())
        self._folder = tempfile.TemporaryDirectory(prefix="espeak-ng-")
        self._library = ctypes.CDLL(shutil.copy(loader.get_library_path(), self._folder.name))
        events = _INITIALIZE_PHONEME_EVENTS | _INITIALIZE_DONT_EXIT
        data = str(self._data).encode()
        rate_hz = self._library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, _BUFFER_MS, data, events)
        if rate_hz != SAMPLE_RATE_HZ:
            self._folder.cleanup()
            raise RuntimeError(f"espeak-ng does not start (returned {rate_hz}): is {self._data} too long a path?")
        self._library.espeak_ng_SetRandSeed(1)  # otherwise the time of day seeds the noise of breathy voices
        self._chunks: list[bytes] = []
        self._phonemes: list[tuple[int, str]] = []
        self._callback = _Callback(self._collect)  # kept, because the library holds a pointer to it
        self._library.espeak_SetSynthCallback(self._callback)

    def __enter__(self) -> "Espeak":
        return self

    def __exit__(self, *_: object) -> None:
        self._library.espeak_Terminate()
        if sys.platform == "win32":
            _ctypes.FreeLibrary(self._library._handle)
        else:
            _ctypes.dlclose(self._library._handle)
        self._folder.cleanup()

    @property
    def version(self) -> str:
        """Version of the library, such as "1.52.0"."""
        self._library.espeak_Info.restype = ctypes.c_char_p
        return str(self._library.espeak_Info(None).decode())

    def speak(self, text: str, voice: Voice) -> Speech:
        """Synthesise a text."""
        # The library accepts any variant, and replaces an unknown variant by the plain voice of the accent.
        name, is_known = f"{voice.accent}+{voice.variant}", (self._data / "voices" / "!v" / voice.variant).is_file()
        if not is_known or self._library.espeak_SetVoiceByName(name.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {name!r} (accent+variant)")
        values = {_RATE: voice.words_per_minute, _VOLUME: _VOLUME_PERCENT, _PITCH: voice.pitch}
        for parameter, value in (values | {_RANGE: voice.pitch_range}).items():
            self._library.espeak_SetParameter(parameter, value, 0)
        self._chunks, self._phonemes = [], []
        encoded = (_FAINTEST_ECHO + text).encode()
        status = self._library.espeak_Synth(encoded, len(encoded) + 1, 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None)
        if status != 0:
            raise RuntimeError(f"espeak-ng cannot synthesise {text!r} (status {status})")
        return Speech(np.frombuffer(b"".join(self._chunks), dtype=np.int16), self._phonemes)

    def _collect(self, wav: Any, num_samples: int, events: Any) -> int:
        if wav and num_samples > 0:
            self._chunks.append(ctypes.string_at(wav, 2 * num_samples))
        position = 0
        while events[position].type != _EVENT_LIST_TERMINATED:
            if events[position].type == _EVENT_PHONEME:
                self._phonemes.append((events[position].sample, events[position].id.decode()))
            position += 1
        return 0


SILENCE = "sil"

# The names are those of ARPAbet, with the British "oh" (lot), "ia" (near), "ea" (square). A class is a phoneme of
# English, not a sound: "oh" sounds like "aa" in American accents. In the same way the labels of LibriSpeech come from
# one dictionary for all accents. Allophones are merged, and rare phonemes are merged with similar phonemes: "zh" with
# "sh" (as in TIMIT's 39 phones), the vowel of "cure" with "ao", the triphthong of "fire" with "ay".
CLASS_OF_MNEMONIC = {phone: phone for phone in "bdfgklmnprsvwz"} | {
    mnemonic: phone
    for phone, *mnemonics in map(
        str.split,
        "t t t2 ?|dx t#|ch tS|jh dZ|th T|dh D|sh S Z|hh h|ng N|el @L|y j ;|iy i: i|ih I I2 I#|eh E|ae a aa|aa A: A@|"
        "oh 0|ao O: O@ o@ O2 U@|ah V|uh U|uw u: u|ax @ @2 @5 @- a#|axr 3|er 3: VR IR|ey eI|ay aI aI2 aI@ aI3|"
        "aw aU|oy OI|ow oU|ia i@ i@3|ea e@".split("|"),
    )
    for mnemonic in mnemonics
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
