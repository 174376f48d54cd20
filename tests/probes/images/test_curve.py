"""The picture of label efficiency: points lie where their numbers say."""

import numpy as np
import pytest
from PIL import ImageColor

from cpc.probes.images.curve import picture_label_efficiency
from cpc.probes.images.sheet import COLOURS

CURVE = {
    "shares": [0.01, 0.1, 1.0],
    "num_labels": [20, 200, 2000],
    "accuracy_percent": {"cpc": [60.0, 70.0, 80.0], "supervised": [20.0, 50.0, 90.0]},
}


def places(picture: np.ndarray, line: int, right: int) -> np.ndarray:
    """Rows and columns with the colour of a line, left of the legend."""
    return np.argwhere((picture[:, :right] == ImageColor.getrgb(COLOURS[line])).all(2))


def test_points_stand_at_their_accuracies_and_numbers_of_labels() -> None:
    picture = np.asarray(picture_label_efficiency(CURVE, "title"))
    legend = picture.shape[1] - 170
    cpc, supervised = (places(picture, line, legend) for line in (0, 1))

    def ends(found: np.ndarray) -> tuple[float, float]:
        """Height of the first and the last point: their own columns, a circle's width."""
        columns = found[:, 1]
        first, last = (found[np.abs(columns - column) < 2, 0].mean() for column in (columns.min(), columns.max()))
        return first, last

    (cpc_first, cpc_last), (supervised_first, supervised_last) = ends(cpc), ends(supervised)
    pixels_per_percent = (supervised_first - supervised_last) / 70
    assert pixels_per_percent > 1
    assert cpc_first - cpc_last == pytest.approx(20 * pixels_per_percent, abs=4)
    assert supervised_first - cpc_first == pytest.approx(40 * pixels_per_percent, abs=4)
    # The middle share lies in the middle of a logarithmic axis: there cpc, at 70 %, is half way up.
    middle = (cpc[:, 1].min() + cpc[:, 1].max()) / 2
    assert cpc[np.abs(cpc[:, 1] - middle) < 2, 0].mean() == pytest.approx((cpc_first + cpc_last) / 2, abs=3)


def test_one_share_and_equal_accuracies_are_drawn_too() -> None:
    curve = {"shares": [1.0], "num_labels": [50], "accuracy_percent": {"cpc": [60.0], "random": [60.0]}}
    picture = np.asarray(picture_label_efficiency(curve, "title"))
    assert len(places(picture, 1, picture.shape[1] - 170))
