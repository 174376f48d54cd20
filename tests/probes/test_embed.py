"""Features on disk: one file each, found again by name, with where their frames lie in time."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refuses
from safetensors.numpy import load_file

import cpc
from cpc.data import Audio
from cpc.data.audio.pack import read_audio, read_blocks
from cpc.data.features import Features
from cpc.probes.embed import embed


def test_folders_keep_their_layout(model: cpc.CPC, model_folder: Path, audio_folder: Path, tmp_path: Path) -> None:
    written = embed(model_folder, [audio_folder], tmp_path / "out", progress=False)
    assert len(written) == 12
    assert tmp_path / "out" / "ann" / "2.npy" in written
    wave = read_audio(audio_folder / "ann" / "2.wav", 16000)  # 44.1 kHz, stereo
    np.testing.assert_allclose(np.load(tmp_path / "out" / "ann" / "2.npy"), Features("c", model)(wave), atol=1e-5)
    sidecar = json.loads((tmp_path / "out" / "ann" / "2.json").read_text())
    config = json.loads((model_folder / "model" / "config.json").read_text())
    assert sidecar["model_sha256"] == config["sha256"]
    assert (sidecar["hop_samples"], sidecar["first_centre_samples"]) == (160, model.encoder.first_centre_samples)
    assert (sidecar["sample_rate_hz"], sidecar["dim"], sidecar["features"]) == (16000, 10, "c")
    assert {path.suffix for path in (tmp_path / "out").rglob("*") if path.is_file()} == {".npy", ".json"}


def test_single_files_and_safetensors(model_folder: Path, audio_folder: Path, tmp_path: Path) -> None:
    files = [audio_folder / "bob" / "0.flac", audio_folder / "eve" / "3.mp3"]
    embed(model_folder, files, tmp_path / "out", "z", "safetensors", progress=False)
    names = "0.json 0.safetensors 3.json 3.safetensors"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names.split()
    assert load_file(tmp_path / "out" / "3.safetensors")["features"].shape[1] == 12


def test_no_infinite_feature_is_written(model: cpc.CPC, model_folder: Path, audio_folder: Path, tmp_path: Path) -> None:
    """Of weights that are finite, each by itself."""
    with torch.no_grad():
        for layer in model.encoder.layers:
            layer.weight.fill_(3e38)
    cpc.save_pretrained(model, model_folder / "model", provenance={"data": Audio(manifest="unknown").saved_settings})
    files = [audio_folder / "bob" / "0.flac"]
    refuses(r"bob/0\.flac: .* are not finite", embed, model_folder, files, tmp_path / "out", "z", progress=False)
    with pytest.warns(UserWarning, match="left out 1 of 1 files"):
        assert embed(model_folder, files, tmp_path / "out", "z", skip_bad=True, progress=False) == []
    assert not (tmp_path / "out").exists()


def test_two_inputs_with_one_output_are_refused_before_anything_is_written(
    model_folder: Path, audio_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"ann/0\.flac and .*bob/0\.flac would both be written to .*0\.npy"):
        embed(model_folder, [audio_folder / "ann" / "0.flac", audio_folder / "bob"], tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    # Each advice works.
    assert len(embed(model_folder, [audio_folder], tmp_path / "out", progress=False)) == 12
    (tmp_path / "same").mkdir()
    shutil.copy(audio_folder / "bob" / "0.flac", tmp_path / "same" / "a.flac")
    shutil.copy(audio_folder / "eve" / "3.mp3", tmp_path / "same" / "a.mp3")
    refuses("leave out or rename one", embed, model_folder, [tmp_path / "same"], tmp_path / "new", progress=False)
    twice = [tmp_path / "same/a.mp3", tmp_path / "same/../same/a.mp3"]
    refuses(r"a\.mp3 and .*a\.mp3 would both", embed, model_folder, twice, tmp_path / "new", progress=False)
    for suffix in ("flac", "mp3"):
        embed(model_folder, [tmp_path / "same" / f"a.{suffix}"], tmp_path / suffix, progress=False)


@pytest.mark.parametrize("error", [EOFError("no data left"), OSError(5, "I/O")])
def test_whatever_a_reader_raises_is_left_out_when_asked(
    error: Exception, model_folder: Path, audio_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, sample_rate_hz: int) -> Iterator[np.ndarray]:
        if path.name == "3.mp3":
            raise error
        return read_blocks(path, sample_rate_hz)

    monkeypatch.setattr("cpc.data.audio.probe_data.read_blocks", broken)
    with pytest.warns(UserWarning, match=r"left out 1 of 12 files:\n.*3\.mp3: its features cannot be"):
        written = embed(model_folder, [audio_folder], tmp_path / "out", skip_bad=True, progress=False)
    assert len(written) == 11
    refuses(r"cannot be computed .*`skip_bad`", embed, model_folder, [audio_folder], tmp_path / "again", progress=False)


def test_outputs_there_are_replaced_only_when_asked(model_folder: Path, audio_folder: Path, tmp_path: Path) -> None:
    file, out = audio_folder / "ann" / "0.flac", tmp_path / "out"
    embed(model_folder, [file], out, progress=False)
    values = np.load(out / "0.npy")
    np.save(out / "0.npy", np.zeros(3))
    refuses("1 of 1 outputs exist already", embed, model_folder, [file], out, progress=False)
    assert np.load(out / "0.npy").shape == (3,)
    embed(model_folder, [file], out, overwrite=True, progress=False)
    np.testing.assert_array_equal(np.load(out / "0.npy"), values)
    (out / "0.npy").unlink()  # half an output is one that exists
    refuses("1 of 1 outputs exist already", embed, model_folder, [file], out, progress=False)


def test_what_is_not_there(model_folder: Path, tmp_path: Path) -> None:
    refuses("no file or folder", embed, model_folder, [tmp_path / "absent"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    refuses("no audio below", embed, model_folder, [tmp_path / "empty"], tmp_path / "out")
