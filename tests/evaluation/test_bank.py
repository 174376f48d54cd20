"""The bound against a bank: a loop over rows and stored latents, and what `cpc evaluate --bank` writes."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from opened import open_audio
from oracles import contrast_rows
from refusals import refuses

import cpc
from cpc.candidates import LatentBank
from cpc.checkpoint import save_pretrained
from cpc.cli import main
from cpc.data import Audio, index_folder
from cpc.evaluation.bank import bank_contrast, bank_of_split
from cpc.losses import Contrastive, ContrastiveOutput
from cpc.predictors import Output

DATA = Audio(manifest="not there any more", window_samples=1600, batch_size=4)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, write_audio: Callable[..., Path]) -> Path:
    """7 files of 2 windows to measure on, 3 of them with padding, and 5 of 2 windows beside them."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(12):
        split, seconds = ("valid" if number < 7 else "train"), (0.08 if number < 3 else 0.2)
        write_audio(folder / split / f"{number}.wav", seconds=seconds, seed=number)
    index_folder(folder, split_level=0, progress=False)
    return folder


def test_a_bank_of_the_batch_itself_is_mixed_excluding() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, z = torch.randn(3, 5, 6, 4, generator=generator), torch.randn(5, 6, 4, generator=generator)
    num_latents, ids = torch.tensor([6, 2, 5, 4, 3]), torch.tensor([0, 1, 1, 2, 3])
    is_valid = torch.arange(6) < num_latents[:, None]
    bank = LatentBank(z[is_valid], ids.repeat_interleave(num_latents))

    def contrasted(num_latents: torch.Tensor | None) -> ContrastiveOutput:
        output = Output(z, z, {"": queries}, None)
        return bank_contrast(output, Contrastive().sequences(output, num_latents, ids), bank)

    found = contrasted(num_latents)
    reference = contrast_rows(queries, z, "mixed_excluding", num_latents.tolist(), ids.tolist(), [0] * 5)
    for k, rows in enumerate(reference):
        for b in range(5):
            mine = [row for row in rows if row[0] == b]
            assert found.num_rows[k, b] == len(mine)
            assert found.loss_nats[k, b].item() == pytest.approx(sum(r[1] for r in mine), rel=1e-4, abs=1e-5)
            assert found.num_candidates[k, b] == sum(r[2] for r in mine)
            assert found.log_num_candidates[k, b].item() == pytest.approx(sum(math.log(r[2]) for r in mine), rel=1e-5)
            assert found.accuracy[k, b].item() == pytest.approx(sum(r[3] for r in mine))
    refuses("num_latents=7 must count latents, from 0 to 6", contrasted, num_latents + 1)
    for one, other in zip(contrasted(torch.full((5,), 6)), contrasted(None), strict=True):
        assert torch.equal(one, other)  # images have no padding


def test_a_bank_holds_the_latents_of_one_pass(model: cpc.CPC, manifest: Path) -> None:
    corpus = open_audio(manifest, model.encoder, 1600)
    bank = bank_of_split(model, corpus, "valid", 10**6, batch_size=1, seed=0)
    lengths = {corpus.table.paths[row]: 0 for row in corpus.rows("valid")}
    for row, count in Counter(bank.sequence_id.tolist()).items():
        lengths[corpus.table.paths[row]] = count
    short = int(model.encoder.num_latents(torch.tensor(1280)))  # 0.08 s: one window, the rest of it padding
    assert sorted(lengths.values()) == [short] * 3 + [20] * 4
    assert len(bank_of_split(model, corpus, "valid", 33, batch_size=4, seed=0)) == 33


def test_evaluate_measures_against_a_split_all_at_once(
    model: cpc.CPC, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Callable[..., str]
) -> None:
    save_pretrained(model, tmp_path, provenance={"step": 7, "data": DATA.saved_settings})
    main(["evaluate", str(tmp_path), "--data", str(manifest), "--num_batches=2", "--bank=train"])
    bounds = json.loads((tmp_path / "bound.json").read_text())["bounds"]
    assert [bound["strategy"] for bound in bounds] == ["mixed", "mixed_excluding", "bank"]
    against_bank = bounds[-1]
    assert against_bank["bank"] == "train"
    assert against_bank["bank_latents"] == 80  # 2 whole batches of the 10 windows of 10 latents
    assert against_bank["num_candidates"] == [81, 81]  # no file is its own negative, nor in this bank
    assert against_bank["num_rows"] == bounds[1]["num_rows"]
    assert against_bank["reading"].startswith("lower bound on I(z; c), if latents mix fast")
    assert "log N - L in nats, bank on 'valid'" in capsys.readouterr().out
    main(["evaluate", str(tmp_path), "--data", str(manifest), "--num_batches=2", "--bank=valid", "--bank_latents=50"])
    own = json.loads((tmp_path / "bound.json").read_text())["bounds"][-1]
    assert own["bank_latents"] == 50
    assert all(31 <= n < 51 for n in own["num_candidates"])  # less those of the row's own file, 20 at most
    words = ["evaluate", str(tmp_path), "--data", str(manifest), "--bank_latents=50"]
    assert "--bank_latents: without --bank" in refusal(words)
