"""Messages of many parameters: where gradients go, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autosbp.executor.packing import FlatMessage
from autosbp.executor.runtime import Runtime
from autosbp.graph.ir import Ref
from autosbp.sbp.boxing import step_between
from autosbp.sbp.gathers import NEVER, Gather
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.sbp.placement import B, parse_nd_sbp
from autosbp.sbp.program import PARAMETER, Box

RANKS = 2


class Counted(TorchDispatchMode):
    """Counts what torch runs."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def message(parts: list[torch.Tensor]) -> FlatMessage:
    """Of parameters that two ranks store split on their first dim."""
    mesh = Mesh((Axis("g", RANKS, 0),), (RANKS,))
    split, whole = parse_nd_sbp("S0"), (B,)
    step = step_between(split, whole, mesh)
    assert step is not None
    boxes = tuple(Box(Ref(f"p{at}"), PARAMETER, split, whole, (step,), True) for at in range(len(parts)))
    return FlatMessage(Gather(boxes, True, 0, NEVER, 0, False), parts, Runtime(mesh, 0, torch.device("cpu")))


def spent(count: int) -> float:
    """What torch runs for a gradient in a message of so many."""
    made = message([torch.zeros(1, 3) for _ in range(count)])
    counted = Counted()
    with counted:
        for at in range(count):
            made.add_gradient(at, torch.ones(RANKS, 3))
    return float(counted.count / count)


def test_what_a_gradient_takes_does_not_grow_with_its_message() -> None:
    assert spent(256) <= spent(8)


@pytest.mark.parametrize("times", [1, 2])
def test_gradients_are_where_each_rank_finds_its_parts(times: int) -> None:
    shapes = [(2, 3), (1, 5), (4,)]
    made = message([torch.zeros(shape) for shape in shapes])
    whole = [torch.randn(RANKS * shape[0], *shape[1:]) for shape in shapes]
    for _ in range(times):
        for at, gradient in reversed(list(enumerate(whole))):
            made.add_gradient(at, gradient)
    of_ranks = [torch.cat([part.chunk(RANKS)[rank].reshape(-1) for part in whole]) for rank in range(RANKS)]
    assert made._gradient is not None
    assert torch.equal(made._gradient, times * torch.cat(of_ranks))
