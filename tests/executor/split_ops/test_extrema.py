"""Maxima over split dims: who takes the gradient when values tie across ranks."""

from __future__ import annotations

import torch

from autosbp.executor.runtime import Runtime
from autosbp.executor.split_ops._extrema import indexed_extremum_split, shared_extremum_split
from autosbp.testing.virtual import VirtualRanks, plain_mesh

ROWS = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 4.0, 5.0, 5.0], [-1.0, -1.0, -1.0, -1.0]])


def gradients(kind: str) -> torch.Tensor:
    """The gradient of the sum of row maxima, columns split over two ranks."""

    def work(runtime: Runtime) -> torch.Tensor:
        part = ROWS.chunk(2, 1)[runtime.rank].clone().requires_grad_()
        if kind == "amax":
            values = shared_extremum_split(part, (1,), False, True, (0,))
        else:
            values, index = indexed_extremum_split(part, 1, False, True, 2 * runtime.rank, (0,))
            assert index.tolist() == [1, 0, 0]
        assert values.tolist() == [3.0, 5.0, -1.0]
        return torch.autograd.grad(values.sum(), part)[0]

    return torch.cat(VirtualRanks(plain_mesh(2)).run(work), 1)


def test_values_that_tie_share_the_gradient_of_amax_evenly() -> None:
    leaf = ROWS.clone().requires_grad_()
    leaf.amax(1).sum().backward()
    assert torch.equal(gradients("amax"), leaf.grad)
    assert gradients("amax")[0].tolist() == [0.0, 0.5, 0.5, 0.0]


def test_the_first_of_values_that_tie_takes_the_gradient_of_an_indexed_maximum() -> None:
    leaf = ROWS.clone().requires_grad_()
    leaf.max(1).values.sum().backward()
    assert torch.equal(gradients("max"), leaf.grad)
