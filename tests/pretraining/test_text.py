"""`cpc pretrain` and `cpc evaluate` on text: the same command, folder and records as for other modalities."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

from cpc import evaluate, load_pretrained, pretrain
from cpc.cli import main
from cpc.data.store.atomic import read_records
from cpc.data.text.lines import Text
from cpc.data.text.vocabulary import Vocabulary
from cpc.quickstart.recipe import part

NUM_TOKENS = 29


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words that follow each other by a rule with a little noise: mostly the next is twice the last one's number."""
    root = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    for split, num_lines in (("train", 300), ("valid", 15), ("test", 15)):
        lines = []
        for _ in range(num_lines):
            words = [int(rng.integers(1, 29))]
            while len(words) < 8:
                words.append(int(rng.integers(1, 29)) if rng.random() < 0.1 else 2 * words[-1] % 29)
            lines.append(" ".join(f"w{word}" for word in words))
        (root / f"{split}.txt").write_text("\n".join(lines))
    return root


def sampler(name: str, **init_args: Any) -> dict[str, Any]:
    return part(f"candidates.samplers.{name}", **init_args)


def config(folder: Path, run_dir: Path, **change: Any) -> dict[str, Any]:
    classes = {"table": {"num_classes": NUM_TOKENS, "dim": 16}, "objective": "sampled_softmax", "num_sampled": 10}
    trainer = {"max_steps": 40, "accelerator": "cpu", "devices": 1, "gradient_clip_val": 1.0}
    found: dict[str, Any] = {
        "model": {
            "encoder": part("encoders.TokenEncoder", num_tokens=NUM_TOKENS, dim=16, is_tied=True, dropout=0.1),
            "context": part("contexts.LSTM", dim=24),
            "predictor": part("predictors.Bilinear", num_steps=1, dropout=0.1),
            "loss": part("losses.ClassTableLoss", sampler=sampler("Uniform", num_classes=NUM_TOKENS), **classes),
            "learning_rate": 0.01,
        },
        "data": part("data.Text", source=str(folder), tokens="whitespace", chunk_tokens=9, batch_size=6),
        "trainer": trainer | {"logger": False, "enable_progress_bar": False},
        "run_dir": str(run_dir),
        "record_every_steps": 10,
        "eval_every_steps": 20,
        "checkpoint_every_steps": 20,
    }
    for path, value in change.items():
        *parents, last = path.split("__")
        place = found
        for name in parents:
            place = place[name]
        place[last] = value
    return found


