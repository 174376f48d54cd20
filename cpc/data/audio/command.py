"""`cpc data pack`. torch is imported only when the command runs, so that its help is fast."""

from pathlib import Path

from cpc.config.argument_rules import Count, checked


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

    Raises:
        ValueError: the errors of `cpc.data.audio.pack.pack`.
    """
    from cpc.data.audio.manifest import read_manifest
    from cpc.data.audio.pack import pack

    packed = pack(read_manifest(data), sample_rate_hz, cache_dir, skip_bad=skip_bad)
    seconds = int(packed.num_samples.sum()) / packed.sample_rate_hz
    print(f"{len(packed)} files, {seconds / 3600:.2f} h at {packed.sample_rate_hz} Hz in {packed.folder}")
