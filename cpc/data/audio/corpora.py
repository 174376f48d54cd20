"""Helpers of the scripts of public audio corpora (`datasets/NAME/prepare.py`), which write only a manifest."""

import re
import warnings
from collections.abc import Collection
from pathlib import Path

from cpc.data.audio.index import index_folder
from cpc.data.audio.manifest import MANIFEST_NAME, Manifest, named_groups
from cpc.data.store.contents import describe_splits
from cpc.data.store.folders import refuse, require_file
from cpc.data.store.text_files import read_text


def describe(manifest: Manifest, published: dict[str, int] | None = None) -> str:
    """Return a table of each split's files, speakers and hours, with the `published` number of files if it differs."""
    title = f"{len(manifest)} files, manifest in {manifest.root}"
    table = describe_splits(title, manifest.column("split"), published, hours=manifest.seconds / 3600)
    counts = {name: len(set(manifest.column(name))) for name in ("speaker", *manifest.label_columns)}
    return f"{table}\nlabels: {', '.join(f'{name} ({num} values)' for name, num in counts.items())}"


def index_audio(root: Path, out: Path | None) -> tuple[Manifest, Path]:
    """Index the audio below `root`; return the index and the path of the manifest, which is not written yet."""
    out = out or root
    if out.is_dir():
        out = out / MANIFEST_NAME
    draft = out.with_name(f"{out.stem}.index.csv")
    index = index_folder(root, draft, valid_share=0.0, test_share=0.0, overwrite=True)
    draft.unlink()
    return index, out


def parse_paths(index: Manifest, pattern: str, layout: str) -> dict[str, list[str]]:
    """Match every path; return the values of each named group of the pattern."""
    return named_groups(index.paths, re.compile(pattern), f"audio files do not have names like {layout}")


def splits_of(
    lists: dict[str, Path], ids: Collection[str], *, drop_suffix: bool = False, allow_missing: bool = False
) -> dict[str, str]:
    """Return the split of each utterance, read from one list of utterances per split."""
    present = set(ids)
    split_of: dict[str, str] = {}
    for split, path in lists.items():
        listed = [line.rpartition(".")[0] if drop_suffix else line for line in read_list(path)]
        refuse(f"utterances of {path} are also in another list", [each for each in listed if each in split_of])
        absent = [utterance for utterance in listed if utterance not in present]
        if absent and allow_missing:
            warnings.warn(f"left out {len(absent)} utterances of {path} without audio", stacklevel=3)
        else:
            refuse(f"of {len(listed)} utterances of {path} have no audio", absent)
        split_of |= {utterance: split for utterance in listed if utterance in present}
    return split_of


def read_list(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank; raise a ValueError if the file does not exist."""
    require_file(path)
    return [line for line in read_text(path).splitlines() if line.strip()]


def write_manifest(
    index: Manifest, out: Path, *, split: list[str], speaker: list[str], **labels: list[str]
) -> Manifest:
    """Write the indexed files with their split, speaker and labels to `out`."""
    counts = {name: values for name, values in index.columns.items() if name != "path"}
    columns = {"path": index.paths, "split": split, "speaker": speaker, **counts, **labels}
    manifest = Manifest(index.root, columns)
    manifest.write(out)
    return manifest
