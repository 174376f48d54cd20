"""A picture of label efficiency: accuracy over the number of labels, on a logarithmic axis. Pillow alone draws."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from cpc.probes.images.sheet import COLOURS, FAINT, GAP, INK, LINE, MARGIN, PAPER, write_words

_WIDTH, _HEIGHT = 640, 420  # of the plot
_AXIS_WIDTH, _LEGEND_WIDTH = 40, 150
_RADIUS = 4
_NUM_GRID_LINES = 6
_ROUND_STEPS = (1, 2, 5, 10, 20)  # percent between lines of the grid


def picture_label_efficiency(curve: Mapping[str, Any], title: str) -> Image.Image:
    """Lines with points, one for each representation and network; the best with all labels first in the legend.

    Args:
        curve: as `cpc.probes.images.efficiency.label_efficiency` returns it.
        title: the line above.
    """
    num_labels, accuracy = curve["num_labels"], curve["accuracy_percent"]
    values = [value for line in accuracy.values() for value in line]
    step = next((s for s in _ROUND_STEPS if (max(values) - min(values)) / s < _NUM_GRID_LINES), _ROUND_STEPS[-1])
    low, high = step * math.floor(min(values) / step), step * math.ceil(max(values) / step + 1e-9)
    left, top = MARGIN + _AXIS_WIDTH, MARGIN + 3 * LINE
    size = (left + _WIDTH + GAP + _LEGEND_WIDTH + MARGIN, top + _HEIGHT + 3 * LINE + MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)

    def across(num: int) -> float:
        widest = math.log(num_labels[-1] / num_labels[0]) or 1.0
        return left + _WIDTH * (0.03 + 0.94 * math.log(num / num_labels[0]) / widest)

    def down(percent: int | float) -> float:
        return top + _HEIGHT * (high - percent) / max(high - low, step)

    write_words(sheet, (MARGIN, MARGIN), title, size[0] - 2 * MARGIN)
    for percent in range(low, high + 1, step):
        draw.line((left, down(percent), left + _WIDTH, down(percent)), fill="#c9ced6")
        draw.text((left - 6, down(percent)), f"{percent}", fill=FAINT, font=font, anchor="rm")
    for num, share in zip(num_labels, curve["shares"], strict=True):
        draw.text((across(num), top + _HEIGHT + 4), f"{100 * share:g} %", fill=FAINT, font=font, anchor="ma")
        draw.text((across(num), top + _HEIGHT + 4 + LINE), f"{num}", fill=FAINT, font=font, anchor="ma")
    write_words(sheet, (left, top + _HEIGHT + 8 + 2 * LINE), "share and number of the labels trained on", _WIDTH, FAINT)
    write_words(sheet, (MARGIN, MARGIN + LINE), "accuracy on the test split, %", _WIDTH, FAINT)
    ranked = sorted(accuracy, key=lambda name: -accuracy[name][-1])
    for place, name in enumerate(ranked):
        colour = COLOURS[list(accuracy).index(name) % len(COLOURS)]
        points = [(across(num), down(value)) for num, value in zip(num_labels, accuracy[name], strict=True)]
        for one, other in pairwise(points):
            draw.line((*one, *other), fill=colour, width=3)
        for x, y in points:
            draw.ellipse((x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS), fill=colour)
        corner = (left + _WIDTH + GAP, top + place * LINE)
        draw.rectangle((corner[0], corner[1] + 3, corner[0] + 11, corner[1] + 14), fill=colour)
        write_words(sheet, (corner[0] + 18, corner[1]), name, _LEGEND_WIDTH - 18, INK)
    return sheet
