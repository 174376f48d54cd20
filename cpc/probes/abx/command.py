"""`cpc abx`: ABX errors of features, which need no probe."""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cpc.checkpoint import load_pretrained, place_of_results, read_config
from cpc.config.argument_rules import OutFile, Range, checked
from cpc.data.audio.items import Items, read_items
from cpc.data.audio.manifest import is_manifest
from cpc.data.audio.modality import Audio
from cpc.data.audio.probe_data import AudioProbeData
from cpc.data.figure_text import figure_text
from cpc.data.store.atomic import finite, write_json
from cpc.data.store.shards import is_sharded
from cpc.evaluation import data_class
from cpc.model import CPC
from cpc.pages.report import Report, Table
from cpc.probes.abx.errors import ABXProtocol, abx_errors
from cpc.probes.abx.items import frames_of_items, locate
from cpc.probes.record import REPORT_NAME, add_seconds, heading, read_report
from cpc.probes.store import Extraction, FeatureStore, build_untrained, check_names, open_probe_data

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
) -> Report:
    """`cpc abx`: measure how often features confuse two phones, and add the errors to probe.json.

    A, B and X are items of one context. A and X are the same phone, and B is another phone. X is confused if it is
    closer to B than to A. Within speakers, A, B and X have the same speaker; across speakers, X has another speaker
    than A and B. Recordings are encoded whole. Distance, alignment and averages are those of libri-light and ZeroSpeech
    2021 (Kahn et al. 2020, arXiv:1912.07875), except for the last frame of an item (see `cpc.probes.abx.items`).

    Args:
        model_folder: a model folder, or a run folder that holds one.
        items: item file of `cpc data items`, libri-light or ZeroSpeech.
        data: manifest CSV of the audio, or the folder that holds it; the item file's folder if not given.
        features: features of the model (c, z) and hand-made features (mfcc, logmel); c z mfcc if not given.
        baselines: random (the architecture untrained) and hand-made features; an empty list for no baselines.
        train_split: split whose statistics standardise hand-made features and the input of untrained models; all files
            if not given.
        protocol: the choice of triplets.
        extraction: how features are computed and kept.
        out: JSON file; probe.json in the model's folder if not given.
        trusted_packages: packages whose classes the model and its data may name.

    Returns:
        The whole report. `abx[NAME]["results"]` has an entry for each feature, with the keys `within` and `across`: the
        record of an `ABXError`, or None if there is no triplet. NAME is the stem of the item file with the settings
        that differ from the default protocol, such as `dev` or `dev, context any`.

    Raises:
        ValueError: before features are computed, if the item file is damaged, names files that the data lack, or has no
            triplet, or the report has results of another item file under the same name.
    """
    extraction, protocol = extraction or Extraction(), protocol or ABXProtocol()
    items, trusted = Path(items), tuple(trusted_packages)
    out = place_of_results(model_folder, REPORT_NAME, out)
    listed, config = read_items(items), read_config(model_folder)
    kind = data_class(config, trusted)
    if not issubclass(kind, Audio):
        raise ValueError(f"{model_folder} is a model of {kind.name}, but ABX items are phones of audio")
    _check_triplets(listed, items, protocol)
    report = read_report(out, config["sha256"]) or {
        **heading(model_folder, config),
        "bound": config["provenance"].get("held_out", []),
        "tasks": {},
    }
    item_file = {"file": str(items), "sha256": hashlib.sha256(items.read_bytes()).hexdigest()}
    earlier = {_name(each["items"], each["protocol"]): each for each in report.get("abx", {}).values()}
    name_of_test = _name(item_file, asdict(protocol))
    if name_of_test in earlier and earlier[name_of_test]["items"]["sha256"] != item_file["sha256"]:
        other = f"{name_of_test!r} of other items, {earlier[name_of_test]['items']['file']}"
        raise ValueError(f"{out} has {other}: rename the item file, or name another report with `out`")
    data = data or items.parent
    if data == items.parent and not (is_manifest(data) or is_sharded(data)):
        raise ValueError(f"there is no manifest beside {items}: name the folder of the audio with `data`")
    model = load_pretrained(model_folder, device=extraction.device, trusted_packages=trusted)
    probe_data = open_probe_data(config, model, data, extraction, train_split, trusted_packages=trusted)
    assert isinstance(probe_data, AudioProbeData)
    features = probe_data.default_features if features is None else features
    check_names("features", features, [*probe_data.features, *probe_data.hand_made])
    check_names("baselines", baselines, [*BASELINES, *probe_data.hand_made])
    Range(1).check("the number of `features` and `baselines`", len(features) + len(baselines))
    num_listed = len(listed)
    listed, rows, num_cut = locate(listed, items, probe_data, extraction.skip_bad)
    learnt = [name for name in features if name in probe_data.features]
    hand_made = [name for name in probe_data.hand_made if name in (*features, *baselines)]
    passes: list[tuple[str, Sequence[str], CPC | None]] = [("", [name], None) for name in hand_made]
    if learnt:
        passes.insert(0, ("cpc", learnt, model))
    if "random" in baselines:
        passes.append(("random", probe_data.untrained_names(learnt), build_untrained(config, probe_data, trusted, 0)))
    results: dict[str, Any] = {}
    geometries: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for source, names, network in passes:
        extractor = probe_data.feature_extractor(names, network)
        with add_seconds(seconds, "features"):
            store = FeatureStore.extract(extractor, np.unique(rows), probe_data.name, extraction)
        spans = frames_of_items(listed, rows, store)
        for feature in names:
            name = f"{source}{probe_data.features[feature]}" if source else feature
            with add_seconds(seconds, "triplets"):
                options: dict[str, Any] = {"device": extraction.device, "progress": extraction.progress}
                errors = abx_errors(store.values[feature], spans, listed, protocol, **options)
            records = {mode: None if error is None else asdict(error) for mode, error in errors.items()}
            results[name] = {**records, "num_without_frames": int((spans.lengths == 0).sum())}
            geometries[name] = extractor.geometry(feature)
    record = {
        "items": item_file | {"num_items": len(listed), "num_left_out": num_listed - len(listed), "num_cut": num_cut},
        "data": {"source": str(data), **probe_data.record()},
        "protocol": {
            "distance": "angle between frames, mean along the alignment of two items",
            **asdict(protocol),
            "train_split": train_split,
            "features": geometries,
            **extraction.record(),
        },
        "results": results,
        "seconds": seconds,
    }
    if name_of_test in earlier:
        print(f"{out} had {name_of_test!r} before: replaced", file=sys.stderr)
    report = finite({**report, "abx": {**earlier, name_of_test: record}})
    write_json(report, out)
    return Report(report, [abx_table(record)], partial(_draw, record), out)


