"""`cpc share`: write or upload a model with its card for the Hugging Face Hub."""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cpc import __version__
from cpc.checkpoint import load_pretrained, model_folder_of, read_config, weights_of
from cpc.config.argument_rules import NewFolder, checked
from cpc.config.description import describe
from cpc.config.extras import pip_install
from cpc.data.store.atomic import build_atomically, json_text, write_json
from cpc.data.store.text_files import read_text
from cpc.evaluation import bound_table, data_class
from cpc.evaluation.tables import NOT_RECORDED
from cpc.interop.hub import MODEL_FILES, hub
from cpc.pages.report import written
from cpc.probes.abx.command import abx_table
from cpc.probes.record import REPORT_NAME, read_report
from cpc.probes.tables import probe_tables

describe_result = written
CARD_NAME = "README.md"
_PATH_OPTIONS = ("source", "init_from")  # options that hold a path, absolute or not
_PATH_START = re.compile(r"(\w{2,}:)?(/|~|\.\.?[\\/]|[A-Za-z]:[\\/]|\\\\)")  # start of a path, also after `NAME:`


@checked
def share(
    model_folder: str | Path,
    *,
    license: str,
    to: str | None = None,
    out: NewFolder | None = None,
    data_name: str | None = None,
    notes: str | Path | None = None,
    private: bool = False,
    trusted_packages: tuple[str, ...] = ("cpc",),
) -> Path | str:
    """Write a model and its card to a folder, or upload them to the Hub, or both.

    The card holds data, recipe, bound, licence, and the tables of `probe*.json` from the run folder and the model
    folder. Absolute paths, and paths of sources and of the initial model, are not shared: only the last part of such a
    path is written, and only NAME of NAME:ROOT.

    Args:
        model_folder: a run folder, or a model folder.
        license: licence of the weights by its name on the Hub, such as apache-2.0 or cc-by-nc-4.0. The licence of the
            data may require a certain licence.
        to: ORG/NAME on the Hub, which is created if it does not exist. Log in first with `hf auth login`, or set
            HF_TOKEN.
        out: a new folder for the files.
        data_name: name of the data, for the card; the last part of their path if not given.
        notes: text file in Markdown for the start of the card, such as what the model is good for and what it is not;
            it takes the place of the lines that install cpc and load the model.
        private: create a private repository, if it does not exist.
        trusted_packages: packages whose classes the model and its data may name.

    Returns:
        The address of the upload, or the folder.

    Raises:
        ValueError: if neither `to` nor `out` is given, `out` exists, or the model cannot be loaded (before anything is
            written or sent); also if the Hub does not know the licence.
        ConnectionError: if the Hub cannot be reached, or rejects the upload.
    """
    if to is None and (out is None or private):
        raise ValueError("name a target: `to`, an ORG/NAME on the Hub (`private` applies only there), or `out`")
    if to is not None:
        hub()  # if the package is missing, fail before the work
    trusted, start = tuple(trusted_packages), "" if notes is None else read_text(Path(notes)).strip()
    model = load_pretrained(model_folder, trusted_packages=trusted)  # raises an error if the model is damaged
    config = read_config(model_folder)
    config["provenance"] = provenance = shorten_paths(config["provenance"])
    if recorded := provenance.get("data"):
        option = data_class(config, trusted).source_option
        data_name = data_name or _last_part(str(recorded["init_args"].get(option, "")))
        recorded["init_args"][option] = data_name
    provenance["data_name"], bounds = data_name, provenance.get("held_out", [])
    sections = [
        start or _usage(to or "ORG/NAME", trusted),
        f"## Data\n\n{data_name or 'Not recorded.'}\n\n" + _options(recorded),
        _recipe(describe(model), provenance),
        f"## Bound\n\n{_block(str(bound_table(bounds[0]) if bounds else NOT_RECORDED))}",
        _probes(model_folder, config),
        f"## Licence\n\n{license}",
    ]
    title = (to or Path(model_folder).resolve().name).rpartition("/")[2]
    tags = ["contrastive-predictive-coding", config["modality"]]
    header = _yaml({"library_name": "cpc", "license": license, "tags": tags})
    card = f"---\n{header}\n---\n\n# {title}\n\n" + "\n\n".join(section for section in sections if section) + "\n"
    with tempfile.TemporaryDirectory() if out is None else build_atomically(Path(out), lambda _: False, "out") as path:
        folder = Path(path)
        shutil.copyfile(weights_of(model_folder), folder / MODEL_FILES[1])
        write_json(config, folder / MODEL_FILES[0])
        (folder / CARD_NAME).write_text(card, encoding="utf-8", errors="replace")
        return Path(str(out)) if to is None else _upload(folder, to, private)


