"""What the user declared of an op, as the rule that a graph holds."""

from __future__ import annotations

from autosbp.errors import GraphError, InputError
from autosbp.graph.found import FoundOption, FoundRule
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.sbp.registry import declaration
from autosbp.sbp.sharding import axis_options, notation, tensor_inputs


def declared_rule(bound: LogicalGraph, node: Node) -> FoundRule | None:
    """The declared layouts at the node's shapes, beside replication; None where nothing was declared.

    Raises ``InputError`` where the declaration has other terms or dims than the op's tensors.
    """
    said = declaration(node.op)
    if said is None:
        return None
    metas = tensor_inputs(bound, node)
    try:
        sharding = notation(said.notation, linear=said.linear, whole=said.whole, flops=said.flops)(node, metas)
    except GraphError as error:
        raise InputError(f"register_op({node.op})", said.notation, f"{error.field}: {error.limit}") from None
    if any(len(factor.outs) != len(node.outputs) for factor in sharding.factors):
        limit = f"a term for each of {len(node.outputs)} outputs is expected"
        raise InputError(f"register_op({node.op})", said.notation, limit)
    every = axis_options(sharding, (True,) * len(metas), (True,) * len(node.outputs))
    options = tuple(
        FoundOption(tuple(map(str, option.ins)), tuple(map(str, option.outs)))
        for option in every
        if option.factor not in ("B", "I")
    )
    places = tuple(next((at, dim) for at, dim in enumerate(factor.ins) if dim >= 0) for factor in sharding.factors)
    reason = "" if options else "was declared whole"
    return FoundRule(options, reason, flops=said.flops, sizes=places if said.flops else ())
