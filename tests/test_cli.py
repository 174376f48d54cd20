"""The commands, in-process, on a small synthesised corpus: what they print, write and refuse."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cpc.cli import main
from cpc.data.audio.manifest import read_manifest

pytest.importorskip("espeakng_loader", reason="the extra 'speech' is not installed")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "corpus"
    main(["data", "synthesize", str(folder), "--num_speakers", "6", "--num_heldout_speakers", "2", "--minutes", "1.5"])
    return folder


@pytest.fixture(scope="module")
def run_dir(corpus: Path) -> Path:
    folder = corpus.parent / "run"
    options = """--model.encoder=cpc.encoders.AudioEncoder --model.encoder.dim=8 --model.context=cpc.contexts.GRU
        --model.context.init_args.dim=8 --model.predictor=cpc.predictors.Bilinear
        --model.predictor.init_args.num_steps=4 --data.eval_batches=2 --trainer.max_steps=4 --trainer.accelerator=cpu
        --eval_every_steps=4""".split()
    main(["pretrain", *options, f"--data.manifest={corpus}", f"--run_dir={folder}"])
    return folder


def test_index_and_pack(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "manifest.csv"
    main(["data", "index", str(corpus / "audio"), "--out", str(out), "--speaker_level", "0"])
    assert len(read_manifest(out)) == len(read_manifest(corpus))
    main(["data", "pack", str(out), "--sample_rate_hz", "8000", "--cache_dir", str(tmp_path / "packs")])
    assert "at 8000 Hz" in capsys.readouterr().out
    assert list((tmp_path / "packs").glob("*/rows.bin"))


def test_messages_name_options_as_they_are_typed(corpus: Path, tmp_path: Path, refusal: Callable[..., str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.wav").write_text("nothing")
    (tmp_path / "file").touch()
    for arguments, message in (
        (["index", str(corpus)], "set --overwrite to replace it, or name another place with --out"),
        (["index", str(folder), "--valid_share=0", "--test_share=0"], "or set --skip_bad to go on without"),
        (["index", str(folder)], "train, valid, test need at least one each"),
        (["pack", str(corpus), "--cache_dir", str(tmp_path / "file")], "name another place with --cache_dir"),
        (["pack", str(corpus), "--sample_rate_hz", "1"], "error: --sample_rate_hz=1 must be at least 1000"),
    ):
        told = refusal(["data", *arguments])
        assert message in told
        assert "`" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "nowhere", "--data", "nowhere"], "nowhere holds no model"),
        (["data", "index", "nowhere"], "nowhere"),
        (["probe", "--task", "phones", "--out", "a/b", "--data", "birds/may", "--skip_bad", "me/birds"], "me/birds"),
        (["evaluate", "me/birds", "--num_batches", "few"], "argument --num_batches: invalid int value: 'few'"),
    ],
)
def test_mistakes_end_with_a_message(
    arguments: list[str], message: str, refusal: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refusal(arguments)


@pytest.mark.parametrize("option", ["--num_batch", "--neg", "--nothing"])
def test_unknown_and_abbreviated_options_are_refused(option: str, run_dir: Path, refusal: Callable[..., str]) -> None:
    assert "unrecognized arguments" in refusal(["evaluate", str(run_dir), "--data", "data", option, "3"])


def test_items_of_made_speech_are_told_apart(corpus: Path, run_dir: Path, tmp_path: Path) -> None:
    """`sil` is a neighbour and no item; spectra know phones better than chance does."""
    main(["data", "items", str(corpus), "--out", str(tmp_path / "made.item"), "--split", "test"])
    phones = {line.split()[3] for line in (tmp_path / "made.item").read_text().splitlines()[1:]}
    assert len(phones) > 20
    assert "sil" not in phones
    command = ["abx", str(run_dir), "--items", str(tmp_path / "made.item"), "--data", str(corpus)]
    main([*command, "--context", "any", "--max_size_group", "3", "--out", str(tmp_path / "probe.json")])
    report = json.loads((tmp_path / "probe.json").read_text())
    results = report["abx"]["made, context any, max_size_group 3"]["results"]
    assert list(results) == ["cpc", "cpc_z", "mfcc", "random"]
    assert 5 < results["mfcc"]["within"]["error_percent"] < 40
    assert report["bound"][0]["schema"] == 1


def test_a_file_that_the_system_refuses_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str], tmp_path: Path
) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("cpc.native.doctor.main", refuse)
    assert refusal(["doctor"]) == f"cpc: error: {tmp_path}: Permission denied\n"
