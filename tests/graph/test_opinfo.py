"""Torch's own database of ops as a judge: captured loss and gradient are eager's, and so is every split on virtual ranks.

The short form takes every 24th entry, the long one all of them, and layouts that are discovered, too.
"""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from autosbp.discovery import discover_rules
from autosbp.errors import AutosbpError
from autosbp.graph.capture import capture
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.to_fx import is_random
from autosbp.plan.plan import Signature
from autosbp.program.chosen_options import checked_choices, uneven_choice
from autosbp.sbp.boxing import is_even
from autosbp.sbp.factor_notation import tensor_inputs
from autosbp.sbp.rules import RULES, check_graph, node_options
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_ops import check_option
from tests.graph import opinfo
from tests.tiers import form

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

PARTS = 24
_SHORT = (torch.bfloat16, torch.float16)
"""Dtypes whose rounding depends on the order of sums."""
SIZES = (2, 3, 5)
"""Numbers of parts; sizes of torch's samples are mostly 5, 10 and 20."""
REFUSED = frozenset(Path(__file__).with_name("opinfo_refused.txt").read_text().split())
"""Entries that cannot be captured with a batch: sizes that depend on it or on values, sparse tensors, other ops."""


def captured(op: Any) -> tuple[LogicalGraph, opinfo.OneOp, Any] | None:
    """The graph of an entry's sample, its model, and eager's results; None where there is nothing to compare."""
    sample = opinfo.sample_of(op)
    if sample is None:
        return None
    model = opinfo.OneOp(op, sample)
    wanted = opinfo.eager_results(model)
    if wanted is None:
        return None
    try:
        graph = capture(model, model.example, name="op", check=False)
        check_graph(graph)
    except AutosbpError as error:
        assert opinfo.full_name(op) in REFUSED, (opinfo.full_name(op), error)
        return None
    return graph, model, wanted


@pytest.mark.some(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_ops_of_torch_are_captured_and_split_as_eager_computes_them(part: int) -> None:
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in opinfo.entries(part, PARTS):
            found = captured(op)
            if found is None or any(is_random(node.op) for node in found[0].nodes):
                continue
            graph, model, wanted = found
            bound = graph.bind(**dict.fromkeys(graph.symbols, model.example["x"].shape[0]))
            loss, gradient, values = opinfo.graph_results(bound, model)
            name = opinfo.full_name(op)
            assert opinfo.are_close(loss, wanted[0]), (name, loss, wanted)
            assert opinfo.are_close(gradient, wanted[1]), (name, gradient, wanted)
            check_splits(form(graph, discover_rules(graph)), bound, values, name)
            compared += 1
    assert compared >= 8


def check_splits(graph: LogicalGraph, bound: LogicalGraph, values: Any, name: str) -> None:
    """Every layout of every op that depends on the parameter, on the op's own values."""
    bound = graph.bind(**dict.fromkeys(graph.symbols, next(iter(bound.inputs)).meta.sizes[0]))
    for node in bound.nodes:
        computed = node.name in bound.parameter_dependent and (node.op in RULES or node.rule)
        operands = opinfo.operands(values, list(node.refs()))
        finite = all(bool(each.isfinite().all()) for each in (*operands, *values[node.name]))
        if not computed or not finite or any(each.dtype in _SHORT for each in (*operands, *values[node.name])):
            continue
        for option, size in product(node_options(bound, node), SIZES):
            signature = Signature(tuple((sbp,) for sbp in option.ins), tuple((sbp,) for sbp in option.outs))
            mesh, metas = plain_mesh(size), (*tensor_inputs(bound, node), *node.outputs)
            layouts = (*signature.ins, *signature.outs)
            if uneven_choice(checked_choices(bound, node, signature, mesh.ndim), mesh) is not None:
                continue
            if all(is_even(meta.sizes, layout, mesh) for meta, layout in zip(metas, layouts, strict=True)):
                try:
                    check_option(bound, node, option, size, operands)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from error
