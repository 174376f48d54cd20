"""Which readouts answer for a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpc.data.audio.corpus import Corpus
from cpc.data.audio.readouts import AudioReadouts
from cpc.data.images.readouts import ImageCut, ImageReadouts
from cpc.data.readouts import Readouts
from cpc.evaluation import recorded_image_protocol
from cpc.model import CPC

_UNRECORDED_WINDOW_LATENTS = 128


def open_readouts(
    config: Mapping[str, Any],
    model: CPC,
    source: str | Path | None,
    *,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    **where: Any,
) -> Readouts:
    """The readouts of a model's modality, over a source of its data.

    Args:
        config: the model's config.json.
        model: the model.
        source: as the modality takes it; None: only files outside a corpus are read.
        cache_dir: of packed data; beside the source unless given.
        skip_bad: go on without files that cannot be used.
        where: `train_split`, `device` and `precision` of `Readouts`.

    Raises:
        ValueError: if the modality has no readouts, or the source cannot be read.
    """
    modality = config.get("modality", "audio")
    options: dict[str, Any] = {"cache_dir": cache_dir, "skip_bad": skip_bad}
    if modality == "audio":
        recorded = config["provenance"].get("evaluation", {}).get("window_samples")
        window_samples = recorded or _UNRECORDED_WINDOW_LATENTS * model.encoder.hop_samples
        corpus = None if source is None else Corpus(source, model.encoder, window_samples, **options)
        return AudioReadouts(corpus, **where)
    if modality == "image":
        cut = recorded_image_protocol(config)
        if source is None:
            of_file = ImageCut(model.encoder, cut.image_size, cut.load_size or cut.image_size, cut.augmentation)
            return ImageReadouts(of_file, **where)
        return ImageReadouts(cut.corpus(source, model.encoder, **options), **where)
    raise ValueError(f"this is a model of {modality}: features are read of models of audio and image")
