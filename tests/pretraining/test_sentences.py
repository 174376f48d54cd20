"""Sentences from a folder of books to probes, by the commands that a user types."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cpc.cli import main

pytestmark = pytest.mark.usefixtures("unchecked_types")  # thousands of products in each fit of a probe

CONFIG = Path(__file__).parents[2] / "configs" / "sentences" / "gutenberg.yaml"
TOPICS = ("sea ship sail wave storm".split(), "tea cup cake spoon bread".split())
SMALLER = """--model.encoder.init_args.num_tokens 10 --model.encoder.init_args.dim 8
    --model.encoder.init_args.embedding_dim 6 --model.context.init_args.dim 8 --data.batch_size 8
    --data.window_sentences 5 --data.passage_sentences 10 --data.eval_batches 2 --trainer.accelerator cpu
    --trainer.logger false --trainer.enable_progress_bar false --model.warmup_steps 1 --model.schedule constant
    --eval_every_steps 3 --checkpoint_every_steps 3"""


def sentence(rng: np.random.Generator, topic: int) -> str:
    return f"The {' '.join(rng.choice(TOPICS[topic], 3).tolist())}."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Books that change their topic every five sentences, and two sets of sentences labelled by their topic."""
    folder, rng = tmp_path_factory.mktemp("sentences"), np.random.default_rng(0)
    (folder / "books").mkdir()
    (folder / "sets").mkdir()
    for book in ("train_1", "train_2", "train_3", "valid_1", "valid_2"):
        lines = [sentence(rng, number // 5 % 2) for number in range(60)]
        (folder / "books" / f"{book}.txt").write_text("\n\n".join(lines))
    for name, num in (("drinks.train.txt", 60), ("drinks.test.txt", 30), ("boats.txt", 50)):
        lines = [f"{'wet' if n % 2 else 'dry'} {sentence(rng, n % 2)}" for n in range(num)]
        (folder / "sets" / name).write_text("\n".join(lines))
    return folder


def pretrain(folder: Path, run: str, *options: str) -> Path:
    command = ["pretrain", "--config", str(CONFIG), "--run_dir", str(folder / run), *SMALLER.split()]
    main([*command, "--data.source", str(folder / "books"), *options])
    return folder / run


@pytest.fixture(scope="module")
def run_dir(folder: Path) -> Path:
    return pretrain(folder, "run", "--trainer.max_steps", "6")


def test_all_five_strategies_are_measured(folder: Path, run_dir: Path) -> None:
    strategies = ["mixed", "mixed_excluding", "sequence_only", "same_speaker", "same_speaker_excluding"]
    command = ["evaluate", str(run_dir), "--data", str(folder / "books"), "--negatives", *strategies]
    main([*command, "--num_batches", "2", "--window_sentences", "4"])
    bounds = json.loads((run_dir / "bound.json").read_text())["bounds"]
    assert [bound["strategy"] for bound in bounds] == strategies
    num_candidates = {bound["strategy"]: bound["num_candidates"][0] for bound in bounds}
    assert num_candidates["mixed"] == 8 * 4
    assert num_candidates["same_speaker"] == 8 * 4  # a batch is of one book
    assert num_candidates["sequence_only"] < num_candidates["same_speaker_excluding"] < 8 * 4


def test_probes_beside_their_baselines(
    folder: Path, run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "probe.json"
    command = ["probe", str(run_dir), "--data", str(folder / "sets"), "--out", str(out)]
    main([*command, "--task", "drinks"])
    printed = capsys.readouterr().out
    assert "drinks: 2 classes, split train (60 sentences) -> test (30)" in printed
    assert "not recorded: whether the model was pretrained on test data" in printed  # it read passages, not sentences
    report = json.loads(out.read_text())
    accuracy = {name: result["accuracy_percent"] for name, result in report["tasks"]["drinks"]["results"].items()}
    learnt = ["cpc", "cpc_c", "cpc_words", "cpc_bow"]
    assert list(accuracy) == [*learnt, "bow", "tfidf", "random", "random_c", "majority"]
    assert accuracy["majority"] == 50
    assert min(accuracy[name] for name in ("cpc_bow", "bow", "tfidf")) > 95
    assert report["protocol"]["features"]["bow"]["dim"] == 2 * 12  # a column for each word of each set
    train, test = ((folder / "sets" / f"drinks.{split}.txt").read_text().split("\n") for split in ("train", "test"))
    num_copies = sum(line in set(train) for line in test)
    assert f"{num_copies} of 30 sentences of the test data are copies of training data" in printed


def test_a_set_without_splits_is_read_by_folds(
    folder: Path, run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "probe.json"
    command = ["probe", str(run_dir), "--data", str(folder / "sets" / "boats.txt"), "--task", "boats", f"--out={out}"]
    main([*command, "--features", "words", "--baselines", "bow"])
    assert "boats: 2 classes, 10 folds over sentence (50 sentences)" in capsys.readouterr().out
    task = json.loads(out.read_text())["tasks"]["boats"]
    assert (task["protocol"]["train_split"], task["protocol"]["num_folds"]) == (None, 10)
    assert len(task["results"]["bow"]["l2"]) == 10
    assert (task["results"]["bow"]["num_train"], task["results"]["bow"]["num_test"]) == (45, 50)
    assert task["results"]["bow"]["accuracy_percent"] > 95
    main([*command, "--features", "words", "--baselines", "--num_folds", "2"])
    assert "2 folds over sentence" in capsys.readouterr().out
    main([*command, "--features", "z_bow", "--baselines", "--num_folds", "2"])  # sparse, and nothing else is
    assert json.loads(out.read_text())["tasks"]["boats"]["results"]["cpc_bow"]["accuracy_percent"] > 90


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "moods"], "has no such set; it has boats, drinks"),
        (["--task", "boats", "--features", "z_expanded"], "'z_expanded'"),
        (["--task", "boats", "--test_split", "test"], "no sentence of the train part (split 'train') has a label"),
        (["--task", "boats", "--data", "nowhere"], "no such file or folder of labelled sentences"),
        (["--task", "boats", "--baselines", "supervised"], "must be among majority, random, neighbours, bow, tfidf"),
    ],
)
def test_what_cannot_be_probed(
    folder: Path, run_dir: Path, refusal: Callable[..., str], options: list[str], message: str
) -> None:
    data = [] if "--data" in options else ["--data", str(folder / "sets")]
    assert message in refusal(["probe", str(run_dir), *data, *options])


def test_embedding_gives_a_vector_per_sentence(folder: Path, run_dir: Path, tmp_path: Path) -> None:
    main(["embed", str(run_dir), str(folder / "books"), "--out", str(tmp_path), "--features", "c"])
    contexts = np.load(tmp_path / "train_1.npy")
    assert contexts.shape == (60, 8)
    assert not np.allclose(contexts[0], contexts[5])


def test_windows_too_short_for_the_predictions_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pretrain(folder, "short", "--data.window_sentences", "2", "--trainer.max_steps", "3")
    assert "data.window_sentences=2, but the model predicts 2 steps ahead" in capsys.readouterr().err
