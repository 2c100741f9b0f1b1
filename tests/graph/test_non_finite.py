"""Infinite and NaN constants: strict JSON documents, equal loss and gradients, and a plan that can be lowered."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import pytest
import torch
from torch import nn

from autosbp.api import PlanOptions, capture_module, load_cluster, make_plan, op_keys
from autosbp.costmodel.op_benchmark import prepare_op
from autosbp.costmodel.op_flops import op_work
from autosbp.errors import GraphError, InputError
from autosbp.executor.lowering import lower
from autosbp.graph.capture import build_on_meta, capture
from autosbp.graph.serialize import from_dict
from autosbp.sbp.rules import check_graph
from autosbp.utils.json_io import canonical, loads
from tests.graph.documents import document
from tests.graph.numerics import Double, assert_same, weights

pytestmark = pytest.mark.integration

Tensor = torch.Tensor
CLUSTER = load_cluster("local:2")


class Layer(nn.Module):
    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(8, 8), body

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.body(self.linear(x), mask > 0)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        padding = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :3]], 1) > 0
        loss: Tensor = self.layer(x.unsqueeze(1) * x.new_ones(4, 1), src_key_padding_mask=padding).square().sum()
        return loss


def first_column(mask: Tensor) -> Tensor:
    """A mask that leaves the last column, so that no row is masked as a whole."""
    return mask & (torch.arange(8) < 7)


BODIES: dict[str, Callable[[], nn.Module]] = {
    "masked_fill": lambda: Layer(lambda y, m: y.masked_fill(first_column(m), -inf).softmax(-1).square().sum()),
    "where": lambda: Layer(lambda y, m: (y + torch.where(first_column(m), -inf, 0.0)).softmax(-1).square().sum()),
    "constant": lambda: Layer(lambda y, _: (y + torch.full((8, 8), -inf).triu(1)[0]).softmax(-1).square().sum()),
    "nan": lambda: Layer(lambda y, m: torch.where(m, y, nan).nan_to_num(2.0, posinf=inf).square().sum()),
    "clamp": lambda: Layer(lambda y, _: y.clamp(-inf, 0.1).square().sum()),
    "norm": lambda: Layer(lambda y, _: y.norm()),
    "norm of infinite order": lambda: Layer(lambda y, _: y.norm(inf, dim=1).sum() + y.norm(-inf)),
    "src_key_padding_mask": Encoder,
}


def inputs(batch: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 8, generator=generator, dtype=torch.float64)
    return {"x": x, "mask": torch.randint(0, 2, (batch, 8), generator=generator)}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", BODIES)
def test_a_module_with_infinite_constants_is_captured_planned_and_gives_its_own_gradients(name: str) -> None:
    with Double():
        graph = capture(build_on_meta(BODIES[name], torch.float64), inputs(3), name=name, input_high={"mask": 2})
        module = BODIES[name]().double().train()
        weights(module)
        assert_same(graph, module, inputs(4))
    check_graph(graph)
    assert from_dict(loads(canonical(graph.to_dict()))) == graph
    plan = make_plan(graph, CLUSTER, options=PlanOptions(global_batch=8, baselines=()))
    bound = graph.bind(batch=plan.strategy.micro_batch)
    assert "inf" in lower(bound, plan.strategy, 0).graph.python_code("self").src or name in ("constant", "norm")


def test_numbers_that_json_lacks_are_written_as_tagged_strings() -> None:
    for text, value in (("Infinity", inf), ("-Infinity", -inf), ("NaN", nan)):
        tagged = document(("nodes.0.args.1", {"float": text}))
        graph = from_dict(tagged)
        assert repr(graph.nodes[0].args[1]) == repr(value)
        assert graph.to_dict()["nodes"][0]["args"][1] == {"float": text}
        assert from_dict(graph.to_dict()) == graph


@pytest.mark.parametrize("value", ["inf", "1.0", 1.0, None, ["NaN"]])
def test_other_tagged_numbers_are_refused(value: object) -> None:
    with pytest.raises(GraphError, match="expected one of Infinity, -Infinity, NaN"):
        from_dict(document(("nodes.0.args.1", {"float": value})))


def test_ops_with_infinite_arguments_are_timed() -> None:
    graph = capture_module(BODIES["masked_fill"](), inputs(4), name="model", input_high={"mask": 2})
    (key, *_) = [key for key in op_keys(graph, CLUSTER, PlanOptions(global_batch=8)) if "masked_fill" in key]
    assert '{"float":"-Infinity"}' in key
    assert op_work(key) is not None
    prepare_op(key)
    with pytest.raises(InputError, match="Infinity, -Infinity, NaN"):
        prepare_op(key.replace("-Infinity", "inf"))
