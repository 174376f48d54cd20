"""A recording of the small game, made once."""

import pytest

pytest.importorskip("gymnasium")

from small_pong import NAME

from cpc.data.frames.corpus import Recording
from cpc.data.frames.record import record


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("frames") / "pong"
    return record(NAME, folder, num_episodes=12, max_steps=36, valid_share=0.3, test_share=0.2, progress=False)