@pytest.fixture(scope="module")
def run_dir(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    change = {"trainer__max_steps": 150, "eval_every_steps": 50, "checkpoint_every_steps": 50}
    return pretrain(config(folder, tmp_path_factory.mktemp("runs") / "run", **change))


def test_a_sampler_by_frequency_follows_the_training_text(folder: Path, tmp_path: Path) -> None:
    unigram = sampler("Unigram", counts_of_classes=NUM_TOKENS)
    change = {"model__loss__init_args__sampler": unigram, "trainer__max_steps": 2}
    model = load_pretrained(pretrain(config(folder, tmp_path / "run", **change)))
    vocabulary = Vocabulary(**model.encoder.vocabulary)
    lines = [[*vocabulary.encode(line)] for line in Text(folder).lines("train")]
    counts = torch.bincount(torch.tensor([i for line in lines for i in line]), minlength=NUM_TOKENS).double()
    counts[vocabulary.end] = len(lines)
    expected, found = counts.clamp(min=1) / counts.clamp(min=1).sum(), model.loss_part.sampler
    torch.testing.assert_close(found.probabilities(), expected)


def tokens_of(model: Any, folder: Path, split: str) -> list[int]:
    vocabulary = Vocabulary(**model.encoder.vocabulary)
    return [vocabulary.end, *(i for line in Text(folder).lines(split) for i in vocabulary.encode(line))]


def cross_entropy(model: Any, stream: list[int], k: int = 1) -> list[float]:
    """-log p of every token, each given all that precede it, read one by one."""
    found, state = [], None
    with torch.no_grad():
        for place in range(len(stream) - k):
            output = model(torch.tensor([[stream[place]]]), state)
            state, query = output.state, output.queries[""][k - 1, 0, 0]
            scores = (model.loss_part.table.weight @ query).double()
            found.append(float(torch.logsumexp(scores, 0) - scores[stream[place + k]]))
    return found


def test_perplexity_is_that_of_reading_token_by_token(folder: Path, run_dir: Path, tmp_path: Path) -> None:
    model = load_pretrained(run_dir)
    stream = tokens_of(model, folder, "test")
    expected = cross_entropy(model, stream)
    counts = np.bincount(stream[1:])
    shares = counts[counts > 0] / counts.sum()
    entropy = -float((shares * np.log(shares)).sum())
    reports = [
        evaluate(run_dir, folder, split="test", batch_size=1, chunk_tokens=chunk, out=tmp_path / "bound.json")
        for chunk in (50, 7)
    ]
    for report in reports:
        bound = report["bounds"][0]
        assert bound["num_rows"] == [len(stream) - 1]
        assert bound["loss_nats"][0] == pytest.approx(np.mean(expected), rel=1e-5)
        assert bound["perplexity"][0] == pytest.approx(math.exp(np.mean(expected)), rel=1e-4)
        assert bound["mi_ceiling_nats"][0] == pytest.approx(entropy)
        assert bound["mi_bound_nats"][0] == pytest.approx(entropy - np.mean(expected), abs=1e-5)
    # the rule tells seven of nine tokens nine times of ten: the model has found it
    assert reports[0]["bounds"][0]["mi_bound_nats"][0] > 1
    assert json.loads((tmp_path / "bound.json").read_text())["training_strategy"] == "sampled_softmax"


OF_PARTS = {
    "model__loss__init_args__sampler": sampler("Partition", num_classes=NUM_TOKENS, max_words=20),
    "data__init_args__batch_size": 6,
    "data__init_args__chunk_tokens": 2,  # no batch with more different words than that
}
OF_QUERY = {
    "model__loss__init_args__sampler": sampler("TwoLevel", num_classes=NUM_TOKENS, dim=16),
    "model__loss__init_args__refresh_every": 10,
    "model__loss__init_args__updates_between": True,
}


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("change", [{}, OF_PARTS, OF_QUERY], ids=["uniform", "partition", "two-level"])
def test_a_resumed_run_is_the_uninterrupted_one(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    # 300 lines of 9 tokens in 12 lanes of 9 are an epoch of 25 steps: 12 and 32 lie in the middle of the first two
    change = {"data__init_args__batch_size": 12} | change
    whole = pretrain(config(folder, tmp_path / "whole", trainer__max_steps=35, **change))
    broken = tmp_path / "broken"
    for max_steps in (12, 32, 35):
        ckpt_path = "last" if broken.exists() else None
        pretrain(config(folder, broken, trainer__max_steps=max_steps, ckpt_path=ckpt_path, **change))
    first, second = (torch.load(run / "checkpoints" / "last.ckpt")["state_dict"] for run in (whole, broken))
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key
    # a run that stops writes its record then: what is compared is the sum over all of them
    totals = []
    for run in (whole, broken):
        records = [record for record in read_records(run / "bound.jsonl") if record["split"] == "train"]
        totals.append([sum(r[name][0] * r["num_rows"][0] for r in records) for name in ("loss_nats", "accuracy")])
        assert sum(record["num_batches"] for record in records) == 35
    assert totals[0] == pytest.approx(totals[1], rel=1e-9)


def test_a_partition_too_narrow_for_a_batch_is_refused_before_training(folder: Path, tmp_path: Path) -> None:
    narrow = sampler("Partition", num_classes=NUM_TOKENS, max_words=9)
    with pytest.raises(ValueError, match=r"its number of words=\d+ must be at most 9"):
        pretrain(config(folder, tmp_path / "run", model__loss__init_args__sampler=narrow))


def test_another_text_is_no_continuation(folder: Path, tmp_path: Path) -> None:
    pretrain(config(folder, tmp_path / "run", trainer__max_steps=2))
    other = tmp_path / "other"
    other.mkdir()
    for split in ("train", "valid"):
        (other / f"{split}.txt").write_text((folder / f"{split}.txt").read_text().replace("w1 ", "w2 "))
    with pytest.raises(ValueError, match=r"cannot be resumed, because its batches would change.*text and vocabulary"):
        pretrain(config(other, tmp_path / "run", trainer__max_steps=4, ckpt_path="last"))


def test_several_steps_are_told_apart(folder: Path, tmp_path: Path) -> None:
    change = {"model__predictor__init_args__num_steps": 3, "trainer__max_steps": 20}
    run = pretrain(config(folder, tmp_path / "run", **change))
    model = load_pretrained(run)
    stream = tokens_of(model, folder, "valid")
    report = evaluate(run, folder, batch_size=1, out=tmp_path / "bound.json")
    expected = [np.mean(cross_entropy(model, stream, k)) for k in (1, 2, 3)]
    assert report["bounds"][0]["loss_nats"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("objective", ["full_softmax", "negative_sampling"])
def test_every_objective_trains(folder: Path, tmp_path: Path, objective: str) -> None:
    change: dict[str, Any] = {"model__loss__init_args__objective": objective}
    if objective.startswith("full"):
        change |= {"model__loss__init_args__sampler": None, "model__loss__init_args__num_sampled": None}
    run = pretrain(config(folder, tmp_path / "run", trainer__max_steps=40, **change))
    losses = [r["loss_nats"][0] for r in read_records(run / "bound.jsonl") if r["split"] == "train"]
    assert losses[-1] < losses[0]
    if objective == "full_softmax":
        first = read_records(run / "bound.jsonl")[0]
        assert first["mi_bound_nats"][0] == pytest.approx(first["mi_ceiling_nats"][0] - first["loss_nats"][0])
        assert first["mi_ceiling_nats"][0] < math.log(NUM_TOKENS)


def test_refusals(folder: Path, tmp_path: Path) -> None:
    def refused(match: str, **change: Any) -> None:
        refuses(match, pretrain, config(folder, tmp_path / "refused", **change))

    refused("for data of text it must predict classes, as ClassTableLoss does", model__loss=None)
    refused(
        "the class table is torch.float32 of the shape .31, ",
        model__loss__init_args__table__num_classes=31,
        model__loss__init_args__sampler__init_args__num_classes=31,
    )
    refused("model.num_chunks=2 does not work with text", model__num_chunks=2)
    refused("model.extra_strategies of .* is not one of", model__extra_strategies=["sequence_only"])
    refused(
        "optimiser='adam' does not support a table with has_sparse_gradients=True",
        model__loss__init_args__table__has_sparse_gradients=True,
    )
    lanes = "split 'train': .* tokens make 10000 lanes .* lower `batch_size` or `chunk_tokens`"
    refused(lanes, data__init_args__batch_size=10_000)
    refused("text have no task .speaker. for an online probe", trainer__callbacks=[part("probes.OnlineProbe")])
    transformer = part("contexts.CausalTransformer", dim=16, num_heads=2)
    refused(r"its state would grow with every chunk of text: set `context.window`", model__context=transformer)
    transformer = part("predictors.TransformerPredictor", num_steps=1, num_heads=2)
    refused("TransformerPredictor, which reads past contexts, but batches of text", model__predictor=transformer)
    assert not (tmp_path / "refused").exists()


def test_evaluate_says_what_it_does_not_know(
    run_dir: Path, folder: Path, capsys: pytest.CaptureFixture[str], refusal: Callable[..., str]
) -> None:
    for name, value in (("negatives", ["mixed"]), ("seed", 0), ("bank_latents", 5)):
        refuses(rf"`{name}`: .* model of text, which is always read whole", evaluate, run_dir, folder, **{name: value})
    words = ["evaluate", str(run_dir), "--data", str(folder)]
    assert "whose data have no such option" in refusal([*words, "--image_size", "3"])
    main([*words, "--split", "test", "--batch_size", "4"])
    printed = capsys.readouterr().out
    assert "perplexity" in printed
    assert "token_entropy_nats" in printed
    assert "a model of text" in refusal(["probe", str(run_dir), "--data", str(folder), "--task", "speaker"])
