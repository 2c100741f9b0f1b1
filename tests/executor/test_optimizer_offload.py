"""Optimizers on the host step as those on the device do."""

from __future__ import annotations

import pytest
import torch

from autosbp.executor.optimizer_offload import HostOptimizer
from autosbp.executor.training import make_optimizer


def parameters() -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=made, dtype=torch.float64).requires_grad_() for size in ((3, 4), (5,), (2,))]


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_parameters_are_those_of_an_optimizer_on_the_device(name: str) -> None:
    here, there = parameters(), parameters()
    alone, host = make_optimizer(name, here, 1e-2), make_optimizer(name, there, 1e-2, offload=True)
    for step in range(3):
        for one, other in zip(here[:2], there[:2], strict=True):  # the last has no gradient
            one.grad = torch.full_like(one, step - 0.5)
            other.grad = one.grad.clone()
        alone.step()
        host.step()
        host.zero_grad()
        assert all(parameter.grad is None for parameter in there)
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


def test_no_optimizer_state_is_on_the_device() -> None:
    made = parameters()
    host = make_optimizer("adamw", made, 1e-2, offload=True)
    assert isinstance(host, HostOptimizer)
    addresses = {parameter.data_ptr() for parameter in made}
    assert not any(copy.data_ptr() in addresses for copy in host.copies)
    assert not any(host.state.get(parameter) for parameter in made)
