"""Temporal crops, by what they count."""

import torch

from teacher.reward.fitting import crop

SHAPE = (3, 400)


def crops(step_weights: torch.Tensor, shortest: float) -> torch.Tensor:
    return crop(step_weights, SHAPE, shortest, torch.Generator().manual_seed(1))


def test_a_crop_is_one_stretch_of_one_length_in_both_segments() -> None:
    counted = crops(torch.ones(10), 0.5) > 0
    lengths = counted.sum(dim=-1)
    assert counted.shape == (*SHAPE, 2, 10)
    assert (lengths[..., 0] == lengths[..., 1]).all()
    begins = (counted & ~torch.roll(counted, 1, dims=-1)).sum(dim=-1) + counted.all(dim=-1).long()
    wraps = counted[..., 0] & counted[..., -1] & ~counted.all(dim=-1)
    assert (begins == 1).all()
    assert not wraps.any()


def test_all_lengths_and_places_that_are_allowed_come_up_and_no_others() -> None:
    counted = crops(torch.ones(10), 0.5) > 0
    lengths = counted.sum(dim=-1)
    assert set(lengths.flatten().tolist()) == {5, 6, 7, 8, 9, 10}
    starts = counted.float().argmax(dim=-1)
    assert set(starts[lengths == 5].tolist()) == {0, 1, 2, 3, 4, 5}
    assert (starts[..., 0] != starts[..., 1]).any()


def test_a_crop_is_discounted_from_its_own_beginning() -> None:
    weights = 0.5 ** torch.arange(6)
    for segment in crops(weights, 0.5).flatten(0, 2):
        counted = segment[segment > 0]
        assert (counted == weights[: len(counted)]).all()


def test_shares_of_one_step_or_less_give_crops_of_one_step() -> None:
    assert (crops(torch.ones(3), 0.01) > 0).sum(dim=-1).min() == 1
