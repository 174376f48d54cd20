"""Parts of a corpus, against a loop over its words."""

import pytest
import torch

from cpc.candidates.samplers import Partition


def parts_by_loop(corpus: list[int], max_words: int, batch: int) -> list[list[int]]:
    parts: list[list[int]] = []
    for start in range(0, len(corpus), batch):
        piece = corpus[start : start + batch]
        if parts and len(set(parts[-1]) | set(piece)) <= max_words:
            parts[-1] += piece
        else:
            parts.append(piece)
    return parts


@pytest.mark.parametrize(("max_words", "batch"), [(1, 1), (7, 1), (7, 4), (30, 8), (500, 8)])
def test_parts_are_cut_as_late_as_words_allow(max_words: int, batch: int, generator: torch.Generator) -> None:
    corpus = (torch.rand(1003, generator=generator) ** 3 * 60).long()
    sampler = Partition(60, corpus, max_words, batch)
    expected = parts_by_loop(corpus.tolist(), max_words, batch)
    assert sampler.num_parts == len(expected)
    position = 0
    for number, part in enumerate(expected):
        for where in (position, position + len(part) - 1):
            sampler.move_to(where)
            assert int(sampler.part) == number
        assert sampler.words_of_part().tolist() == sorted(set(part))
        position += len(part)


def test_a_part_is_drawn_whole_or_in_part(generator: torch.Generator) -> None:
    sampler = Partition(9, torch.tensor([5, 1, 5, 7, 0, 8, 2]), 3)
    targets = torch.tensor([5, 1])
    draw = sampler.sample(None, 3, targets, "remove", generator)
    assert draw.ids.tolist() == [1, 5, 7]
    assert (draw.log_count_sampled == torch.inf).tolist() == [[False, True, False], [True, False, False]]
    assert not draw.log_count_targets.any()
    assert set(sampler.sample(None, 2, targets, "keep", generator).ids.tolist()) < {1, 5, 7}

    resumed = Partition(9, torch.tensor([5, 1, 5, 7, 0, 8, 2]), 3)
    sampler.move_to(4)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.words_of_part().tolist() == [0, 2, 8]
