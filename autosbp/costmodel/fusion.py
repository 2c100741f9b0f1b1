"""Groups of ops that a fusing framework runs as one kernel: Megatron-LM's own kernels, ``torch.compile``, nvFuser.

Two rules, from the graph's structure alone:

- **Chains.** An element-wise op and its only reader, if that is element-wise too or a softmax, are one pass over
  memory: bias + GELU, bias + dropout + residual, scale + mask + softmax (Narayanan et al. 2021, section 4.2). A softmax
  ends a chain: it needs the whole row before it yields the first value.
- **Packs.** Matmuls of one input with parameters that are parts of one stored tensor, such as query, key and value, are
  one matmul.

Ops with a boxing between them do not fuse.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.costmodel.op_flops import ELEMENTWISE
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.program.program import Item, Op
from autosbp.sbp.rules import sharding_of

CHAIN_ENDS = frozenset(("aten.softmax.int", "aten.log_softmax.int"))


def fused_ops(graph: LogicalGraph, items: Sequence[Item]) -> list[tuple[Op, ...]]:
    """Groups of ops that one kernel runs, in the order of their first ops; ops that move no data are left out."""
    ops = [item for item in items if isinstance(item, Op) and item.signature and not sharding_of(graph, item.node).free]
    readers: dict[object, list[Op]] = {}
    for item in ops:
        for read in dict.fromkeys(item.reads):
            readers.setdefault(read, []).append(item)
    sources = {leaf.name: leaf.source for leaf in graph.parameters}
    home: dict[str, list[Op]] = {}
    packs: dict[tuple[object, ...], list[Op]] = {}
    groups: list[list[Op]] = []
    for item in ops:
        group = _chain(item, home, readers)
        if group is None and (key := _pack_key(graph, item, sources)) is not None:
            group = packs.setdefault(key, [])
        if group is None:
            group = []
        if not group:
            groups.append(group)
        group.append(item)
        home[item.node.name] = group
    return [tuple(group) for group in groups]


def _chain(item: Op, home: dict[str, list[Op]], readers: dict[object, list[Op]]) -> list[Op] | None:
    """The group that ``item`` extends: one of element-wise ops whose last result only ``item`` reads."""
    if item.node.op not in ELEMENTWISE and item.node.op not in CHAIN_ENDS:
        return None
    for read in item.reads:
        group = home.get(read.name) if isinstance(read, Ref) else None
        if group is not None and group[-1].node.op in ELEMENTWISE and readers[read] == [item]:
            return group
    return None


def _pack_key(graph: LogicalGraph, item: Op, sources: dict[str, str]) -> tuple[object, ...] | None:
    """Key of a pack of matmuls: op, input, and the stored tensor of their weights."""
    weights = [ref.name for ref in item.node.refs() if ref.name in sources]
    if not weights or not sharding_of(graph, item.node).flops:
        return None
    return (item.node.op, item.reads[0], sources[weights[0]])
