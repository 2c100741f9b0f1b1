"""What ``MemoryTrace`` and ``SavedBytes`` count, on tensors whose bytes are plain."""

from __future__ import annotations

import torch

from autosbp.executor.memory_trace import MemoryTrace
from autosbp.executor.trial_metrics import SavedBytes


def test_a_storage_counts_once_whatever_views_there_are_and_until_the_last_is_gone() -> None:
    with MemoryTrace() as trace:
        whole = torch.zeros(256)
        part = whole.view(16, 16)[3]
        assert trace.live == 1024
        del whole
        assert trace.live == 1024
        del part
        assert trace.live == 0
    assert trace.peak == 1024


def test_the_peak_is_of_what_is_alive_together_and_names_its_op() -> None:
    with MemoryTrace() as trace:
        one = torch.zeros(256)
        two = one + 1
        del one
        three = torch.ones(128)
    assert trace.peak == 2048
    assert trace.peak_op == "aten.add.Tensor"
    assert trace.live == two.nbytes + three.nbytes


def test_known_tensors_count_from_the_start_until_they_are_freed() -> None:
    known = [torch.zeros(256)]
    with MemoryTrace(known) as trace:
        assert trace.live == 1024
        known.clear()
        assert trace.live == 0


def test_what_autograd_keeps_lives_until_backward_has_used_it() -> None:
    x = torch.ones(256, requires_grad=True)
    with MemoryTrace([x]) as trace:
        loss = x.exp().sum()
        assert trace.live == 2 * 1024 + 4
        loss.backward()
        del loss
        assert trace.live == 2 * 1024  # the input and its gradient


def test_saved_bytes_are_the_most_at_once_of_what_was_not_there_before() -> None:
    x = torch.ones(256, requires_grad=True)
    with SavedBytes([x]) as saved:
        for _ in range(3):
            (x.exp() * 2).tanh().sum().backward()
    assert saved.bytes == 2 * 1024  # the results of exp and tanh, of one pass


def test_a_tensor_that_two_ops_keep_counts_once() -> None:
    x = torch.ones(256, requires_grad=True)
    with SavedBytes([x]) as saved:
        y = x.exp()
        (y * y).sum().backward()
    assert saved.bytes == 1024
