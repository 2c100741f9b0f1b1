"""Every sharding rule, proved: each layout of each op against the whole op, forward and backward, on virtual ranks."""

from __future__ import annotations

import random
from itertools import product

import pytest

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan.plan import Signature
from autosbp.program.chosen_options import checked_choices, uneven_choice
from autosbp.sbp.boxing import is_even
from autosbp.sbp.factor_notation import AxisOption, tensor_inputs
from autosbp.sbp.layout import B, I, P, S, Sbp
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import RULES, node_options
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_cases import CASES, Case, mask, of, op_case, x
from autosbp.testing.virtual_ops import check_layouts, check_option

pytestmark = pytest.mark.integration

ALL = [pytest.param(op, case, id=f"{op}-{at}") for op, cases in CASES.items() for at, case in enumerate(cases)]


def fits(graph: LogicalGraph, node: Node, signature: Signature, mesh: Mesh) -> bool:
    metas = (*tensor_inputs(graph, node), *node.outputs)
    layouts = (*signature.ins, *signature.outs)
    if uneven_choice(checked_choices(graph, node, signature, mesh.ndim), mesh) is not None:
        return False
    return all(is_even(meta.sizes, layout, mesh) for meta, layout in zip(metas, layouts, strict=True))


def signature_of(options: tuple[AxisOption, ...]) -> Signature:
    """One option per mesh axis."""
    return Signature(
        tuple(tuple(sbps) for sbps in zip(*(option.ins for option in options), strict=True)),
        tuple(tuple(sbps) for sbps in zip(*(option.outs for option in options), strict=True)),
    )


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    assert set(CASES) == set(RULES)
    assert all(CASES.values())


@pytest.mark.parametrize(("op", "case"), ALL)
def test_every_layout_on_one_axis_is_right(op: str, case: Case) -> None:
    graph, node = op_case(op, case)
    for option, size in product(node_options(graph, node), (2, 3)):
        if fits(graph, node, signature_of((option,)), plain_mesh(size)):
            check_option(graph, node, option, size)


@pytest.mark.parametrize("op", sorted(RULES))
def test_every_layout_that_splits_is_proved_for_some_case(op: str) -> None:
    """No layout of a rule escapes the proof because all its extents are odd."""
    for case in CASES[op]:
        graph, node = op_case(op, case)
        for option in node_options(graph, node):
            if option.size > 1:
                proved = [size for size in (2, 3) if fits(graph, node, signature_of((option,)), plain_mesh(size))]
                assert proved, (case, option)


@pytest.mark.parametrize(("op", "case"), ALL)
@pytest.mark.some(4)
def test_layouts_of_two_axes_are_chosen_independently(op: str, case: Case) -> None:
    graph, node = op_case(op, case)
    options = node_options(graph, node)
    rng = random.Random(f"{op}/{case}")
    for mesh in (plain_mesh(2, 2), plain_mesh(2, 3)):
        pairs = [pair for pair in product(options, repeat=2) if fits(graph, node, signature_of(pair), mesh)]
        twice = [pair for pair in pairs if pair[0] == pair[1] and any(sbp.is_split for sbp in pair[0].ins)]
        for pair in {*twice[:1], *rng.sample(pairs, min(2, len(pairs)))}:
            check_layouts(graph, node, signature_of(pair), mesh)


WRONG = {
    "softmax of partial sums": ("aten.softmax.int", of(x(4, 6), -1), (P,), P),
    "layer norm of partial sums": ("aten.layer_norm.default", of(x(4, 6), (6,)), (P,), P),
    "batch norm of a split batch with a repeated weight": (
        "aten.batch_norm.default", of(x(4, 6), x(6), x(6), None, None, True, 0.1, 1e-5, False), (S(0), I, I), S(0)
    ),
    "relu of partial sums": ("aten.relu.default", of(x(4, 6)), (P,), P),
    "product of two partial sums": ("aten.mul.Tensor", of(x(4, 6), x(4, 6)), (P, P), P),
    "sum of a partial and a whole": ("aten.add.Tensor", of(x(4, 6), x(4, 6)), (P, B), P),
    "adding a number to partial sums": ("aten.add.Tensor", of(x(4, 6), 0.5), (P,), P),
    "quotient by a partial sum": ("aten.div.Tensor", of(x(4, 6), x(4, 6)), (B, P), P),
    "number over a partial sum": ("aten.div.Tensor", of(2.0, x(4, 6)), (P,), P),
    "fill of partial sums with 1": ("aten.masked_fill.Scalar", of(x(4, 6), mask(4, 6), 1.0), (P, B), P),
    "bias added on every rank": ("aten.linear.default", of(x(4, 6), x(6, 6), x(6)), (S(1), S(1), B), P),
    "contraction called whole": ("aten.mm.default", of(x(4, 6), x(6, 4)), (S(1), S(0)), B),
    "invariant input of divided work": ("aten.mm.default", of(x(4, 6), x(6, 4)), (I, S(1)), S(1)),
    "replicas called divided": ("aten.relu.default", of(x(4, 6)), (B,), I),
    "split called invariant": ("aten.mul.Tensor", of(x(4, 6), x(6)), (S(0), I), S(0)),
    "convolution over split space": (
        "aten.conv2d.default", of(x(2, 2, 6, 6), x(2, 2, 3, 3), None, (1, 1), (1, 1)), (S(2), B), S(2)
    ),
    "grouped convolution over split channels": (
        "aten.conv2d.default", of(x(2, 6, 4, 4), x(6, 1, 1, 1), None, (1, 1), (0, 0), (1, 1), 6), (S(1), B), S(1)
    ),
    "reshape of an inner dim": ("aten.reshape.default", of(x(4, 6), (24,)), (S(1),), S(0)),
    "cat along a split dim": ("aten.cat.default", of((x(4, 6), x(4, 6)), 1), (S(1), S(1)), S(1)),
    "embedding of a frequency-scaled table over split ids": (
        "aten.embedding.default", CASES["aten.embedding.default"][3], (B, S(0)), S(0)
    ),
    "causal attention of split queries to split keys": (
        "aten.scaled_dot_product_attention.default",
        of(x(2, 4, 6, 2), x(2, 4, 6, 2), x(2, 4, 6, 2), None, 0.0, True), (S(2), S(2), S(2)), S(2)
    ),
    "attention over split keys called whole": (
        "aten.scaled_dot_product_attention.default",
        of(x(2, 4, 6, 2), x(2, 4, 6, 2), x(2, 4, 6, 2)), (B, S(2), S(2)), B
    ),
    "attention over split head widths": (
        "aten.scaled_dot_product_attention.default",
        of(x(2, 4, 6, 2), x(2, 4, 6, 2), x(2, 4, 6, 2)), (S(3), S(3), B), P
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_layouts_are_rejected_and_no_rule_offers_them(name: str) -> None:
    op, case, ins, out = WRONG[name]
    graph, node = op_case(op, case)
    option = AxisOption("wrong", ins, (out,), True)
    with pytest.raises(AssertionError):
        check_option(graph, node, option, 2)
    assert (ins, (out,)) not in [(known.ins, known.outs) for known in node_options(graph, node)]


@pytest.mark.parametrize("kind", [B, I, P, S(0)], ids=str)
def test_the_check_accepts_correct_layouts(kind: Sbp) -> None:
    graph, node = op_case("aten.neg.default", of(x(4, 6)))
    check_option(graph, node, AxisOption("right", (kind,), (kind,), False), 2)
