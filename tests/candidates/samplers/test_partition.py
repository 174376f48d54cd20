"""Parts of a corpus, against a loop over its words."""

import pytest
import torch
from refusals import refuses

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


def partition(num_classes: int, corpus: list[int], max_words: int, batch: int = 1, **manner: bool) -> Partition:
    pieces = [torch.tensor(corpus[start : start + batch]) for start in range(0, len(corpus), batch)]
    sampler = Partition(num_classes, max_words, **manner)
    sampler.look_ahead(lambda number: pieces[number % len(pieces)], len(pieces))
    return sampler


@pytest.mark.parametrize(("max_words", "batch"), [(1, 1), (7, 1), (7, 4), (30, 8), (45, 8)])
def test_parts_are_cut_as_late_as_words_allow(max_words: int, batch: int, generator: torch.Generator) -> None:
    corpus = ((torch.rand(403, generator=generator) ** 3 * 60).long() % 60).tolist()
    twice = parts_by_loop([*corpus, *[corpus[-1]] * (-len(corpus) % batch), *corpus], max_words, batch)
    sampler, again = partition(60, corpus, max_words, batch), partition(60, corpus, max_words, batch)
    number = 0
    for part in twice[:-1]:
        num_batches = -(-len(part) // batch)
        for at in range(number, number + num_batches):
            sampler.set_step(at)
            assert sampler.words_of_part().tolist() == sorted(set(part))
            assert sampler.part == (number, number + num_batches)
        number += num_batches
    again.set_step(number - 1)  # a resumed run begins there
    assert again.part == sampler.part
    assert torch.equal(again.words_of_part(), sampler.words_of_part())
    again.set_step(0)
    assert again.words_of_part().tolist() == sorted(set(twice[0]))


def test_no_part_is_longer_than_an_epoch() -> None:
    sampler = partition(60, [3, 4, 3, 5], 20)
    sampler.set_step(6)
    assert sampler.part == (4, 8)
    assert sampler.words_of_part().tolist() == [3, 4, 5]


def test_a_part_is_drawn_whole_or_in_part(generator: torch.Generator) -> None:
    sampler = partition(9, [5, 1, 5, 7, 0, 8, 2], 3)
    sampler.set_step(0)
    targets = torch.tensor([5, 1])
    draw = sampler.sample(None, 3, targets, "remove", generator)
    assert draw.ids.tolist() == [1, 5, 7]
    assert (draw.log_count_sampled == torch.inf).tolist() == [[False, True, False], [True, False, False]]
    assert not draw.log_count_targets.any()
    assert set(sampler.sample(None, 2, targets, "keep", generator).ids.tolist()) < {1, 5, 7}
    sampler.set_step(4)
    assert sampler.words_of_part().tolist() == [0, 2, 8]


def test_what_cannot_be_cut_is_named() -> None:
    refuses("max_words`=4 must be at least 1 and at most 3", Partition, 4, 4)
    refuses("has no corpus yet: call look_ahead", Partition(4, 2).set_step, 0)
    refuses("no current part yet", partition(4, [2, 3, 0], 2).words_of_part)
    refuses("num_batches=0 must be at least 1", partition, 4, [], 2)
    refuses("its number of words=3 must be at most 2", partition, 4, [1, 1, 1, 0, 1, 2], 2, 3)


def test_a_target_outside_the_part_is_no_guess() -> None:
    sampler = partition(4, [2, 3, 0], 2)
    sampler.set_step(0)
    refuses(r"class 0 is a target.*call set_step", sampler.sample, None, 2, torch.tensor([0]), "keep")
