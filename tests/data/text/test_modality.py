"""Lanes: nothing is left out, nothing comes twice, and every batch goes on where the one before it ended."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cpc.candidates import ClassTable
from cpc.contexts import LSTM
from cpc.data import Text
from cpc.data.text.modality import TrainingLanes, held_out_lanes
from cpc.encoders import TokenEncoder
from cpc.evaluation import held_out_bounds
from cpc.losses import ClassTableLoss, EvalProtocol
from cpc.model import CPC
from cpc.predictors import Bilinear


@pytest.mark.parametrize("skip_steps", [1, 2])
def test_an_end_with_nothing_far_enough_ahead_is_passed_over(tmp_path: Path, skip_steps: int) -> None:
    """The last batch of the longer of two lanes holds one token, and nothing that lies two ahead of it."""
    loss = ClassTableLoss(ClassTable(6, 4), "full_softmax", skip_steps=skip_steps)
    model = CPC(TokenEncoder(6, 4), LSTM(dim=6), Bilinear(num_steps=1), loss)
    (tmp_path / "valid.txt").write_text(" ".join("abcde"[i % 5] for i in range(40)))
    (tmp_path / "train.txt").write_text("a b c d e")
    text = Text(source=str(tmp_path), tokens="whitespace", batch_size=2, chunk_tokens=20)
    held_out = text.held_out(text.open(model.encoder, is_training=True), model)
    assert held_out.num_batches == -(-41 // 40)
    (bound,) = held_out_bounds(model, held_out, [EvalProtocol("full_softmax", None)]).values()
    assert bound.num_rows == [41 - skip_steps]


STREAM = np.arange(1000, 1000 + 101, dtype=np.int32)  # 101 tokens, all different


def test_lanes_go_on_without_end_in_the_order_of_the_text() -> None:
    lanes = TrainingLanes(STREAM, num_lanes=4, chunk_tokens=5, num_ahead=3)
    assert lanes.batches_per_epoch == 101 / 20
    read = torch.cat([lanes[index].x for index in range(60)], 1)
    for lane, start in zip(read.tolist(), (0, 25, 50, 75), strict=True):
        assert lane == [1000 + (start + t) % 101 for t in range(300)]
    batch = lanes[7]
    assert batch.labels.shape == (4, 7)
    for k in (1, 2, 3):
        following = (batch.x - 1000 + k) % 101 + 1000
        assert torch.equal(batch.labels[:, k - 1 : k + 4], following)


def test_two_processes_read_what_one_would() -> None:
    whole = TrainingLanes(STREAM, num_lanes=6, chunk_tokens=4)
    halves = [TrainingLanes(STREAM, 3, 4, rank=rank, world_size=2) for rank in range(2)]
    for index in (0, 3, 40):
        for name in ("x", "labels", "sequence_id"):
            both = torch.cat([getattr(half[index], name) for half in halves])
            assert torch.equal(both, getattr(whole[index], name))


def test_too_little_text_for_the_lanes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"101 tokens make 20 lanes of 5, shorter than chunk_tokens=6"):
        TrainingLanes(STREAM, num_lanes=20, chunk_tokens=6)


@pytest.mark.parametrize(("num_lanes", "chunk_tokens"), [(1, 7), (3, 7), (7, 100), (8, 1)])
@pytest.mark.parametrize("world_size", [1, 2])
def test_held_out_text_is_foretold_whole_and_once(num_lanes: int, chunk_tokens: int, world_size: int) -> None:
    foretold: dict[int, list[int]] = {1: [], 2: []}
    for rank in range(world_size):
        of_lanes: dict[int, list[int]] = {}
        for batch in held_out_lanes(STREAM, num_lanes, chunk_tokens, 2, rank, world_size):
            assert batch.x.shape == (num_lanes, chunk_tokens)
            for x, num_valid, lane, labels in zip(
                batch.x, batch.num_valid, batch.sequence_id, batch.labels, strict=True
            ):
                inputs = x[:num_valid].tolist()
                of_lanes.setdefault(int(lane), []).extend(inputs)
                for k in (1, 2):
                    found = labels[k - 1 : k - 1 + int(num_valid)].tolist()
                    expected = [token + k if token + k <= 1100 else -100 for token in inputs]
                    assert found == expected
                    foretold[k] += [token for token in found if token >= 0]
        for tokens in of_lanes.values():
            assert np.array_equal(np.diff(tokens), np.ones(len(tokens) - 1))
    assert sorted(foretold[1]) == STREAM[1:].tolist()
    assert sorted(foretold[2]) == STREAM[2:].tolist()
