"""Models on the Hugging Face Hub, fetched by name. A model is two files without code."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from cpc.config.extras import install_hint

MODEL_FILES = ("config.json", "model.safetensors")
_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")


def is_hub_name(model: str | Path) -> bool:
    """Return True if a model is named `ORG/NAME` or `ORG/NAME@REVISION`, and no local folder is called `ORG`."""
    return looks_like_hub_name(model) and not Path(str(model).partition("/")[0]).exists()


def looks_like_hub_name(model: str | Path) -> bool:
    """Return True if a model is named `ORG/NAME` or `ORG/NAME@REVISION`, whether or not there is such a folder."""
    return _NAME.fullmatch(str(model)) is not None


def fetch_model(model: str, revision: str | None = None) -> Path:
    """Fetch a model's files into the Hub's cache, unless they are cached already, and return their folder.

    The Hub's environment variables apply: HF_HOME, HF_TOKEN, HF_ENDPOINT, and HF_HUB_OFFLINE=1 to use no network.

    Args:
        model: `ORG/NAME` or `ORG/NAME@REVISION`.
        revision: branch, tag or commit; the main branch if not given. The files of a commit never change.
    """
    named = _NAME.fullmatch(model)
    if named is None:
        raise ValueError(f"{model!r} is not a name of the Hub: write ORG/NAME or ORG/NAME@REVISION")
    if revision is not None and named["revision"] not in (None, revision):
        raise ValueError(f"{model!r} and revision={revision!r} name different revisions: leave one out")
    return _fetch(named["repository"], revision or named["revision"])


def hub() -> Any:
    """Import the package `huggingface_hub`.

    Raises:
        ValueError: if the package is not installed.
    """
    try:
        import huggingface_hub.errors
    except ImportError as error:
        raise ValueError(f"the Hub needs huggingface_hub: {install_hint('hub')}") from error
    return huggingface_hub


def why_unreachable(error: Exception) -> str:
    """Return why the Hub's client has raised an error without reaching the Hub."""
    if hub().constants.HF_HUB_OFFLINE:
        return "the Hub is not used because of HF_HUB_OFFLINE=1"
    cause = error.__cause__ or error
    return f"the Hub cannot be reached, {type(cause).__name__}: {cause}".splitlines()[0] + "; check the network"


@cache  # cached, because a command fetches a model several times, and must get the same files each time
def _fetch(repository: str, revision: str | None) -> Path:
    try:
        package = hub()
    except ValueError as error:
        raise ValueError(f"there is no folder {repository}; if a model of the Hub is meant: {error}") from error
    errors, name = package.errors, f"{repository}, revision {revision}" if revision else repository
    no_folder = f"there is no folder {repository}; if a model of the Hub is meant: {name}"
    try:
        folder = Path(package.snapshot_download(repository, revision=revision, allow_patterns=list(MODEL_FILES)))
    except errors.HFValidationError as error:
        raise ValueError(f"there is no folder {repository}, and it is not a name of the Hub: {error}") from error
    except errors.GatedRepoError as error:
        raise ValueError(f"{name}: ask its owner for access; then log in with `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"there is no folder {repository}, and the Hub has no such model, or it is private: log in with `hf auth "
            "login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{repository} has no revision {revision!r}: name a branch, tag or commit") from error
    except errors.LocalEntryNotFoundError as error:
        raise ConnectionError(f"{no_folder} is not in the Hub's cache, and {why_unreachable(error)}") from error
    except Exception as error:  # the errors of the HTTP client have no common class
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConnectionError(f"{no_folder} cannot be fetched: {reason}; try again") from error
    missing = [file for file in MODEL_FILES if not (folder / file).is_file()]
    if missing:
        raise ValueError(f"{name} holds no model of cpc: it lacks {' and '.join(missing)}")
    return folder
