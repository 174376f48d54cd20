"""Hooks of mkdocs: add a reference page for every public package, and turn links that leave docs/ into plain names."""

import importlib
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PUBLIC = (
    "cpc",
    "cpc.data",
    "cpc.encoders",
    "cpc.contexts",
    "cpc.predictors",
    "cpc.candidates",
    "cpc.candidates.samplers",
    "cpc.losses",
    "cpc.bounds",
    "cpc.bounds.critic_losses",
    "cpc.bounds.estimators",
    "cpc.bounds.tasks",
    "cpc.evaluation",
    "cpc.probes",
    "cpc.probes.abx",
    "cpc.interop.export",
    "cpc.interop.hub",
    "cpc.interop.hub_datasets",
    "cpc.interop.share",
    "cpc.interop.cpc_audio",
    "cpc.sklearn",
    "cpc.interop.s3prl",
)
LINK = re.compile(r"\[([^\]]+)\]\(([^):#]+)(#[^)]*)?\)")


def public_names(package: str) -> dict[str, str]:
    """Return the full name of each public name of a package; without `__all__`, of each name that the file defines."""
    module = importlib.import_module(package)
    own = [name for name in vars(module) if not name.startswith("_")]
    own = [name for name in own if getattr(getattr(module, name), "__module__", None) == package]
    homes: dict[str, str] = {}
    for name in getattr(module, "__all__", own):
        found: Any = getattr(module, name)
        if type(found) is type(module):
            continue  # a package, which has a separate page
        homes[name] = f"{getattr(found, '__module__', package)}.{getattr(found, '__qualname__', name)}"
        if not homes[name].startswith("cpc."):  # a constant or an alias of types, defined where it is imported from
            homes[name] = f"{package}.{name}"
    return homes


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the reference pages to the menu."""
    config.nav.append({"Reference": [{package: f"reference/{package}.md"} for package in PUBLIC]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Generate a reference page for every package in `PUBLIC`."""
    for package in PUBLIC:
        summary = (importlib.import_module(package).__doc__ or "").strip()
        parts = [f"# {package}", summary, *(f"::: {home}" for home in public_names(package).values())]
        files.append(File.generated(config, f"reference/{package}.md", content="\n\n".join(parts)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to scripts of the gallery by their pages, and links that leave docs/ by the names of the files."""
    docs = Path(config.docs_dir).resolve()

    def shown(link: re.Match[str]) -> str:
        target = (docs / page.file.src_uri).parent.joinpath(link[2]).resolve()
        if target.is_relative_to(docs / "gallery") and target.exists():
            return link[0].replace(".py)", ".md)").replace("(gallery)", "(gallery/index.md)")
        is_outside = not target.is_relative_to(docs) and target.exists()
        return f"`{target.relative_to(docs.parent)}`" if is_outside else link[0]

    return LINK.sub(shown, markdown)
