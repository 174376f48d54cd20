"""Models to the Hub and back, over a server on this machine; the Hub's client runs in processes of its own."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import Hub, serve_hub
from refusals import refuses

import cpc
from cpc import cli
from cpc.checkpoint import place_of_results, read_config
from cpc.interop.hub import is_hub_name
from cpc.interop.share import share
from cpc.probes.abx.errors import ABXProtocol

huggingface_hub: Any = pytest.importorskip("huggingface_hub.errors") and pytest.importorskip("huggingface_hub")

DATA = {"class_path": "cpc.data.Audio", "init_args": {"manifest": "/data/somebody/birds", "window_samples": 20480}}
RECORD = {"steps": [1, 2], "directions": ["", ""], "mi_bound_nats": [1.25, 0.75], "mi_ceiling_nats": [5.0, 5.0]}
RECORD |= {"strategy": "mixed_excluding", "split": "valid", "standard_error_nats": [0.1, 0.1], "reading": "lower bound"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = cpc.CPC(cpc.encoders.AudioEncoder(dim=8), cpc.contexts.GRU(dim=8), cpc.predictors.Bilinear(num_steps=2))
    folder = tmp_path_factory.mktemp("runs") / "mine"
    cpc.save_pretrained(model, folder / "model", provenance={"step": 7, "data": DATA, "held_out": [RECORD]})
    return folder


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serve_hub() as hub:
        yield hub


@pytest.mark.slow
def test_a_model_goes_to_the_hub_and_comes_back(run: Path, hub: Hub, tmp_path: Path) -> None:
    total = "float(sum(p.double().abs().sum() for p in {}.state_dict().values()))"
    there, nowhere, odd, *back = hub.call(
        [
            f"share({str(run)!r}, license='mit', to='me/birds')",
            f"share({str(run)!r}, license='mit', to='not a name')",
            f"share({str(run)!r}, license='my own', to='me/birds')",
            total.format("cpc.load_pretrained('me/birds')"),
            total.format("cpc.load_pretrained('me/birds@main')"),
            total.format(f"cpc.load_pretrained('me/birds', revision={hub.commit('me/birds', 1)!r})"),
            "cpc.load_pretrained('me/birds', revision='v9')",
            "cpc.load_pretrained('me/birds@main', revision='v9')",
            "cpc.load_pretrained('me/nothing')",
            f"cpc.load_pretrained('me/birds', revision={hub.commit('me/birds', 0)!r})",
        ],
        tmp_path,
    )
    assert there == f"{hub.address}/me/birds/commit/{hub.commit('me/birds', 1)}"
    assert nowhere.startswith("ValueError: `to`='not a name'")
    assert odd.startswith("ValueError: `to`='me/birds': the Hub rejects the name, or the card")
    assert "my own" in odd
    model = cpc.load_pretrained(run)
    expected = str(float(sum(p.double().abs().sum() for p in model.state_dict().values())))
    assert back[:3] == [expected] * 3
    assert back[3].endswith("me/birds, revision v9: it has no such revision: name a branch, tag or commit")
    assert "leave one out" in back[4]
    no_folder = "Error: there is no folder me/{0}; if a model of the Hub is meant: me/{0}"
    assert back[5].startswith(f"Value{no_folder.format('nothing')}: the Hub has no")
    assert back[6].endswith("holds no model of cpc: it lacks config.json and model.safetensors")
    # Two files, neither of which is code, whatever else lies there.
    commit = hub.repositories["me/birds"][-1]
    assert sorted(commit) == ["README.md", "config.json", "model.safetensors"]
    fetched = [each for each in hub.requests if each.startswith("GET") and "resolve" in each]
    assert {each.rpartition("/")[2] for each in fetched} == {"config.json", "model.safetensors"}
    # Without a network: from the cache, or a clear end.
    hub.requests.clear()
    offline = [total.format("cpc.load_pretrained('me/birds')"), "cpc.load_pretrained('me/others')"]
    found = hub.call(offline, tmp_path, HF_HUB_OFFLINE="1")
    assert found[0] == expected
    assert found[1].startswith(f"Connection{no_folder.format('others')} is not in")
    assert hub.requests == []


@pytest.mark.slow
def test_what_is_damaged_or_refused_on_the_way_is_named(run: Path, hub: Hub, tmp_path: Path) -> None:
    files = {name: (run / "model" / name).read_bytes() for name in ("config.json", "model.safetensors")}
    config = json.loads(files["config.json"])
    config["architecture"]["init_args"]["encoder"]["class_path"] = "os.system"
    hub.repositories["bad/cut"] = [files | {"model.safetensors": files["model.safetensors"][:-100]}]
    hub.repositories["bad/code"] = [files | {"config.json": json.dumps(config).encode()}]
    hub.repositories["bad/broken"] = [files]
    hub.breaks_off = "model.safetensors"
    (broken,) = hub.call(["cpc.load_pretrained('bad/broken')"], tmp_path)
    hub.breaks_off = ""
    cut, code = hub.call(["cpc.load_pretrained('bad/cut')", "cpc.load_pretrained('bad/code')"], tmp_path)
    assert "ConnectionError: there is no folder bad/broken;" in broken
    assert "model.safetensors is not the file that config.json describes: copy both of one export" in cut
    assert "names the class os.system, outside the trusted packages" in code


def test_the_card_says_what_is_known_but_no_place(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out"
    cli.main(["share", str(run), "--license", "cc-by-4.0", "--out", str(out), "--data_name", "Birds of May"])
    assert capsys.readouterr().out == f"{out} written\n"
    card = (out / "README.md").read_text()
    for words in ("license: cc-by-4.0", "Birds of May", "window_samples: 20480", "step 7", "AudioEncoder", "1.25"):
        assert words in card
    assert not any("somebody" in path.read_text(errors="replace") for path in out.iterdir())
    share(run, license="cc-by-4.0", out=tmp_path / "unnamed")
    assert "\nbirds\n" in (tmp_path / "unnamed" / "README.md").read_text()
    again = cpc.load_pretrained(out)
    for name, values in cpc.load_pretrained(run).state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], values, rtol=0, atol=0)
    assert read_config(out)["provenance"]["held_out"] == [RECORD]
    assert card.index("pip install 'contrastive-predictive-coding[hub]'") < card.index("import cpc")
    refuses("already exists", share, run, license="mit", out=out)
    refuses("name a target", share, run, license="mit")


def test_no_spelling_of_a_path_is_shared(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "manifest": "cifar10:/corpora/alice/d2",
        "other": {"source": "birds:alice/more", "num_batches": 3},
        "alignments": r"C:\Users\alice\phones.csv",
        "recordings": [r"\\alice\noise", "~alice/wind", "sea:~alice/waves", "s3://alice/rain"],
        "sampler": "uniform",
    }
    provenance = {
        "init_from": "alice/runs/base",
        "data": {"class_path": "cpc.data.Audio", "init_args": options},
        "cpc_audio": {"pathDB": "../alice/LibriSpeech", "arMode": "GRU", "hiddenGar": 256},
    }
    cpc.save_pretrained(cpc.load_pretrained(run), tmp_path / "birds", provenance=provenance)
    monkeypatch.chdir(tmp_path / "birds")
    out = share(".", license="mit", out=tmp_path / "out")
    assert not any("alice" in path.read_text(errors="replace") for path in out.iterdir())
    shared = read_config(out)["provenance"]
    assert shared["init_from"] == "base"
    assert shared["data"]["init_args"] == {
        "manifest": "cifar10",
        "other": {"source": "birds", "num_batches": 3},
        "alignments": "phones.csv",
        "recordings": ["noise", "wind", "sea", "rain"],
        "sampler": "uniform",
    }
    card = (out / "README.md").read_text()
    assert "\n# birds\n" in card
    assert "CPC_audio, trained with\n\n```\npathDB: LibriSpeech\narMode: GRU\nhiddenGar: 256\n```" in card
    del options["manifest"]
    cpc.save_pretrained(cpc.load_pretrained(run), tmp_path / "nameless", provenance=provenance)
    card = (share(tmp_path / "nameless", license="mit", out=tmp_path / "again") / "README.md").read_text()
    assert "## Data\n\nNot recorded." in card


def test_the_card_has_what_was_measured_with_these_weights(run: Path, tmp_path: Path) -> None:
    error = {"error_percent": 12.5, "interval_percent": [10.0, 15.0], "num_triplets": 8}
    error |= {"num_phone_pairs": 2, "num_speakers": 2}
    results = {"cpc": {"within": error, "across": None, "num_without_frames": 0}}
    record = {"items": {"file": "/corpora/somebody/dev.item", "num_items": 16}, "results": results}
    abx = {"dev": record | {"protocol": asdict(ABXProtocol(context="any"))}}
    report = {"model": {"sha256": read_config(run)["sha256"]}, "tasks": {}, "abx": abx}
    for sha256, words in ((report["model"]["sha256"], "12.50"), ("0" * 64, "None were measured with these weights")):
        for place in (run, run / "model"):  # `cpc abx` of the run writes beside the model, of the model into it
            (place / "probe.json").write_text(json.dumps(report | {"model": {"sha256": sha256}}))
            for shared in (run, run / "model"):
                out = share(shared, license="mit", out=tmp_path / sha256 / place.name / shared.name)
                assert words in (out / "README.md").read_text()
                assert not any("somebody" in path.read_text(errors="replace") for path in out.iterdir())
            (place / "probe.json").unlink()
    card = (tmp_path / report["model"]["sha256"] / "mine" / "model" / "README.md").read_text()
    assert "dev.item: 16 items, context any, max_size_group 10, max_x_across 5, seed 0\n" in card


@pytest.mark.parametrize(
    ("is_offline", "kind", "reason"),
    [
        (True, "LocalEntryNotFoundError", "is not .* cache, and the Hub is not used because of HF_HUB_OFFLINE=1"),
        (
            False,
            "LocalEntryNotFoundError",
            "is not .* cache, .* cannot be reached, OSError: no route; check the network",
        ),
        (False, "OSError", "cannot be fetched: OSError: check your connection"),
    ],
)
def test_a_hub_not_reached_is_not_named_offline(
    monkeypatch: pytest.MonkeyPatch, is_offline: bool, kind: str, reason: str
) -> None:
    def download(*_: Any, **__: Any) -> None:
        raise getattr(huggingface_hub.errors, kind, OSError)("check your connection") from OSError("no route\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", is_offline)
    with pytest.raises(ConnectionError, match=f"^there is no folder me/flowers; if .* meant: me/flowers {reason}$"):
        cpc.load_pretrained("me/flowers")


def test_a_folder_comes_before_a_name(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("me/birds")
    assert is_hub_name("me/birds@v1.0")
    others = ["birds", "a/b/c", "/me/birds", "../birds", "me/..", "me/birds@", Path("/me/birds")]
    assert not any(map(is_hub_name, others))
    assert is_hub_name(Path("me/birds"))
    for name in ("me/bi--rds", "me/birds.git", f"me/{'b' * 97}"):
        refuses(rf"no folder {name}; if .*: {name}: it is not a name of the Hub", cpc.load_pretrained, name)
    (tmp_path / "me").mkdir()
    assert not is_hub_name("me/birds")
    words = r"no folder me/birds, .* not looked for on the Hub, since me is a local folder"
    refuses(words, cpc.load_pretrained, "me/birds")
    (tmp_path / "me" / "birds").mkdir()
    refuses(r"me/birds holds no model", cpc.load_pretrained, "me/birds")
    refuses(r"revision='v1' is only for models on the Hub, and .* is none", cpc.load_pretrained, run, revision="v1")
    refuses(r"is a model of the Hub.*name a file with `out`", place_of_results, "you/birds", "bound.json", None)
