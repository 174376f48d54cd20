"""Models on the Hugging Face Hub, fetched by name. A model is two files without code."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from cpc.config.extras import import_extra

MODEL_FILES = ("config.json", "model.safetensors")
_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")


def is_hub_name(model: str | Path) -> bool:
    """Return True if a model is named `ORG/NAME` or `ORG/NAME@REVISION`, and no local folder is called `ORG`."""
    return looks_like_hub_name(model) and not Path(str(model).partition("/")[0]).exists()


def looks_like_hub_name(model: str | Path) -> bool:
    """Return True if a model is named `ORG/NAME` or `ORG/NAME@REVISION`, whether or not there is such a folder."""
    return _NAME.fullmatch(str(model)) is not None


def fetch_model(model: str, revision: str | None = None) -> Path:
    """Fetch the files of `ORG/NAME` or `ORG/NAME@REVISION` into the Hub's cache, and return their folder.

    A revision is a branch, tag or commit, by default the main branch. The files of a commit never change. The Hub's
    environment variables apply: HF_HOME, HF_TOKEN, HF_ENDPOINT, and HF_HUB_OFFLINE=1 to use no network.
    """
    named = _NAME.fullmatch(model)
    if named is None:
        raise ValueError(f"{model!r} is not a name of the Hub: write ORG/NAME or ORG/NAME@REVISION")
    if revision is not None and named["revision"] not in (None, revision):
        raise ValueError(f"{model!r} and revision={revision!r} name different revisions: leave one out")
    return _fetch(named["repository"], revision or named["revision"])


def hub(need: str = "the Hub needs huggingface_hub") -> Any:
    """Import the package `huggingface_hub`."""
    import_extra("huggingface_hub.errors", "hub", need)
    return import_extra("huggingface_hub", "hub", need)


def why_unreachable(error: Exception) -> str:
    """Return why the Hub's client has raised an error without reaching the Hub."""
    if hub().constants.HF_HUB_OFFLINE:
        return "the Hub is not used because of HF_HUB_OFFLINE=1"
    cause = error.__cause__ or error
    return f"the Hub cannot be reached, {type(cause).__name__}: {cause}".splitlines()[0] + "; check the network"


@cache  # cached, because a command fetches a model several times, and must get the same files each time
def _fetch(repository: str, revision: str | None) -> Path:
    no_folder = f"there is no folder {repository}; if a model of the Hub is meant:"
    package = hub(f"{no_folder} it needs huggingface_hub")
    errors, name = package.errors, f"{repository}, revision {revision}" if revision else repository
    reasons = (  # the first class that fits
        (errors.HFValidationError, "it is not a name of the Hub"),
        (errors.GatedRepoError, "ask its owner for access; then log in with `hf auth login`"),
        (errors.RepositoryNotFoundError, "the Hub has no such model, or it is private: log in with `hf auth login`"),
        (errors.RevisionNotFoundError, "it has no such revision: name a branch, tag or commit"),
    )
    try:
        folder = Path(package.snapshot_download(repository, revision=revision, allow_patterns=list(MODEL_FILES)))
    except Exception as error:  # the errors of the HTTP client have no common class
        if reason := next((reason for kind, reason in reasons if isinstance(error, kind)), None):
            raise ValueError(f"{no_folder} {name}: {reason}") from error
        reason = f"cannot be fetched: {type(error).__name__}: {error}".splitlines()[0]
        if isinstance(error, errors.LocalEntryNotFoundError):
            reason = f"is not in the Hub's cache, and {why_unreachable(error)}"
        raise ConnectionError(f"{no_folder} {name} {reason}") from error
    missing = [file for file in MODEL_FILES if not (folder / file).is_file()]
    if missing:
        raise ValueError(f"{name} holds no model of cpc: it lacks {' and '.join(missing)}")
    return folder
