"""A held-out text read to its very end."""

from pathlib import Path

import pytest

from cpc.candidates import ClassTable
from cpc.contexts import LSTM
from cpc.data import Text
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
