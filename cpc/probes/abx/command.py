"""`cpc abx`: how well features tell phones apart, without a probe."""

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cpc.checkpoint import load_pretrained, place_of_results, read_config
from cpc.config.argument_rules import OutFile, checked
from cpc.data.audio.item_files import Items, read_items
from cpc.data.audio.manifest import is_manifest
from cpc.data.audio.modality import Audio
from cpc.data.audio.probe_data import AudioFrontEnd, AudioProbeData
from cpc.data.store.atomic import finite, write_json
from cpc.data.store.shards import is_sharded
from cpc.evaluation import data_class
from cpc.probes.abx.files import locate
from cpc.probes.abx.protocol import ABXProtocol, abx_errors
from cpc.probes.abx.spans import frames_of_items
from cpc.probes.clock import Clock
from cpc.probes.open import build_untrained, check_names, open_probe_data
from cpc.probes.record import REPORT_NAME, heading, read_report
from cpc.probes.store import Extraction, FeatureStore

BASELINES = ("random",)
MODES = ("within", "across")


@checked
def abx(
    model_folder: str | Path,
    items: str | Path,
    *,
    data: str | Path | None = None,
    features: Sequence[str] | None = None,
    baselines: Sequence[str] = BASELINES,
    train_split: str | None = None,
    protocol: ABXProtocol | None = None,
    extraction: Extraction | None = None,
    out: OutFile | None = None,
    trusted_packages: Sequence[str] = ("cpc",),
) -> dict[str, Any]:
    """`cpc abx`: print how often features confuse two phones, and write it into probe.json beside the probes.

    A, B and X are items of one context, A and X the same phone, B another: X is confused where it is closer to B than
    to A. Within speakers one speaker says all three; across, X is another speaker's. Recordings are encoded whole.
    Distance, alignment and averages are those of libri-light and ZeroSpeech 2021 (Kahn et al. 2020, arXiv:1912.07875);
    `cpc.probes.abx.spans` says where the frames of an item differ.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        items: item file, of `cpc data items`, libri-light or ZeroSpeech.
        data: manifest CSV of the audio, or the folder that holds it; the item file's folder if not given.
        features: of the model (c, z) or hand-made (mfcc, logmel); if not given, c z mfcc.
        baselines: random (the architecture untrained) and hand-made features; none with an empty list.
        train_split: where hand-made features and untrained models take their statistics; all files if not given.
        protocol: which triplets are compared.
        extraction: how features are computed and kept.
        out: JSON file; probe.json in the model's folder if not given.
        trusted_packages: packages whose classes the model and its data may name.

    Returns:
        The whole report. `abx[NAME]["results"]` has by features the records of `ABXError` `within` and `across`, None
        where there is no such triplet. NAME is the stem of the item file and what differs from the default protocol,
        such as `dev` or `dev, context any`.

    Raises:
        ValueError: before anything is computed, if the item file is damaged, names files that the data lack, or holds
            no triplet; on unknown names; if an item begins or ends after its file's end; if the report has the errors
            of other items under the same name.
    """
    extraction, protocol = extraction or Extraction(), protocol or ABXProtocol()
    items, trusted = Path(items), tuple(trusted_packages)
    out = place_of_results(model_folder, REPORT_NAME, out)
    listed, config = read_items(items), read_config(model_folder)
    kind = data_class(config, trusted)
    if not issubclass(kind, Audio):
        raise ValueError(f"{model_folder} is a model of {kind.name}: items are phones of audio")
    _check_triplets(listed, items, protocol)
    report = read_report(out, config["sha256"]) or {
        **heading(model_folder, config),
        "bound": config["provenance"].get("held_out", []),
        "tasks": {},
    }
    measured = {
        "file": str(items),
        "sha256": hashlib.sha256(items.read_bytes()).hexdigest(),
    }
    earlier = {_name(each["items"], each["protocol"]): each for each in report.get("abx", {}).values()}
    name_here = _name(measured, asdict(protocol))
    if name_here in earlier and earlier[name_here]["items"]["sha256"] != measured["sha256"]:
        raise ValueError(
            f"{out} has {name_here!r} of other items, {earlier[name_here]['items']['file']}: rename the item file, or "
            "name another report with `out`"
        )
    if data is None and not (is_manifest(items.parent) or is_sharded(items.parent)):
        raise ValueError(f"there is no manifest beside {items}: name the folder of the audio with `data`")
    model = load_pretrained(model_folder, device=extraction.device, trusted_packages=trusted)
    data = items.parent if data is None else data
    probe_data = open_probe_data(
        config,
        model,
        data,
        cache_dir=extraction.cache_dir,
        skip_bad=extraction.skip_bad,
        trusted_packages=trusted,
        train_split=train_split,
        device=extraction.device,
        precision=extraction.precision,
    )
    assert isinstance(probe_data, AudioProbeData)
    features = probe_data.default_features if features is None else features
    check_names("features", features, [*probe_data.features, *probe_data.hand_made])
    check_names("baselines", baselines, [*BASELINES, *probe_data.hand_made])
    if not (features or baselines):
        raise ValueError("`features` and `baselines` are empty: name something to measure")
    num_listed = len(listed)
    listed, rows, num_cut = locate(listed, items, probe_data, extraction.skip_bad)
    results: dict[str, Any] = {}
    geometries, device, clock = {}, extraction.device, Clock()

    def passes() -> Iterator[tuple[dict[str, str], AudioFrontEnd]]:
        """The names of results by feature, and the pass over the recordings that gives these features."""
        of_model = [name for name in features if name in probe_data.features]
        if of_model:
            yield {name: f"cpc{probe_data.features[name]}" for name in of_model}, probe_data.front_end(of_model, model)
        for name in probe_data.hand_made:
            if name in (*features, *baselines):
                yield {name: name}, probe_data.front_end([name])
        if "random" in baselines:
            read = probe_data.untrained_names(of_model)
            untrained = build_untrained(config, probe_data, trusted, 0)
            yield {name: f"random{probe_data.features[name]}" for name in read}, probe_data.front_end(read, untrained)

    for names, extractor in passes():
        with clock("features"):
            store = FeatureStore.extract(extractor, np.unique(rows), probe_data.name, extraction)
        spans = frames_of_items(listed, rows, store)
        for feature, name in names.items():
            with clock("triplets"):
                errors = abx_errors(
                    store.values[feature], spans, listed, protocol, device=device, progress=extraction.progress
                )
            found = {mode: None if error is None else asdict(error) for mode, error in errors.items()}
            results[name] = {**found, "num_without_frames": int((spans.lengths == 0).sum())}
            geometries[name] = extractor.geometry(feature)
    record = {
        "items": {
            **measured,
            "num_items": len(listed),
            "num_left_out": num_listed - len(listed),
            "num_cut": num_cut,
        },
        "data": {"source": str(data), **probe_data.record()},
        "protocol": {
            "distance": "angle between frames, mean along the alignment of two items",
            **asdict(protocol),
            "train_split": train_split,
            "features": geometries,
            "device": extraction.device,
            "precision": extraction.precision,
            "dtype": extraction.dtype,
        },
        "results": results,
        "seconds": clock.seconds,
    }
    if name_here in earlier:
        print(f"{out} had {name_here!r} before: replaced", file=sys.stderr)
    report = finite({**report, "abx": {**earlier, name_here: record}})
    table = format_abx(record)
    write_json(report, out)
    print(f"{table}\nwritten to {out}")
    return report


