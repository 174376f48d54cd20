"""Gymnasium's environments as a source of frames, and the policies that play them.

H W a frame's rows and columns of pixels, C colours, s the side of the squares that are averaged.
"""

import atexit
import importlib.util
from contextlib import chdir
from functools import cache
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Protocol, runtime_checkable

import numpy as np
from einops import rearrange, reduce
from jaxtyping import UInt8

from cpc.config.extras import install_hint

MODULES = {"ALE/": "ale_py"}  # which module registers environments of these names
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


@runtime_checkable
class Policy(Protocol):
    """Chooses actions; made with the environment's action space, and `begin` is called before every episode."""

    def begin(self, seed: int) -> None:
        """Start an episode, whose random choices follow from the seed alone."""
        ...

    def __call__(self, observation: Any) -> Any:
        """The action for an observation, as the environment gives it."""
        ...


class RandomPolicy:
    """Every action with the same probability."""

    def __init__(self, action_space: Any) -> None:
        self._actions = action_space

    def begin(self, seed: int) -> None:
        """Seed the draws."""
        self._actions.seed(seed)

    def __call__(self, observation: Any) -> Any:
        """Draw an action."""
        return self._actions.sample()


def open_environment(name: str, **options: Any) -> Any:
    """Make an environment by its Gymnasium name, such as `ALE/Pong-v5`, or `MODULE:NAME` of a module that registers it.

    Its first episode begins here, in a folder that goes with this process: ViZDoom's game is started by it, and leaves
    `_vizdoom` and `_vizdoom.ini` where it was started.

    Args:
        name: of the environment.
        options: further arguments of `gymnasium.make`; name files by absolute paths.

    Raises:
        ValueError: if Gymnasium, the environment's package or the environment is not installed, or an option is not
            the environment's.
    """
    module = next((module for start, module in MODULES.items() if name.startswith(start)), None)
    try:
        import gymnasium
    except ImportError as error:
        raise ValueError(f"environments need gymnasium: {install_hint('frames')}") from error
    try:
        made = gymnasium.make(name if module is None else f"{module}:{name}", **options)
    except (ImportError, gymnasium.error.Error) as error:
        is_missing = module is not None and importlib.util.find_spec(module) is None
        advice = install_hint("frames") if is_missing else "one that another package registers is named MODULE:NAME"
        raise ValueError(f"environment {name!r} cannot be made: {str(error).strip(' .')}; {advice}") from error
    except TypeError as error:
        raise ValueError(f"environment {name!r} does not take options {options}: {error}") from error
    with chdir(_scratch_folder()):
        made.reset(seed=0)
    return made


def open_policy(class_path: str, action_space: Any) -> Policy:
    """The policy of a class path, made for an action space; `random` is `RandomPolicy`.

    Raises:
        ValueError: if there is no such class, or its instances do not follow the protocol `Policy`.
    """
    if class_path == "random":
        return RandomPolicy(action_space)
    module, _, name = class_path.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)(action_space)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(
            f"`policy` {class_path!r}: {error}; give `random` or the class path PACKAGE.MODULE.CLASS of a policy that "
            "is made with an action space"
        ) from error
    if not isinstance(made, Policy):
        raise ValueError(f"`policy` {class_path!r} has no begin(seed) or cannot be called with an observation")
    return made


def picture_in(space: Any) -> str | None:
    """Where observations of a space hold a picture: under a key of a dictionary; None: they are one.

    Raises:
        ValueError: if there is no picture, or more than one.
    """
    parts = space.spaces if hasattr(space, "spaces") and isinstance(space.spaces, dict) else {None: space}
    found = [key for key, part in parts.items() if _is_picture(part)]
    if len(found) != 1:
        raise ValueError(
            "the environment's observations must hold one picture of bytes, [H, W], [H, W, 1] or [H, W, 3], not "
            f"{space}"
        )
    key: str | None = found[0]
    return key


def resize_frame(picture: UInt8[np.ndarray, "..."], side: int) -> UInt8[np.ndarray, "H W 1"]:
    """The luminance of a picture `[s H, s W]`, `[s H, s W, 1]` or `[s H, s W, 3]`, averaged over squares of `side`."""
    grey = picture @ _LUMINANCE if picture.shape[2:] == (3,) else picture.reshape(picture.shape[:2]).astype(np.float32)
    means = reduce(grey, "(h p) (w q) -> h w", "mean", p=side, q=side)
    return rearrange(np.rint(means).astype(np.uint8), "h w -> h w 1")


def ram_of(environment: Any) -> UInt8[np.ndarray, " R"] | None:
    """The memory of an Atari console, 128 bytes; None of other environments."""
    console = getattr(environment.unwrapped, "ale", None)
    return None if console is None else np.asarray(console.getRAM(), np.uint8)


@cache
def _scratch_folder() -> str:
    folder = mkdtemp(prefix="cpc-environments-")
    atexit.register(rmtree, folder, ignore_errors=True)
    return folder


def _is_picture(space: Any) -> bool:
    shape = getattr(space, "shape", None) or ()
    return getattr(space, "dtype", None) == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)))
