"""Ops that give the same bits in every run with the same inputs, devices and number of threads.

Collectives do: rings and trees over the same ranks add in the same order. Ops do under
``use_deterministic_algorithms``, which trials set for plans that require it. Ops without a deterministic kernel raise
an error in that mode (torch 2.13, documentation of that function); they are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Node

KNOWN_NAMESPACES = ("aten", "autosbp")
"""Namespaces whose kernels are known."""


@dataclass(frozen=True, slots=True)
class NondeterministicOp:
    """An op that adds in no fixed order, in ``backward`` only or always, for nodes of which ``holds`` is true."""

    backward: bool = True
    applies: Callable[[Node], bool] = lambda _: True


def _has_several_outputs(node: Node) -> bool:
    """Whether adaptive pooling has several output elements; a single one is a mean, whose kernel uses no atomics."""
    spatial = {"1d": 1, "2d": 2, "3d": 3}[node.op.split(".")[1][-2:]]
    return any(size != 1 for size in node.outputs[0].shape[-spatial:])


def _is_float(node: Node) -> bool:
    return node.outputs[0].is_float


def _is_prod_reduction(node: Node) -> bool:
    return "prod" in (*node.args, *node.kwargs.values())


_ADAPTIVE = NondeterministicOp(applies=_has_several_outputs)
NONDETERMINISTIC_ON_CUDA: Mapping[str, NondeterministicOp] = {
    **{f"aten.adaptive_avg_pool{dims}d.default": _ADAPTIVE for dims in (1, 2, 3)},
    "aten.avg_pool3d.default": NondeterministicOp(),
    **{f"aten.reflection_pad{dims}d.default": NondeterministicOp() for dims in (1, 2, 3)},
    **{
        f"aten.upsample_{name}": NondeterministicOp()
        for name in ("linear1d.vec", "bilinear2d.default", "bilinear2d.vec", "bicubic2d.default", "bicubic2d.vec")
    },
    "aten.histc.default": NondeterministicOp(backward=False),
    "aten.cumsum.default": NondeterministicOp(backward=False, applies=_is_float),
    "aten.scatter_reduce.two": NondeterministicOp(backward=False, applies=_is_prod_reduction),
}
NOT_REPRODUCIBLE: Mapping[str, Mapping[str, NondeterministicOp]] = {"cpu": {}, "cuda": NONDETERMINISTIC_ON_CUDA}


def nondeterminism_reason(graph: LogicalGraph, node: Node, kind: str) -> str:
    """Why an op may give different bits in another run on this kind of device; "" if it is reproducible."""
    if node.op.partition(".")[0] not in KNOWN_NAMESPACES:
        return "is a custom op with unknown kernels"
    found = NOT_REPRODUCIBLE[kind].get(node.op)
    if found is None or not found.applies(node):
        return ""
    if found.backward and not any(graph.has_gradient(ref) for ref in node.refs()):
        return ""
    return f"has no {'backward ' if found.backward else ''}kernel on {kind} with a fixed summation order"
