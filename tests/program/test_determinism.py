"""What is said to give the same bits twice does, and what torch refuses under determinism is listed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.graph.to_fx import resolve_op
from autosbp.program.determinism import NONDETERMINISTIC_ON_CUDA, nondeterminism_reason
from autosbp.sbp.factor_notation import tensor_inputs
from autosbp.sbp.rules import RULES
from autosbp.testing.virtual_cases import CASES, Case, of, op_case, x
from autosbp.testing.virtual_ops import _gradients, _random, fill_arguments

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture
def enforced() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def ran(graph: LogicalGraph, node: Node, device: str) -> list[torch.Tensor]:
    """Outputs and gradients of an op."""
    generator = torch.Generator().manual_seed(0)
    highs = {leaf.name: leaf.high for leaf in graph.inputs}
    inputs, tracked = [], []
    for ref, meta in zip(node.refs(), tensor_inputs(graph, node), strict=True):
        value = _random(meta, highs.get(ref.name), node.op.split(".")[1], generator).to(device)
        tracked.append(ref.name in graph.differentiable and value.is_floating_point())
        inputs.append(value.requires_grad_(tracked[-1]))
    torch.manual_seed(0)
    args, kwargs = fill_arguments(node, inputs)
    result = resolve_op(node.op)(*args, **kwargs)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    gradients = _gradients(outputs, inputs, tracked, [torch.ones_like(out) for out in outputs])
    return [*(out.detach() for out in outputs), *gradients]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", sorted(CASES))
@pytest.mark.usefixtures("enforced")
def test_ops_that_are_not_listed_give_the_same_bits_twice_and_those_that_are_fail(op: str, device: str) -> None:
    for case in CASES[op]:
        graph, node = op_case(op, case)
        if nondeterminism_reason(graph, node, device):
            with pytest.raises(RuntimeError, match="deterministic"):
                ran(graph, node, device)
            continue
        first, second = ([bits(value) for value in ran(graph, node, device)] for _ in range(2))
        assert first == second


def bits(value: torch.Tensor) -> bytes:
    return bytes(value.cpu().contiguous().numpy().tobytes())


def test_the_list_names_ops_that_have_rules() -> None:
    assert set(NONDETERMINISTIC_ON_CUDA) <= set(RULES)


def reason(op: str, case: Case, kind: str = "cuda") -> str:
    graph, node = op_case(op, case)
    return nondeterminism_reason(graph, node, kind)


def test_determinism_depends_on_op_arguments_and_device() -> None:
    pool = "aten.adaptive_avg_pool2d.default"
    assert "backward kernel on cuda" in reason(pool, of(x(2, 3, 8, 8), (2, 2)))
    assert reason(pool, of(x(2, 3, 8, 8), (2, 2)), "cpu") == ""
    assert reason(pool, of(x(2, 3, 8, 8), (1, 1))) == ""  # a mean
    assert "kernel on cuda" in reason("aten.cumsum.default", of(x(4, 6), 1))
    assert reason("aten.softmax.int", of(x(4, 6), -1)) == ""
    graph, node = op_case(pool, of(x(2, 3, 8, 8), (1, 1)))
    assert "custom op" in nondeterminism_reason(graph, replace(node, op="shop::mix"), "cpu")