def abx_table(record: Mapping[str, Any]) -> Table:
    """Return the table of the record of an item file."""
    settings = ", ".join(f"{option} {record['protocol'][option]}" for option in asdict(ABXProtocol()))
    counts, results = record["items"], record["results"]
    rows, notes = [], []
    for name, result in results.items():
        row = [name]
        for error in (result[mode] for mode in MODES):
            interval = None if error is None else error["interval_percent"]
            row.append("none" if error is None else f"{error['error_percent']:.2f}")
            row.append("" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}")
        rows.append(row)
    for mode, error in ((mode, next(iter(results.values()))[mode]) for mode in MODES):
        if error is not None:
            notes.append(
                f"{mode} speakers: {error['num_triplets']} triplets of {error['num_phone_pairs']} pairs of phones; "
                f"interval over {error['num_speakers']} speakers"
            )
    too_short = {name: result["num_without_frames"] for name, result in results.items()}
    if any(too_short.values()):
        found = ", ".join(f"{name} {count}" for name, count in too_short.items())
        notes.append(f"items left out, because they are too short for a frame: {found}")
    if num := counts.get("num_left_out"):  # older records lack both numbers
        notes.append(f"items left out, because the data lack their recording: {num}")
    if num := counts.get("num_cut"):
        notes.append(f"items that end after their recording, and are cut at its end: {num}")
    header = ["ABX error, %", *(cell for mode in MODES for cell in (mode, "95 % interval"))]
    return Table(header, rows, f"{counts['file']}: {counts['num_items']} items, {settings}", notes)


def _draw(record: Mapping[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    for shift, mode in zip((-0.2, 0.2), MODES, strict=True):
        errors = [(result[mode] or {}).get("error_percent", np.nan) for result in record["results"].values()]
        axes.barh(np.arange(len(errors)) + shift, errors, 0.4, label=f"{mode} speakers")
    axes.set_yticks(range(len(record["results"])), map(figure_text, record["results"]))
    axes.invert_yaxis()
    axes.set_xlabel("ABX error, %")
    axes.legend()


def _name(items: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    """Return the item file's stem with the settings that differ from the default protocol."""
    changes = [f"{name} {protocol[name]}" for name, value in asdict(ABXProtocol()).items() if protocol[name] != value]
    return ", ".join([Path(items["file"]).stem, *changes])


def _check_triplets(items: Items, path: Path, protocol: ABXProtocol) -> None:
    if not any(protocol.cells(items)[1].values()):
        need = "phones of one speaker that stand between the same neighbours; list the items of more speech"
        raise ValueError(f"{path}: its {len(items)} items do not form a triplet of {need}")
