"""Short parameters are trained as float32 copies of them, long ones as they are."""

from __future__ import annotations

import torch

from autosbp.executor.master_weights import MasterWeights
from autosbp.executor.training import make_optimizer

RATE = 1e-3


def _train(parameters: list[torch.Tensor], gradients: list[list[torch.Tensor]]) -> object:
    optimizer = make_optimizer("adamw", parameters, RATE)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return optimizer


def test_steps_too_small_for_bfloat16_add_up_in_the_copy() -> None:
    # A step of 1e-3 beside 1.0 is lost in bfloat16, whose next smaller number is 1 - 2**-8.
    start = torch.ones(8, 8)
    gradients = [[torch.ones(8, 8)] * 2 for _ in range(20)]
    short, long = start.bfloat16().requires_grad_(), start.clone().requires_grad_()
    optimizer = _train([short, long], gradients)
    assert isinstance(optimizer, MasterWeights)
    assert short.detach().equal(long.detach().bfloat16())
    assert short.detach().max() < 1
    kept = optimizer.state[short]
    assert {kept[name].dtype for name in ("copy", "exp_avg", "exp_avg_sq")} == {torch.float32}


def test_a_parameter_without_a_gradient_is_left_as_it_is() -> None:
    with_one, without = (torch.ones(4, dtype=torch.float16, requires_grad=True) for _ in range(2))
    optimizer = make_optimizer("sgd", [with_one, without], RATE)
    with_one.grad = torch.full((4,), 100.0, dtype=torch.float16)
    optimizer.step()
    assert with_one.detach().equal(torch.full((4,), 0.9).half())
    assert without.detach().equal(torch.ones(4).half())
    optimizer.zero_grad(set_to_none=True)
    assert with_one.grad is None


def test_parameters_as_long_as_float32_have_no_copies() -> None:
    assert not isinstance(make_optimizer("adamw", [torch.ones(2, requires_grad=True)], RATE), MasterWeights)


def test_parameters_that_step_together_do_as_each_alone() -> None:
    sizes = [(3,), (8, 8), (4, 4), (6, 6), (2,), (64,)]
    torch.manual_seed(0)
    starts, gradients = ([torch.randn(size).bfloat16() for size in sizes] for _ in range(2))
    together, alone = ([each.clone().requires_grad_() for each in starts] for _ in range(2))
    optimizer = make_optimizer("adamw", together, RATE)
    for _ in range(3):
        for each, gradient in zip(together, gradients, strict=True):
            each.grad = gradient.clone() if each.shape != (4, 4) else None  # one of a group has none
        optimizer.step()
    for each, gradient in zip(alone, gradients, strict=True):
        if each.shape != (4, 4):
            _train([each], [[gradient]] * 3)
    assert all(got.detach().equal(wanted.detach()) for got, wanted in zip(together, alone, strict=True))
    assert set(optimizer.state) == set(together)
    steps = [group for group, _, _ in optimizer._half_precision_groups]
    assert [[tuple(each.shape) for each in group] for group in steps] == [
        [(3,)],
        [(8, 8)],
        [(4, 4), (6, 6), (2,)],
        [(64,)],
    ]
