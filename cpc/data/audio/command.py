"""`cpc data pack` and `cpc data shard`. torch is imported when it starts, not for its help."""

from pathlib import Path


def pack_corpus(
    data: str | Path, *, sample_rate_hz: int = 16000, cache_dir: str | Path | None = None, skip_bad: bool = False
) -> None:
    """Decode a corpus once, and print where it is.

    Args:
        data: manifest CSV, or the folder that holds it.
        sample_rate_hz: rate to resample to.
        cache_dir: folder for the pack; .cpc_cache beside the manifest if not given.
        skip_bad: leave out files that cannot be used, and count them.

    Raises:
        ValueError: as `cpc.data.audio.pack.pack`.
    """
    from cpc.data.audio.manifest import read_manifest
    from cpc.data.audio.pack import pack

    packed = pack(read_manifest(data), sample_rate_hz, cache_dir, skip_bad=skip_bad)
    seconds = int(packed.num_samples.sum()) / packed.sample_rate_hz
    print(f"{len(packed)} files, {seconds / 3600:.2f} h at {packed.sample_rate_hz} Hz in {packed.folder}")


def shard_corpus(
    data: str | Path,
    out: str | Path,
    *,
    shard_mb: float = 16.8,
    sample_rate_hz: int = 16000,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
) -> None:
    """Decode a corpus and write it as shards, from which `cpc pretrain --data.manifest FOLDER_OR_URL` reads.

    Args:
        data: manifest CSV, or the folder that holds it.
        out: a new folder for the shards; copy it to where they shall be read from.
        shard_mb: size of a shard, 1e6 bytes.
        sample_rate_hz: rate to resample to.
        cache_dir: folder for the pack; .cpc_cache beside the manifest if not given.
        skip_bad: leave out files that cannot be used, and count them.

    Raises:
        ValueError: as `pack` and `write_shards`.
    """
    from cpc.data.audio.alignments import ALIGNMENTS_NAME
    from cpc.data.audio.manifest import MANIFEST_NAME, read_manifest
    from cpc.data.audio.pack import pack
    from cpc.data.store.shards import write_shards

    manifest, out = read_manifest(data), Path(out)
    packed = pack(manifest, sample_rate_hz, cache_dir, skip_bad=skip_bad)
    tables = {MANIFEST_NAME: manifest.csv(manifest.paths)}
    if (manifest.root / ALIGNMENTS_NAME).is_file():
        tables[ALIGNMENTS_NAME] = (manifest.root / ALIGNMENTS_NAME).read_bytes()
    num_shards = write_shards(packed.folder, tables, out, element_bytes=2, shard_bytes=round(shard_mb * 1e6))
    print(f"{len(packed)} files in {num_shards} shards in {out}")