def format_abx(record: Mapping[str, Any]) -> str:
    """One item file's record as a table for people."""
    told = ", ".join(f"{option} {record['protocol'][option]}" for option in asdict(ABXProtocol()))
    lines = [
        f"{record['items']['file']}: {record['items']['num_items']} items, {told}",
        f"  {'ABX error':14}" + "".join(f" {mode:>9}  {'95 % interval':>15}" for mode in MODES),
    ]
    for name, result in record["results"].items():
        line = f"  {name:14}"
        for found in (result[mode] for mode in MODES):
            interval = None if found is None else found["interval_percent"]
            error = "none" if found is None else f"{found['error_percent']:.2f} %"
            line += f" {error:>9}  {'' if interval is None else f'{interval[0]:.2f} to {interval[1]:.2f}':>15}"
        lines.append(line)
    for mode, found in ((mode, next(iter(record["results"].values()))[mode]) for mode in MODES):
        if found is not None:
            lines.append(
                f"  {mode} speakers: {found['num_triplets']} triplets of {found['num_phone_pairs']} pairs of phones; "
                f"interval over {found['num_speakers']} speakers"
            )
    too_short = {name: result["num_without_frames"] for name, result in record["results"].items()}
    if any(too_short.values()):
        counts = ", ".join(f"{name} {count}" for name, count in too_short.items())
        lines.append(f"  items left out, as too short for a frame: {counts}")
    for name, words in {
        "num_left_out": "items left out, as without a recording there",
        "num_cut": "items that end after their recording, and are cut at its end",
    }.items():
        if record["items"].get(name):  # older records count neither
            lines.append(f"  {words}: {record['items'][name]}")
    return "\n".join(lines)


def _name(items: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    """The item file's stem, and what differs from the default protocol."""
    default = asdict(ABXProtocol())
    other = [f"{option} {protocol[option]}" for option in default if protocol[option] != default[option]]
    return ", ".join([Path(items["file"]).stem, *other])


def _check_triplets(items: Items, path: Path, protocol: ABXProtocol) -> None:
    _, cells = protocol.cells(items)
    if not any(len(of_mode.a) for of_mode in cells.values()):
        raise ValueError(
            f"{path}: its {len(items)} items make no triplet: A and B are two phones of one speaker between the same "
            "neighbours, and X is A's phone there again; list the items of more speech"
        )