def _upload(folder: Path, to: str, private: bool) -> str:
    package = hub()
    try:
        api = package.HfApi(library_name="cpc", library_version=__version__)
        api.create_repo(to, private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=to,
            folder_path=folder,
            commit_message=f"cpc {__version__}",
            allow_patterns=[*MODEL_FILES, CARD_NAME],
        )
    except ValueError as error:  # the Hub checks the name, and the header of the card
        raise ValueError(f"`to`={to!r}: the Hub rejects the name, or the card with its `license`: {error}") from error
    except Exception as error:  # the errors of the HTTP client have no common class
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConnectionError(f"{to} cannot be written: {reason}; log in as its owner (`hf auth login`)") from error
    return str(done.commit_url)


def shorten_paths(value: Any, name: str = "") -> Any:
    """Replace each path by its last part, since a path may reveal persons and places."""
    if isinstance(value, dict):
        return {name: shorten_paths(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [shorten_paths(entry, name) for entry in value]
    is_path = isinstance(value, str) and (name in _PATH_OPTIONS or _PATH_START.match(value))
    return _last_part(value) if is_path else value


def _last_part(path: str) -> str:
    """Return the last part of a path, or NAME of NAME:ROOT."""
    named = re.match(r"(\w{2,}):(?!//)", path)  # not a Windows drive or a URL
    return named[1] if named else re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def _usage(name: str, trusted: tuple[str, ...]) -> str:
    argument = "" if trusted == ("cpc",) else f", trusted_packages={trusted}"
    return f"```sh\n{pip_install('hub')}\n```\n\n" + (
        f'```python\nimport cpc\n\nmodel = cpc.load_pretrained("{name}"{argument})  # in eval mode\n```'
    )


def _options(recorded: Mapping[str, Any] | None) -> str:
    if recorded is None:
        return ""
    class_name = recorded["class_path"].rpartition(".")[2]
    return f"Read as `{class_name}`:\n\n" + _block(_yaml(recorded["init_args"]))


def _recipe(architecture: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    facts = {name: value for name, value in provenance.items() if name not in ("data", "held_out")}
    recipe = ", ".join(f"{name} {value}" for name, value in facts.items() if isinstance(value, int | float | str))
    if "cpc_audio" in facts:
        recipe = f"A checkpoint of CPC_audio, trained with\n\n{_block(_yaml(facts['cpc_audio']))}"
    return f"## Recipe\n\n{recipe}\n\n" + _block(_yaml(architecture["init_args"]))


def _probes(model_folder: str | Path, config: Mapping[str, Any]) -> str:
    """Return the section with the tables of `probe*.json` for these weights, from the model folder and its run."""
    folder = model_folder_of(model_folder).resolve()
    folders = [folder, folder.parent] if folder.name == "model" else [folder]
    paths = [path for folder in folders for path in sorted(folder.glob(f"{Path(REPORT_NAME).stem}*.json"))]
    reports = [shorten_paths(read_report(path, config["sha256"])) for path in paths]
    tables = []
    for report in reports:
        source = report.get("data", {}).get("source")
        texts = ["\n\n".join(map(str, probe_tables(report)))] if report.get("tasks") else []
        texts += [str(abx_table(record)) for record in report.get("abx", {}).values()]
        tables += [f"On `{_last_part(source)}`:" if source else "", *map(_block, texts)]
    return "## Probes\n\n" + ("\n\n".join(filter(None, tables)) or "None were measured with these weights.")


def _yaml(value: Any) -> str:
    """Format a value as YAML, in the style of the configs."""
    return str(yaml.safe_dump(json.loads(json_text(value)), sort_keys=False)).rstrip()


def _block(text: str) -> str:
    return f"```\n{text}\n```"
