"""The colours that all charts share."""

import numpy as np

# Hues of Okabe and Ito's colour-blind-safe palette, at luminances that stand out from both white and near-black.
BLUE, VERMILION, GREEN, PURPLE = "#2079b8", "#d55e00", "#00906a", "#bf6597"
ORANGE, SKY, GREY = "#c08500", "#56b4e9", "#858b94"
STEP_COLOURS = (BLUE, "#a868b8", VERMILION)  # colours from the first step k to the last


def step_colours(num_steps: int) -> list[str]:
    """Return a colour for each step k, interpolated linearly between `STEP_COLOURS`."""
    ends = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in STEP_COLOURS])
    positions = np.linspace(0, len(ends) - 1, num_steps)
    channels = np.stack([np.interp(positions, range(len(ends)), channel) for channel in ends.T], axis=1)
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in channels.round().astype(int)]
