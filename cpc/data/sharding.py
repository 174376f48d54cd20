"""`cpc data shard`: write a corpus of audio, images or signals as shards.

torch is imported only when the command starts, so that the help of the command does not need torch.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cpc.config.argument_rules import Count, NewFolder, Positive, checked

if TYPE_CHECKING:
    from cpc.data.store.packed import PackedRows


@checked
def shard_corpus(
    data: str | Path,
    out: NewFolder,
    *,
    shard_mb: Positive = 16.8,
    sample_rate_hz: Positive | None = None,
    image_size: Count | None = None,
    num_channels: Count | None = None,
    channels: Sequence[str] | None = None,
    missing: Literal["refuse", "mask"] | None = None,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
) -> None:
    """Decode a corpus and write it as shards, which `cpc pretrain` reads from their folder or URL.

    Args:
        data: manifest CSV of audio, or its folder; or a source of images or signals, as for `cpc pretrain`.
        out: a new folder for the shards; copy it to the place from which training will read them.
        shard_mb: size of a shard, in 1e6 bytes.
        sample_rate_hz: for audio, rate to resample to, 16000 if not given; for signals, rate of the recordings, if the
            source does not say it.
        image_size: for images, side in pixels of the square that is cut from each image: `load_size` of training, or
            `image_size` of training without `load_size`.
        num_channels: for images, 3 for RGB or 1 for grey; 3 if not given.
        channels: for signals, names or numbers of the channels; all if not given.
        missing: for signals, `refuse` or `mask` missing samples, see `cpc.data.Signals`; `refuse` if not given.
        cache_dir: folder for the pack; .cpc_cache beside the corpus if not given.
        skip_bad: leave out files that cannot be used, and count them.
    """
    from cpc.data.audio.manifest import is_manifest
    from cpc.data.store.shards import is_sharded, write_shards

    if is_sharded(data):
        raise ValueError(f"{data} is sharded already: copy its folder as it is")
    readers: dict[str, Callable[..., Any]] = {"signals": _signals, "audio": _audio, "images": _images}
    if image_size is None and _are_signals(Path(data)):
        contents = "signals"
    elif is_manifest(data):
        contents = "audio"
    elif image_size is not None:
        contents = "images"
    else:
        advice = f"give `image_size` for images, or write one of audio with `cpc data index {data}`"
        raise ValueError(f"{data} is not a manifest and does not hold one: {advice}")
    names = ("sample_rate_hz", "image_size", "num_channels", "channels", "missing")
    values = (sample_rate_hz, image_size, num_channels, channels, missing)
    given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    for name in sorted(given.keys() - signature(readers[contents]).parameters.keys()):
        raise ValueError(f"`{name}`={given[name]} does not apply to {contents}, which {data} holds: leave it out")
    packed, tables = readers[contents](data, {"cache_dir": cache_dir, "skip_bad": skip_bad}, **given)
    num_shards = write_shards(packed.folder, tables, Path(out), packed.element_bytes, round(shard_mb * 1e6))
    print(f"{len(packed)} files in {num_shards} shards in {out}")


def _are_signals(data: Path) -> bool:
    """Return whether a source holds signals: by its suffix, or by those of the files that it holds or names."""
    from cpc.data.audio.index import find_media
    from cpc.data.audio.manifest import MANIFEST_NAME, read_manifest
    from cpc.data.signals.pack import is_file_of_signals

    if (data / MANIFEST_NAME).is_file():
        return is_file_of_signals(data / read_manifest(data, check_files=False).paths[0])
    if not data.is_dir():
        return data.suffix != ".csv" and is_file_of_signals(data)  # a csv is a manifest
    try:
        return not find_media(data)[1]
    except ValueError:
        return False


def _signals(
    data: str | Path, options: Any, sample_rate_hz: Any = None, channels: Any = None, missing: Any = "refuse"
) -> tuple["PackedRows", dict[str, bytes]]:
    from cpc.data.signals.pack import TABLE_NAME, pack_signals, write_table
    from cpc.data.signals.recordings import read_recordings

    source = {"sample_rate_hz": sample_rate_hz, "channels": channels, "missing": missing}
    recordings = read_recordings(data, **source)  # readers of the shards draw splits
    packed = pack_signals(recordings, **options)
    return packed, {TABLE_NAME: write_table(recordings, packed)}


def _audio(
    data: str | Path, options: Any, sample_rate_hz: int | float = 16000
) -> tuple["PackedRows", dict[str, bytes]]:
    from cpc.data.audio.alignments import ALIGNMENTS_NAME, check_alignments, read_alignments
    from cpc.data.audio.manifest import MANIFEST_NAME, read_manifest
    from cpc.data.audio.pack import pack

    if sample_rate_hz % 1:
        raise ValueError(f"`sample_rate_hz`={sample_rate_hz} must be a whole number for audio")
    manifest = read_manifest(data)
    tables = {MANIFEST_NAME: manifest.csv(manifest.paths)}
    if (manifest.root / ALIGNMENTS_NAME).is_file():
        check_alignments(read_alignments(manifest.root), manifest, manifest.rows(None))
        tables[ALIGNMENTS_NAME] = (manifest.root / ALIGNMENTS_NAME).read_bytes()
    return pack(manifest, int(sample_rate_hz), **options), tables


def _images(
    data: str | Path, options: Any, image_size: int, num_channels: int = 3
) -> tuple["PackedRows", dict[str, bytes]]:
    from cpc.data.images.pack import TABLE_NAME, pack_images, write_table
    from cpc.data.images.sources import read_image_source

    table = read_image_source(data, valid_share=0.0)  # 0, because readers of the shards draw held-out splits
    return pack_images(table, image_size, num_channels, **options), {TABLE_NAME: write_table(table)}


@checked
def pack_corpus(
    data: str | Path, *, sample_rate_hz: Count = 16000, cache_dir: str | Path | None = None, skip_bad: bool = False
) -> None:
    """Decode a corpus once, and print the folder of the pack.

    Args:
        data: manifest CSV, or the folder that holds it.
        sample_rate_hz: rate to resample to.
        cache_dir: folder for the pack; .cpc_cache beside the manifest if not given.
        skip_bad: leave out files that cannot be used, and count them.
    """
    from cpc.data.audio.manifest import read_manifest
    from cpc.data.audio.pack import pack

    packed = pack(read_manifest(data), sample_rate_hz, cache_dir, skip_bad=skip_bad)
    seconds = int(packed.num_samples.sum()) / packed.sample_rate_hz
    print(f"{len(packed)} files, {seconds / 3600:.2f} h at {packed.sample_rate_hz} Hz in {packed.folder}")
