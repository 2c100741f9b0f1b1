"""Local shapes of products in float8, which kernels need in multiples of 16."""

from __future__ import annotations

from math import prod

from autosbp.costmodel.float8 import MULTIPLE, float8_operands
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import local_shape


def uneven_product(graph: LogicalGraph, strategy: Strategy) -> str:
    """The first op in float8 of which a rank has rows or columns that are no multiple of 16, with them; "" if none.

    The kernel of the weight's gradient contracts the rows of the activation, so their number must be a multiple too.
    """
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    for node in bound.nodes:
        positions = float8_operands(bound, node)
        if positions is None:
            continue
        refs, layouts = list(node.refs()), strategy.signatures[node.name].ins
        for at in positions:
            local = local_shape(bound.meta(refs[at]).sizes, layouts[at], strategy.mesh)
            matrix = (prod(local[:-1]), local[-1])
            if any(size % MULTIPLE for size in matrix):
                return f"{node.name} has {matrix[0]} x {matrix[1]} of {refs[at].name}"
    return ""
