"""The paper that pictures are drawn on: its colours, its measures in pixels, and words on it."""

from PIL import Image, ImageDraw, ImageFont

# Of a sheet: light enough for black words, dark enough to end somewhere on a white page.
PAPER, INK, FAINT, MARK = "#eef0f3", "#1d2129", "#565d68", "#d55e00"
MARGIN, GAP, LINE = 16, 12, 18
COLOURS = (  # told apart by hue and lightness both, on `PAPER`; beyond these they repeat
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#ff7f0e",
    "#7b3fb5",
    "#8c564b",
    "#e377c2",
    "#00b7c7",
    "#a0a000",
    "#5f6b7a",
    "#f4b400",
    "#0b3d91",
    "#8fce00",
    "#7f0000",
    "#ff80ab",
    "#006d5b",
    "#b39ddb",
    "#4d4d00",
    "#80d8ff",
    "#ff3d00",
)


def write_words(sheet: Image.Image, corner: tuple[int, int], words: str, width: int, colour: str = INK) -> None:
    """Words in one line, cut where they do not fit."""
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    if draw.textlength(words, font=font) > width:
        while words and draw.textlength(f"{words}..", font=font) > width:
            words = words[:-1]
        words = f"{words}.."
    draw.text(corner, words, fill=colour, font=font)
