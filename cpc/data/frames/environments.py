"""Gymnasium environments as a source of frames, and the policies that play them.

H W a frame's rows and columns of pixels, C colours, s the side of the squares that are averaged.
"""

import atexit
import importlib.util
from contextlib import chdir
from functools import cache
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
from einops import rearrange, reduce
from jaxtyping import UInt8

from cpc.config.extras import import_extra, install_hint

MODULES = {"ALE/": "ale_py"}  # for a prefix of names, the module that registers these environments
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # weights of red, green and blue in luminance (ITU-R BT.601)


class RandomPolicy:
    """A policy that takes every action with the same probability.

    A policy of your own has the same methods: a constructor that takes the action space, a call for every action, and
    `begin`, which is called before every episode with the seed of its random choices.
    """

    def __init__(self, action_space: Any) -> None:
        self._actions = action_space

    def begin(self, seed: int) -> None:
        """Seed the random actions of an episode."""
        self._actions.seed(seed)

    def __call__(self, observation: Any) -> Any:
        """Return a random action; the observation is not read."""
        return self._actions.sample()


def open_environment(name: str, **options: Any) -> Any:
    """Make an environment by its Gymnasium name, such as `ALE/Pong-v5`, or `MODULE:NAME` of a module that registers it.

    `options` are further arguments of `gymnasium.make`; paths of files must be absolute, because the first episode
    begins here in a temporary folder, into which ViZDoom writes `_vizdoom` and `_vizdoom.ini`.
    """
    module = next((module for start, module in MODULES.items() if name.startswith(start)), None)
    gymnasium = import_extra("gymnasium", "frames", "environments need gymnasium")
    try:
        environment = gymnasium.make(name if module is None else f"{module}:{name}", **options)
    except (ImportError, gymnasium.error.Error) as error:
        is_missing = module is not None and importlib.util.find_spec(module) is None
        advice = install_hint("frames") if is_missing else "name an environment of another package as MODULE:NAME"
        raise ValueError(f"environment {name!r} cannot be made: {str(error).strip(' .')}; {advice}") from error
    except TypeError as error:
        raise ValueError(f"environment {name!r} does not take options {options}: {error}") from error
    with chdir(_scratch_folder()):
        environment.reset(seed=0)
    return environment


def open_policy(class_path: str, action_space: Any) -> Any:
    """Build the policy of a class path for an action space; `random` is `RandomPolicy`."""
    if class_path == "random":
        return RandomPolicy(action_space)
    module, _, name = class_path.rpartition(".")
    try:
        policy = getattr(importlib.import_module(module), name)(action_space)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"`policy` {class_path!r}: {error}; give `random`, or a policy's class path") from error
    if not (callable(policy) and hasattr(policy, "begin")):
        raise ValueError(f"`policy` {class_path!r} has no begin(seed) or cannot be called with an observation")
    return policy


def picture_key(space: Any) -> str | None:
    """Return the key of the only picture in observations that are dictionaries; None if they are the picture."""
    parts = space.spaces if hasattr(space, "spaces") and isinstance(space.spaces, dict) else {None: space}
    keys = [key for key, part in parts.items() if _is_picture(part)]
    if len(keys) != 1:
        raise ValueError(f"observations must hold one picture of bytes, [H, W], [H, W, 1] or [H, W, 3], not {space}")
    return keys[0]


def resize_frame(picture: UInt8[np.ndarray, "..."], side: int) -> UInt8[np.ndarray, "H W 1"]:
    """Return the luminance of a picture `[s H, s W]` or `[s H, s W, 1 or 3]`, averaged over squares of `side`."""
    grey = picture @ _LUMINANCE if picture.shape[2:] == (3,) else picture.reshape(picture.shape[:2]).astype(np.float32)
    means = reduce(grey, "(h p) (w q) -> h w", "mean", p=side, q=side)
    return rearrange(np.rint(means).astype(np.uint8), "h w -> h w 1")


def read_ram(environment: Any) -> UInt8[np.ndarray, " R"] | None:
    """Return the memory of an Atari console, 128 bytes; None for other environments."""
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
