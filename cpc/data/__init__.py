"""Data: manifests, audio, windows, batches, alignments, images.

The public names are imported on first use, so that indexing a folder never imports torch. `pack` is not a public name,
since function and module have the same name: use `from cpc.data.audio.pack import pack`.
"""

import importlib
from typing import Any

_MODULES = {
    "Alignments": "audio.alignments",
    "Audio": "audio.modality",
    "Batch": "batch",
    "Frames": "frames.modality",
    "ImageFiles": "images.files",
    "ImageTable": "images.table",
    "Images": "images.modality",
    "Items": "audio.items",
    "Manifest": "audio.manifest",
    "Modality": "modality",
    "PackedAudio": "recordings.windows",
    "PackedImages": "images.pack",
    "PatchAugmentation": "images.patch_augmentation",
    "SameGroupBatches": "streams.same_group",
    "Segment": "recordings.labels",
    "Sentences": "sentences.modality",
    "Signals": "signals.modality",
    "Text": "text.modality",
    "UniformBatches": "streams.stream",
    "WindowDataset": "recordings.windows",
    "index_folder": "audio.index",
    "pack_images": "images.pack",
    "read_alignments": "audio.alignments",
    "read_audio": "audio.pack",
    "read_image_source": "images.sources",
    "read_items": "audio.items",
    "read_manifest": "audio.manifest",
    "window_labels": "audio.alignments",
    "write_items": "audio.items",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cpc.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cpc.data.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
