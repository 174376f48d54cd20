"""Data: manifests, audio, windows, batches, alignments, images.

The public names load on first use, so that indexing a folder never imports torch. The function `pack` shares its name
with its module: `from cpc.data.pack import pack`.
"""

import importlib
from typing import Any

_HOME_OF = {
    "Alignments": "alignments",
    "Audio": "audio",
    "AudioFiles": "audio",
    "Batch": "batch",
    "ExtremePoints": "extreme",
    "ImageFiles": "image_files",
    "ImageTable": "image_table",
    "Manifest": "manifest",
    "PackedAudio": "pack",
    "PackedImages": "image_pack",
    "PatchAugmentation": "patch_augmentation",
    "SameSpeakerBatches": "batches",
    "Segment": "alignments",
    "SparseBatch": "sparse_batch",
    "UniformBatches": "batches",
    "WindowDataset": "windows",
    "frame_labels": "alignments",
    "index_folder": "index",
    "initialisation_windows": "windows",
    "pack_images": "image_pack",
    "read_alignments": "alignments",
    "read_audio": "audio",
    "read_extreme": "extreme",
    "read_image_source": "image_sources",
    "read_manifest": "manifest",
    "window_labels": "alignments",
    "write_extreme": "extreme",
}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cpc.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cpc.data.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
