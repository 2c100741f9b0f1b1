"""Means written as sums, so that a split mean is a partial sum with the whole count.

``cross_entropy(mean)`` with ignored labels has a different count on every shard; as sum over sum it is exact on any.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from autosbp.errors import UnsupportedError
from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref, Sym, TensorMeta
from autosbp.graph.passes._edit import producers, rebuild, simple


def explicit_means(graph: LogicalGraph) -> LogicalGraph:
    """``mean(x, dims)`` becomes ``sum(x, dims) / n`` where the reduced sizes are numbers, and ``/ numel`` otherwise."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op not in ("aten.mean.dim", "aten.mean.default"):
            nodes.append(node)
            continue
        source = node.args[0]
        shape = graph.meta(source).shape
        dims = node.args[1] if node.op == "aten.mean.dim" and node.args[1] else tuple(range(len(shape)))
        keep = bool(node.args[2]) if len(node.args) > 2 else False
        sizes = [shape[dim] for dim in dims]
        total = Node(f"{node.name}.sum", "aten.sum.dim_IntList", (source, dims, keep), node.kwargs, node.outputs)
        nodes += [total, replace(node, op="aten.div.Tensor", args=(Ref(total.name), _count(node, sizes)), kwargs={})]
    return replace(graph, nodes=tuple(nodes))


def _count(node: Node, sizes: list[int | str]) -> Arg:
    """The number of elements that are averaged; where it depends on the batch, binding fills it in."""
    if all(isinstance(size, int) for size in sizes):
        return float(prod(size for size in sizes if isinstance(size, int)))
    if any("+" in str(size) for size in sizes):
        raise UnsupportedError(f"{node.name}: a mean over a dim of size {sizes}, a sum of symbols")
    return Sym("*".join(str(size) for size in sizes))


def explicit_cross_entropy(graph: LogicalGraph) -> LogicalGraph:
    """``cross_entropy_loss`` with class labels becomes log-softmax, gather, mask, sum, division by the label count.

    A flattening ``reshape`` before it is undone, so that sequence and batch stay separate dims. Classes in dim 1 of
    more than two are moved last.
    """
    nodes: list[Node] = []
    made_by = producers(graph)
    table: dict[Ref, Ref] = {}
    for node in graph.nodes:
        if node.op != "aten.cross_entropy_loss.default":
            nodes.append(node)
            continue
        logits, labels, *rest = node.args
        defaults: tuple[Arg, ...] = (None, 1, -100, 0.0)
        weight, reduction, ignore, smoothing = (*rest, *defaults[len(rest) :])
        if weight is not None or smoothing != 0.0 or reduction == 0 or graph.meta(labels).is_float:
            raise UnsupportedError(
                f"{node.name}: cross-entropy with class weights, smoothing, soft labels or no reduction"
            )
        if len(graph.meta(logits).shape) != len(graph.meta(labels).shape) + 1:
            raise UnsupportedError(f"{node.name}: cross-entropy of one sample without a batch dim")
        logits, labels = _unflattened(graph, made_by, logits, labels)
        meta = graph.meta(logits)
        if logits == node.args[0] and len(meta.shape) > 2:
            nodes.append(_classes_last(node, logits, meta))
            logits, meta = Ref(nodes[-1].name), nodes[-1].outputs[0]
        nodes.extend(_cross_entropy(graph, node, logits, meta, labels, int(ignore), mean=reduction == 1))
        table[Ref(node.name)] = Ref(f"{node.name}.loss")
    return rebuild(graph, nodes, table)


def _classes_last(node: Node, logits: Ref, meta: TensorMeta) -> Node:
    order = (0, *range(2, len(meta.shape)), 1)
    shape = tuple(meta.shape[dim] for dim in order)
    return simple(f"{node.name}.last", "aten.permute.default", (logits, order), shape, meta.dtype)


def _unflattened(graph: LogicalGraph, made_by: dict[str, Node], logits: Ref, labels: Ref) -> tuple[Ref, Ref]:
    one, two = made_by.get(logits.name), made_by.get(labels.name)
    if one is None or two is None or one.op != "aten.reshape.default" or two.op != "aten.reshape.default":
        return logits, labels
    before, ids = one.args[0], two.args[0]
    shape = graph.meta(before).shape
    same_classes = shape[-1] == graph.meta(logits).shape[-1]
    return (before, ids) if same_classes and shape[:-1] == graph.meta(ids).shape else (logits, labels)


def _cross_entropy(
    graph: LogicalGraph, node: Node, logits: Ref, meta: TensorMeta, labels: Ref, ignore: int, *, mean: bool
) -> list[Node]:
    ids = graph.meta(labels)
    lead, last, dtype = ids.shape, len(ids.shape), meta.dtype
    name = node.name
    one = (*lead, 1)
    sizes = tuple(dim if isinstance(dim, int) else Sym(dim) for dim in one)
    flat = tuple(dim if isinstance(dim, int) else Sym(dim) for dim in lead)
    nodes = [
        simple(f"{name}.logp", "aten.log_softmax.int", (logits, last), meta.shape, dtype),
        simple(f"{name}.ignored", "aten.eq.Scalar", (labels, ignore), lead, "bool"),
        simple(f"{name}.safe", "aten.masked_fill.Scalar", (labels, Ref(f"{name}.ignored"), 0), lead, ids.dtype),
        simple(f"{name}.index", "aten.reshape.default", (Ref(f"{name}.safe"), sizes), one, ids.dtype),
        simple(f"{name}.picked", "aten.gather.default", (Ref(f"{name}.logp"), last, Ref(f"{name}.index")), one, dtype),
        simple(f"{name}.flat", "aten.reshape.default", (Ref(f"{name}.picked"), flat), lead, dtype),
        simple(
            f"{name}.kept", "aten.masked_fill.Scalar", (Ref(f"{name}.flat"), Ref(f"{name}.ignored"), 0), lead, dtype
        ),
        simple(f"{name}.sum", "aten.sum.default", (Ref(f"{name}.kept"),), (), dtype),
    ]
    if not mean:
        return [*nodes, simple(f"{name}.loss", "aten.neg.default", (Ref(f"{name}.sum"),), (), dtype)]
    return [
        *nodes,
        simple(f"{name}.negative", "aten.neg.default", (Ref(f"{name}.sum"),), (), dtype),
        simple(f"{name}.valid", "aten.ne.Scalar", (labels, ignore), lead, "bool"),
        Node(f"{name}.numbers", "aten.to.dtype", (Ref(f"{name}.valid"), DType(dtype)), {}, (TensorMeta(lead, dtype),)),
        simple(f"{name}.count", "aten.sum.default", (Ref(f"{name}.numbers"),), (), dtype),
        simple(f"{name}.loss", "aten.div.Tensor", (Ref(f"{name}.negative"), Ref(f"{name}.count")), (), dtype),
    ]
