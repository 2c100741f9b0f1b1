"""Which ops give the same bits in every run, given the same inputs, on the same devices with as many threads.

Collectives do: rings and trees over the same ranks add in the same order. Ops do under ``use_deterministic_algorithms``,
which trials of plans that require it set; those of which torch has no such kernel raise an error there (torch 2.13, the
documentation of that function), and are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Node

OWN = ("aten", "autosbp")
"""Namespaces whose kernels are known."""


@dataclass(frozen=True, slots=True)
class Irreproducible:
    """An op that adds up in no fixed order: in ``backward`` alone, or always; where ``holds`` of it."""

    backward: bool = True
    holds: Callable[[Node], bool] = lambda _: True


def _spreads(node: Node) -> bool:
    """Adaptive pooling to one element is a mean, by a kernel of its own; other pools add gradients up by atomics."""
    spatial = {"1d": 1, "2d": 2, "3d": 3}[node.op.split(".")[1][-2:]]
    return any(size != 1 for size in node.outputs[0].shape[-spatial:])


def _is_float(node: Node) -> bool:
    return node.outputs[0].is_float


def _multiplies(node: Node) -> bool:
    return "prod" in (*node.args, *node.kwargs.values())


_ADAPTIVE = Irreproducible(holds=_spreads)
NOT_ON_CUDA: Mapping[str, Irreproducible] = {
    **{f"aten.adaptive_avg_pool{dims}d.default": _ADAPTIVE for dims in (1, 2, 3)},
    "aten.avg_pool3d.default": Irreproducible(),
    **{f"aten.reflection_pad{dims}d.default": Irreproducible() for dims in (1, 2, 3)},
    **{
        f"aten.upsample_{name}": Irreproducible()
        for name in ("linear1d.vec", "bilinear2d.default", "bilinear2d.vec", "bicubic2d.default", "bicubic2d.vec")
    },
    "aten.histc.default": Irreproducible(backward=False),
    "aten.cumsum.default": Irreproducible(backward=False, holds=_is_float),
    "aten.scatter_reduce.two": Irreproducible(backward=False, holds=_multiplies),
}
NOT_REPRODUCIBLE: Mapping[str, Mapping[str, Irreproducible]] = {"cpu": {}, "cuda": NOT_ON_CUDA}


def why_irreproducible(graph: LogicalGraph, node: Node, kind: str) -> str:
    """Why an op may give other bits in another run on a kind of device; empty where it gives the same."""
    if node.op.partition(".")[0] not in OWN:
        return "is a custom op, of whose kernels nothing is known"
    found = NOT_REPRODUCIBLE[kind].get(node.op)
    if found is None or not found.holds(node):
        return ""
    if found.backward and not any(graph.has_gradient(ref) for ref in node.refs()):
        return ""
    return f"has no {'backward ' if found.backward else ''}kernel on {kind} that adds up in a fixed order"
