"""How held-out batches are drawn: noted by a run beside its model, taken up whenever that is measured again."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from cpc.data.audio.corpus import Corpus, Sampler
from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.sources import DEFAULT_VALID_SHARE
from cpc.data.text.corpus import TokenCorpus
from cpc.data.text.lines import ALL, DEFAULT_SHARE, Text
from cpc.data.text.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How held-out batches are drawn: a run notes it beside its model, and `cpc evaluate` takes it up.

    Attributes:
        split: of the corpus.
        batch_size: windows, images or lanes per batch (and device).
    """

    split: str
    batch_size: int

    def __post_init__(self) -> None:
        """Refuse what no batch can be made of.

        Raises:
            ValueError: if a size is no number or below 1, or the split no word, naming it.
        """
        if not isinstance(self.split, str):
            raise ValueError(f"split={self.split!r} must name a split")
        for name in ("batch_size", *self._sizes):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be at least 1")

    @property
    def _sizes(self) -> tuple[str, ...]:
        """Further attributes that count something."""
        return ()


@dataclass(frozen=True, kw_only=True)
class WindowProtocol(Protocol):
    """Of windows and images, which are drawn.

    Attributes:
        sampler: how training draws its batches.
        speakers_per_batch: of same-speaker batches.
    """

    sampler: Sampler
    speakers_per_batch: int


@dataclass(frozen=True, kw_only=True)
class AudioProtocol(WindowProtocol):
    """Of audio.

    Attributes:
        window_samples: length of a window.
    """

    window_samples: int

    def corpus(self, source: str | Path, encoder: Any, **options: Any) -> Corpus:
        """A manifest's audio, cut as this says."""
        return Corpus(source, encoder, self.window_samples, **options)


@dataclass(frozen=True, kw_only=True)
class ImageProtocol(WindowProtocol):
    """Of images, which have no speakers.

    Attributes:
        image_size: side of the square that is cut out of the middle of each image.
        load_size: side that images are brought to before; None: `image_size`.
        augmentation: of training, which frames patches when they are not changed, too.
        flip: whether training mirrors images, as networks that learn labels then do; never when a bound is measured.
        valid_share: of the training images, where the source has no split `valid`: what was held out stays held out.
        valid_from: the split that they were drawn from, the one trained on; None, in runs that do not say it: `train`,
            or `unlabelled` where there is no `train`.
        packed: whether images are kept decoded; a corpus too large for that in training is too large ever after.
    """

    sampler: Sampler = field(default="uniform", init=False)
    speakers_per_batch: int = field(default=1, init=False)
    image_size: int
    load_size: int | None = None
    augmentation: str = "none"
    flip: bool = False
    valid_share: float = DEFAULT_VALID_SHARE
    valid_from: str | None = None
    packed: bool = True

    def corpus(
        self, source: str | Path, encoder: Any, *, cache_dir: str | Path | None = None, skip_bad: bool = False
    ) -> ImageCorpus:
        """A source's images, cut as this says."""
        return ImageCorpus(
            source,
            encoder,
            self.image_size,
            load_size=self.load_size,
            augmentation=self.augmentation,
            flip=self.flip,
            valid_share=self.valid_share,
            valid_from=self.valid_from,
            packed=self.packed,
            cache_dir=cache_dir,
            skip_bad=skip_bad,
        )


@dataclass(frozen=True, kw_only=True)
class TextProtocol(Protocol):
    """Of text, which is read from end to end, in `batch_size` lanes; all of a source's lines where `split` is `all`.

    Attributes:
        chunk_tokens: of each lane in a batch; contexts are carried on, so that it changes nothing but the memory.
        valid_share: of the lines, where no file is named `valid`: what was held out stays held out.
        test_share: likewise, where no file is named at all.
    """

    chunk_tokens: int
    valid_share: float = DEFAULT_SHARE
    test_share: float = DEFAULT_SHARE

    @property
    def _sizes(self) -> tuple[str, ...]:
        return ("chunk_tokens",)

    def text(self, source: str | Path, *, skip_bad: bool = False) -> Text:
        """A source's lines, cut by split as this says."""
        return Text(
            source,
            valid_share=self.valid_share,
            test_share=self.test_share,
            skip_bad=skip_bad,
            is_whole=self.split == ALL,
        )

    def corpus(
        self, source: str | Path, encoder: Any, *, cache_dir: str | Path | None = None, skip_bad: bool = False
    ) -> TokenCorpus:
        """A source's tokens, in the vocabulary of a trained encoder."""
        if encoder.vocabulary is None:
            raise ValueError(
                "the model holds no vocabulary, so it cannot read text: it was not trained by cpc pretrain"
            )
        try:
            vocabulary = Vocabulary(**encoder.vocabulary)
        except TypeError as error:
            raise ValueError(f"the vocabulary in the model's config.json is none: {error}") from error
        return TokenCorpus(self.text(source, skip_bad=skip_bad), vocabulary=vocabulary, cache_dir=cache_dir)


PROTOCOLS: dict[str, type[AudioProtocol] | type[ImageProtocol] | type[TextProtocol]] = {
    "audio": AudioProtocol,
    "image": ImageProtocol,
    "text": TextProtocol,
}


def recorded_image_protocol(config: Mapping[str, Any]) -> ImageProtocol:
    """How the run of a model cut its images, as the model's config.json says.

    Raises:
        ValueError: if it does not.
    """
    recorded = config["provenance"].get("evaluation", {})
    if "image_size" not in recorded:
        raise ValueError(
            "the model's config.json does not say the size of its images: it was not exported by cpc pretrain; add "
            "split, batch_size and image_size to its provenance.evaluation"
        )
    legal = _options_of(ImageProtocol)
    return ImageProtocol(**{name: value for name, value in recorded.items() if name in legal})


def protocol_of(
    model_folder: str | Path, modality: str, of_the_run: dict[str, Any], given: dict[str, Any]
) -> AudioProtocol | ImageProtocol | TextProtocol:
    """How a model is measured: what is given, and beside that what its run noted.

    Args:
        model_folder: for messages.
        modality: of the model's encoder.
        of_the_run: `provenance.evaluation` of its config.json.
        given: attributes of the modality's protocol.

    Raises:
        ValueError: on a modality without a protocol, an option of another one, or one that nobody says.
    """
    if modality not in PROTOCOLS:
        raise ValueError(f"{model_folder} is a model of {modality}: evaluate measures models of {', '.join(PROTOCOLS)}")
    kind = PROTOCOLS[modality]
    legal = _options_of(kind)
    foreign = [name for name in given if name not in legal]
    if foreign:
        raise ValueError(f"`{'`, `'.join(foreign)}`: {model_folder} is a model of {modality}, which has no such option")
    values = {name: value for name, value in of_the_run.items() if name in legal} | given
    missing = [name for name, option in legal.items() if option.default is MISSING and name not in values]
    if missing:
        raise ValueError(
            f"{model_folder} does not say how the batches of its run were drawn: give `{'`, `'.join(missing)}`"
        )
    return kind(**values)


def _options_of(kind: type[Protocol]) -> dict[str, Field]:
    return {option.name: option for option in fields(kind) if option.init}
