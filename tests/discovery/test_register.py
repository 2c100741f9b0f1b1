"""``register_op``: layouts that a user declares in one line, checked at once and proved when a model is captured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import autosbp
from autosbp.api import capture_module
from autosbp.errors import InputError
from autosbp.graph.discovered_rules import DiscoveredRule
from autosbp.graph.ir import LogicalGraph
from autosbp.sbp import declared_rules
from autosbp.sbp.rules import sharding_of
from tests.discovery import library

pytestmark = pytest.mark.integration

OP = "shop.swiglu.default"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    declared_rules._declared.clear()


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(12, 18, bias=False), nn.Linear(12, 18, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return library.swiglu(x, self.gate.weight, self.up.weight).square().mean()


def captured() -> LogicalGraph:
    return capture_module(Gated(), {"x": torch.zeros(4, 6, 12)}, name="gated")


def layouts(rule: DiscoveredRule) -> set[str]:
    return {f"{' '.join(option.ins)} -> {' '.join(option.outs)}" for option in rule.options}


def test_a_declared_op_has_the_layouts_of_its_notation() -> None:
    autosbp.register_op("shop::swiglu", "b... k, n k, n k -> b... n", whole="k", flops=4)
    graph = captured()
    rule = graph.rules[OP]
    assert layouts(rule) == {"S0 B B -> S0", "S1 B B -> S1", "B S0 S0 -> S2"}
    bound = graph.bind(batch=8)
    node = next(node for node in bound.nodes if node.op == OP)
    assert sharding_of(bound, node).flops == 4 * 8 * 6 * 12 * 18


def test_linear_arguments_and_one_overload_may_be_named() -> None:
    autosbp.register_op("shop::swiglu.default", "b s k, n k, n k -> b s n", whole="b s k n", linear="2")
    assert layouts(captured().rules[OP]) == {"B B P -> P"}


def test_an_op_without_a_notation_has_its_layouts_found() -> None:
    found = captured().rules
    autosbp.register_op("shop::swiglu", "b s k, n k, n k -> b s n", whole="b s k n")
    assert captured().rules[OP] == DiscoveredRule((), "is declared as not splittable", saved=(0, 1, 2))
    autosbp.register_op("shop::swiglu")
    assert captured().rules == found


def test_a_declaration_may_stand_above_the_definition() -> None:
    @autosbp.register_op("shop::twice", "d... -> d...", linear="0")
    @torch.library.custom_op("shop::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert torch.equal(twice(torch.ones(2)), torch.full((2,), 2.0))
    said = declared_rules.declaration("shop.twice.default")
    assert said is not None
    assert said.notation == "d... -> d..."


def test_a_declaration_that_the_op_breaks_is_refused() -> None:
    """Splitting k would need the sum before the product."""
    autosbp.register_op("shop::swiglu", "b... k, n k, n k -> b... n")
    with pytest.raises(InputError, match="S2 S1 S1 -> P.*the op gives other results in these layouts") as caught:
        captured()
    assert caught.value.field == "register_op(shop.swiglu.default)"


@pytest.mark.parametrize(
    ("notation", "told"),
    [
        ("b s k, n k -> b s n", "swiglu"),
        ("b k, n k, n k -> b n", "b k"),
        ("b s k, n k, k n -> b s n", "inputs[2].shape[0]: shop.swiglu.default expects 12"),
    ],
)
def test_a_declaration_of_other_tensors_is_refused(notation: str, told: str) -> None:
    autosbp.register_op("shop::swiglu", notation)
    with pytest.raises(InputError) as caught:
        captured()
    assert caught.value.field == "register_op(shop.swiglu.default)"
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("op", "notation", "more", "field", "value"),
    [
        ("swiglu", "b -> b", {}, "op", "swiglu"),
        ("aten::mm", "m k, k n -> m n", {}, "op", "aten::mm"),
        ("a::b.c.d", "b -> b", {}, "op", "a::b.c.d"),
        ("a::b", "b s", {}, "notation", "b s"),
        ("a::b", "b -> b -> b", {}, "notation", "b -> b -> b"),
        ("a::b", "b S -> b", {}, "notation", "b S"),
        ("a::b", "b s, b s s -> b", {}, "notation", "b s s"),
        ("a::b", "b [s] -> b", {}, "notation", "b [s]"),
        ("a::b", "b -> [b]", {}, "notation", "[b]"),
        ("a::b", "b, +[d] -> +b", {}, "notation", "+b"),
        ("a::b", "b.. d -> d", {}, "notation", "b.. d"),
        ("a::b", "b... d... -> d", {}, "notation", "b... d..."),
        ("a::b", "b s -> b t", {}, "notation", "b t"),
        ("a::b", "b s -> b s", {"whole": "t"}, "whole", "t"),
        ("a::b", "b s -> b s", {"linear": "0; 1"}, "linear", "1"),
        ("a::b", "b s -> b s", {"linear": "x"}, "linear", "x"),
        ("a::b", None, {"flops": 2.0}, "notation", None),
    ],
)
def test_bad_notation_is_an_error_that_names_the_term(
    op: str, notation: str | None, more: dict[str, object], field: str, value: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        autosbp.register_op(op, notation, **more)  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.value) == (field, value)
    assert declared_rules.declaration("a.b.default") is None


def test_registering_does_not_import_torch() -> None:
    import subprocess
    import sys

    program = "import sys, autosbp; autosbp.register_op('a::b', 'b -> b'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
