"""The paper that images are pasted on: its colours, its measures in pixels, and captions on it."""

from PIL import Image, ImageDraw, ImageFont

# Of a sheet: light enough for black words, dark enough to end somewhere on a white page.
PAPER, INK, MARK = "#eef0f3", "#1d2129", "#d55e00"
MARGIN, GAP, LINE = 16, 12, 18


def write_words(sheet: Image.Image, corner: tuple[int, int], words: str, width: int) -> None:
    """Words in one line, cut where they do not fit."""
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    if draw.textlength(words, font=font) > width:
        while words and draw.textlength(f"{words}..", font=font) > width:
            words = words[:-1]
        words = f"{words}.."
    draw.text(corner, words, fill=INK, font=font)
