"""Rules of ops that the user declared, in the form that a graph stores."""

from __future__ import annotations

from autosbp.errors import GraphError, InputError
from autosbp.graph.discovered_rules import DiscoveredOption, DiscoveredRule
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.sbp.declared_rules import declaration
from autosbp.sbp.factor_notation import axis_options, notation, tensor_inputs


def declared_rule(bound: LogicalGraph, node: Node) -> DiscoveredRule | None:
    """The declared layouts at the node's shapes, without replication; None if nothing was declared.

    Raises:
        InputError: the declaration's terms or dims do not match the op's tensors.
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
        limit = f"expected a term for each of {len(node.outputs)} outputs"
        raise InputError(f"register_op({node.op})", said.notation, limit)
    every = axis_options(sharding, (True,) * len(metas), (True,) * len(node.outputs))
    options = tuple(
        DiscoveredOption(tuple(map(str, option.ins)), tuple(map(str, option.outs)))
        for option in every
        if option.factor not in ("B", "I")
    )
    places = tuple(next((at, dim) for at, dim in enumerate(factor.ins) if dim >= 0) for factor in sharding.factors)
    reason = "" if options else "is declared as not splittable"
    return DiscoveredRule(options, reason, flops=said.flops, sizes=places if said.flops else ())
