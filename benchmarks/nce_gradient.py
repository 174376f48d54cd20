"""How far the gradient of noise contrastive estimation is from the likelihood's, with k noise draws.

python -m benchmarks.nce_gradient [--out docs/nce_gradient.svg]

One context, eight classes with Zipf's probabilities, a normalised model that has learned them in part. The expected
gradient is exact: a loss over independent draws is linear in them, so every class stands among the candidates as often
as it is expected. Points are `cpc.losses.class_loss`, lines the closed form (k q / (p + k q)) (p - P).
"""

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

from cpc.candidates.samplers import Draw
from cpc.losses import class_loss

DATA = 1 / torch.arange(1, 9).double()
DATA = DATA / DATA.sum()
MODEL = (0.5 * DATA.log()).softmax(0)
# multiples of 1 / 40, so that 40 draws are expected to hold each class a whole number of times
NOISES = {
    "uniform": torch.full((8,), 5.0).double() / 40,
    "like the data": torch.tensor([14, 7, 5, 4, 3, 3, 2, 2]).double() / 40,
    "opposite": torch.tensor([2, 2, 3, 3, 4, 5, 7, 14]).double() / 40,
}
NUMS_DRAWN = [40 * 2**power for power in range(12)]
COLOURS = ("#0072b2", "#d55e00", "#009e73")


def gradient(noise: Tensor, num_drawn: int) -> Tensor:
    """Return E[d loss / dF] with `num` noise draws, by `class_loss`."""
    scores = MODEL.log().requires_grad_()
    times = (num_drawn * noise).round().long()
    ids = torch.arange(8).repeat_interleave(times)
    log_count = (num_drawn * noise).log()
    queries = torch.ones(8, 1, dtype=torch.float64)
    draw = Draw(ids, log_count[ids], log_count)
    loss = class_loss(queries, scores[:, None], torch.arange(8), draw, objective="nce", weight=DATA).loss
    return torch.autograd.grad(loss, scores)[0]


def closed_form(noise: Tensor, num_drawn: float) -> Tensor:
    """Return the same gradient by the closed form."""
    count = num_drawn * noise
    return count / (MODEL + count) * (MODEL - DATA)


def distance(found: Tensor) -> float:
    """Return the relative distance from the likelihood's gradient p - P."""
    wanted = MODEL - DATA
    return float((found - wanted).norm() / wanted.norm())


def chart(points: dict[str, list[float]], lines: dict[str, list[float]]) -> str:
    """Plot into an SVG with two logarithmic axes."""
    width, height, left, top, right, bottom = 650, 360, 85, 20, 150, 50
    low_x, high_x, low_y, high_y = 1.5, 5.0, -5.0, -0.5

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (math.log10(x) - low_x) / (high_x - low_x) * (width - left - right),
            top + (high_y - math.log10(y)) / (high_y - low_y) * (height - top - bottom),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="13" fill="#333"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for power in range(2, 6):
        x = place(10.0**power, 1)[0]
        parts.append(f'<path d="M{x:.1f} {top}V{height - bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(-5, 0):
        y = place(100, 10.0**power)[1]
        parts.append(f'<path d="M{left} {y:.1f}H{width - right}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for (name, line), colour in zip(lines.items(), COLOURS, strict=True):
        path = " L".join("{:.1f} {:.1f}".format(*place(*each)) for each in zip(NUMS_DRAWN, line, strict=True))
        parts.append(f'<path d="M{path}" stroke="{colour}" fill="none" stroke-width="1.5"/>')
        for each in zip(NUMS_DRAWN, points[name], strict=True):
            x, y = place(*each)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        y = top + 20 + 22 * list(lines).index(name)
        parts.append(f'<circle cx="{width - right + 18}" cy="{y - 4}" r="3.5" fill="{colour}"/>')
        parts.append(f'<text x="{width - right + 28}" y="{y}">{name}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 10}" text-anchor="middle">noise draws k</text>')
    parts.append(
        f'<text transform="translate(18 {(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle">'
        "relative distance of the gradients</text></svg>"
    )
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/nce_gradient.svg"))
    options = parser.parse_args()
    points = {name: [distance(gradient(noise, k)) for k in NUMS_DRAWN] for name, noise in NOISES.items()}
    lines = {name: [distance(closed_form(noise, k)) for k in NUMS_DRAWN] for name, noise in NOISES.items()}
    for name, found in points.items():
        print(f"{name:14}", "  ".join(f"k={k} {each:.2e}" for k, each in zip(NUMS_DRAWN, found, strict=True)))
    options.out.write_text(chart(points, lines), encoding="utf-8")
    print(json.dumps({"num_drawn": NUMS_DRAWN, "relative_distance": points, "out": str(options.out)}))


if __name__ == "__main__":
    main()
