"""The sampler that gives each rank its samples of a global batch."""

from __future__ import annotations

import pytest

from autosbp.errors import InputError
from autosbp.training import GlobalBatchSampler


def test_ranks_together_see_each_sample_once_an_epoch() -> None:
    samplers = [GlobalBatchSampler(11, 4, rows, seed=7) for rows in ([0, 1], [2, 3])]
    batches = list(zip(*samplers, strict=True))
    assert len(batches) == len(samplers[0]) == 2
    seen = [at for parts in batches for part in parts for at in part]
    assert len(set(seen)) == len(seen) == 8


def test_epochs_differ_and_a_seed_repeats_them() -> None:
    one, two = (GlobalBatchSampler(64, 8, range(8), seed=1) for _ in range(2))
    first, second = list(one), list(one)
    assert first != second
    assert [list(two), list(two)] == [first, second]


def test_a_run_goes_on_where_its_state_was_saved() -> None:
    whole = GlobalBatchSampler(40, 4, [1, 2], seed=3)
    expected = [*whole, *whole]
    sampler = GlobalBatchSampler(40, 4, [1, 2], seed=3)
    batches = iter(sampler)
    done = [next(batches) for _ in range(7)]
    resumed = GlobalBatchSampler(40, 4, [1, 2])
    resumed.load_state_dict(sampler.state_dict())
    assert done + [*resumed, *resumed] == expected


def test_a_dataset_smaller_than_a_global_batch_is_refused() -> None:
    with pytest.raises(InputError, match="at least one global batch of 8"):
        GlobalBatchSampler(7, 8, [0])
