"""Messages of many parameters: where gradients go, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autosbp.executor.flat_buffers import FlatMessage
from autosbp.executor.runtime import Runtime
from autosbp.graph.ir import Ref
from autosbp.program.parameter_gathers import NEVER, Gather
from autosbp.program.program import PARAMETER_GROUP, Boxing
from autosbp.sbp.boxing import step_between
from autosbp.sbp.layout import B, parse_nd_sbp
from autosbp.sbp.mesh import Axis, Mesh

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
    boxes = tuple(Boxing(Ref(f"p{at}"), PARAMETER_GROUP, split, whole, (step,), True) for at in range(len(parts)))
    return FlatMessage(Gather(boxes, True, 0, NEVER, 0, False), parts, Runtime(mesh, 0, torch.device("cpu")))


def spent(count: int) -> float:
    """What torch runs for a gradient in a message of so many."""
    made = message([torch.zeros(1, 3) for _ in range(count)])
    counted = Counted()
    with counted:
        for at in range(count):
            made.add_gradient(at, torch.ones(RANKS, 3))
    return float(counted.count / count)


def test_gradient_memory_does_not_depend_on_bucket_size() -> None:
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
