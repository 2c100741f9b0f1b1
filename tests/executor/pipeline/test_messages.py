"""In which order a pipeline's messages begin: receives before the sends of the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining.schedules import _batch_p2p
from torch.testing._internal.distributed.fake_pg import FakeStore

from autosbp.executor.pipeline._torch import _PostedReceive


@pytest.fixture
def group() -> Iterator[Any]:
    """Of two ranks, of which this process is the first and nobody the second."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("num_sends", [0, 1])
def test_a_receive_is_under_way_before_the_sends_that_stand_before_it(
    group: Any, num_sends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    irecv = dist.irecv
    monkeypatch.setattr(dist, "irecv", lambda *args: begun.append(irecv(*args)) or begun[0])
    there = torch.zeros(4)
    received = _PostedReceive(dist.P2POp(irecv, there, 1, group, tag=3))
    assert len(begun) == 1 and received.tensor is there and (received.peer, received.tag) == (1, 3)
    works = _batch_p2p([dist.P2POp(dist.isend, torch.ones(4), 1, group)] * num_sends + [received])
    assert works[-1] is begun[0] and len(works) == num_sends + 1 and len(begun) == 1
