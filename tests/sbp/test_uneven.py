"""Axes that do not divide: every layout is refused or right, and search offers nothing that the program refuses."""

from __future__ import annotations

import pytest

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan.plan import Signature, Strategy
from autosbp.program.program import check_signature
from autosbp.sbp.factor_notation import AxisOption
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import node_options
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_cases import CASES, Case, of, op_case, x
from autosbp.testing.virtual_ops import check_layouts

pytestmark = pytest.mark.integration

SIZES = (4, 5)
"""4 divides some extents of the cases (4, 12) and not others (2, 3, 6); 5 divides none."""
ALL = [pytest.param(op, case, id=f"{op}-{at}") for op, cases in CASES.items() for at, case in enumerate(cases)]


def accepted(graph: LogicalGraph, node: Node, signature: Signature, mesh: Mesh) -> bool:
    """Whether a program may have this signature."""
    try:
        check_signature(graph, node, signature, Strategy(mesh, {node.name: signature}, {}, {}, 1, 1, "sgd"))
    except InputError:
        return False
    return True


def signature_of(option: AxisOption) -> Signature:
    return Signature(tuple((sbp,) for sbp in option.ins), tuple((sbp,) for sbp in option.outs))


@pytest.mark.parametrize(("op", "case"), ALL)
@pytest.mark.some(3)
def test_a_layout_on_an_axis_that_does_not_divide_is_refused_or_right(op: str, case: Case) -> None:
    graph, node = op_case(op, case)
    for option in node_options(graph, node):
        split = any(sbp.is_split for sbp in (*option.ins, *option.outs))
        for size in SIZES if split else ():
            signature, mesh = signature_of(option), plain_mesh(size)
            taken = accepted(graph, node, signature, mesh)
            searched = option.size % size == 0
            assert taken == searched, (option, size)
            if taken:
                check_layouts(graph, node, signature, mesh)


def test_groups_that_an_axis_does_not_divide_are_refused_even_where_channels_divide() -> None:
    graph, node = op_case("aten.group_norm.default", of(x(4, 12, 6), 2, x(12), x(12)))
    option = next(option for option in node_options(graph, node) if option.factor == "g")
    assert accepted(graph, node, signature_of(option), plain_mesh(2))
    assert not accepted(graph, node, signature_of(option), plain_mesh(3))


def test_two_axes_that_divide_one_by_one_must_divide_together() -> None:
    graph, node = op_case("aten.group_norm.default", of(x(4, 24, 6), 6, x(24), x(24)))
    option = next(option for option in node_options(graph, node) if option.factor == "g")
    twice = Signature(tuple(sbps * 2 for sbps in signature_of(option).ins), (signature_of(option).outs[0] * 2,))
    assert accepted(graph, node, twice, plain_mesh(2, 3))
    assert not accepted(graph, node, twice, plain_mesh(2, 2))
