"""Augmentation of training windows of signals: sensors of three axes are turned. S samples, C channels."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float
from scipy.spatial.transform import Rotation

from cpc.config.argument_rules import Range, check_fields


@dataclass(kw_only=True)
class SignalAugmentation:
    """Rotations of training windows, as if people wore the device another way.

    Channels 1 to 3 are the axes x, y, z of a sensor, channels 4 to 6 those of the next sensor, and so on. All sensors
    of a window turn alike. Contexts, positives and negatives come from the turned window.

    Args:
        turn_degrees: largest angle. The angle is drawn uniformly from 0 to this, the axis from all directions.
    """

    turn_degrees: Annotated[float, Range(0, 180, is_open=True)]
    applied_to: ClassVar[str] = "both"
    recordings: ClassVar[Any] = None  # of noise

    def check(self, num_channels: int) -> None:
        """Raise a ValueError if the angle is out of range, or the channels are not sensors of three axes."""
        check_fields(self, "augmentation.")
        if num_channels % 3:
            found = f"`augmentation.turn_degrees`={self.turn_degrees:g} turns sensors of 3 channels"
            raise ValueError(f"{found}, but there are {num_channels} channels, which 3 does not divide")

    def __call__(self, x: Float[np.ndarray, "S C"], key: int) -> Float[np.ndarray, "S C"]:
        """Return the window turned by a key, NaN where an axis of the sensor is NaN.

        The result does not depend on the order of windows, the process or the rank.
        """
        rng = np.random.default_rng(key)
        axis, degrees = rng.standard_normal(3), rng.uniform(0, self.turn_degrees)
        turn = Rotation.from_rotvec(degrees * axis / np.linalg.norm(axis), degrees=True).as_matrix()
        return (x.reshape(len(x), -1, 3) @ turn.T.astype(x.dtype)).reshape(x.shape)
