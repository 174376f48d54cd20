"""A corpus of noise: what a loader and a training loop need to be timed, without anything to learn."""

from pathlib import Path

import numpy as np
import soundfile

from cpc.data.audio.index import index_folder

NUM_SPEAKERS = 8


def write_noise(folder: Path, num_files: int, seconds: float) -> Path:
    """FLAC files at 16 kHz below `split/speaker/`, one in twenty held out; returns the folder with its manifest."""
    rng = np.random.default_rng(0)
    for number in range(num_files):
        split = "valid" if number % 40 < NUM_SPEAKERS // 4 else "train"
        place = folder / split / f"speaker{number % NUM_SPEAKERS}" / f"{number}.flac"
        place.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(place, 0.1 * rng.standard_normal(round(seconds * 16000)), 16000)
    index_folder(folder, split_level=0, speaker_level=1, progress=False)
    return folder
