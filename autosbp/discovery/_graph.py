"""``discover_rules``: every op of a graph that the table of rules lacks gets one, declared by the user or found.

Runs after the import passes. What it finds is stored in the graph as data, so that planner, service and executor need
neither torch nor the op to know its layouts.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

from autosbp.discovery._cache import key_of, read_cached, write_cached
from autosbp.discovery._call import Call, Tensor, make_call
from autosbp.discovery._declared import declared_rule
from autosbp.discovery._proof import Prover, Way
from autosbp.discovery._samples import Random, Undiscoverable, samples
from autosbp.discovery._search import doubled, proved, search
from autosbp.discovery._stand_ins import StandIn, of_dtypes, stand_in
from autosbp.discovery._trials import tried
from autosbp.discovery._work import saved_by, work_of, workspace_of
from autosbp.errors import GraphError
from autosbp.graph.found import MAX_REASON, FoundOption, FoundRule
from autosbp.graph.ir import DType, LogicalGraph, Node, Ref, TensorMeta
from autosbp.graph.materialise import dtype_of, op_of
from autosbp.sbp.placement import parse_sbp
from autosbp.sbp.rules import RULES

BATCHES = (37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127)
"""The first that divides no other size stands for the batch: its multiples are no others."""
REAL_BATCH = 12
"""The batch where an op runs at its real sizes."""


def discover_rules(graph: LogicalGraph, *, use_cache: bool = True) -> LogicalGraph:
    """``graph`` with a rule for each computed node whose op has none in the table.

    An op whose layouts cannot be found has a rule without layouts that says why: it stays replicated. Data needs no
    layouts; of custom ops that make it, those that draw random numbers have a rule that says so. Raises ``InputError``
    for a declared rule that the op breaks.
    """
    bound = graph.bind(**dict.fromkeys(graph.symbols, _batch(graph)))
    real = graph.bind(**dict.fromkeys(graph.symbols, REAL_BATCH))
    keys: dict[str, Hashable] = {}
    wanted: dict[Hashable, tuple[Node, Node]] = {}
    for node, at_size, at_real in zip(graph.nodes, bound.nodes, real.nodes, strict=True):
        computed = node.name in graph.computed
        if node.op not in RULES and not node.rule and (computed or not node.op.startswith("aten.")):
            keys[node.name] = computed, _identity(bound, at_size)
            wanted.setdefault(keys[node.name], (at_size, at_real))
    trials = [partial(_rule, (bound, at_size), (real, at_real), use_cache) for at_size, at_real in wanted.values()]
    rules = dict(graph.rules)
    names: dict[Hashable, str] = {}
    for (key, (_, node)), rule in zip(wanted.items(), tried(trials), strict=True):
        names[key] = _free_name(node.op, rules) if node.name in graph.computed or rule.random else ""
        rules |= {names[key]: rule} if names[key] else {}
    nodes = tuple(replace(node, rule=names[keys[node.name]]) if node.name in keys else node for node in graph.nodes)
    return replace(graph, nodes=nodes, rules=rules) if rules else graph


def _batch(graph: LogicalGraph) -> int:
    sizes = {dim for metas in graph.metas.values() for meta in metas for dim in meta.shape if isinstance(dim, int)}
    return next((batch for batch in BATCHES if all(size % batch or not size for size in sizes)), REAL_BATCH)


def _free_name(op: str, rules: dict[str, FoundRule]) -> str:
    return next(name for name in (op, *(f"{op}/{at}" for at in range(2, len(rules) + 3))) if name not in rules)


def _identity(bound: LogicalGraph, node: Node) -> Hashable:
    """Equal for nodes that share a rule."""
    blank = node.map_args(lambda arg: _tensor(bound, arg) or (type(arg).__name__, arg))
    return node.op, blank.args, tuple(blank.kwargs.items()), node.outputs


def _tensor(bound: LogicalGraph, arg: Any) -> Tensor | None:
    if not isinstance(arg, Ref):
        return None
    meta: TensorMeta = bound.meta(arg)
    high = next((leaf.high for leaf in bound.inputs if leaf.name == arg.name), None)
    return Tensor(meta.sizes, dtype_of(meta.dtype), bound.has_gradient(arg), high)


def node_call(bound: LogicalGraph, node: Node) -> Call:
    """The call of a bound graph's node."""
    plain = node.map_args(lambda arg: dtype_of(arg.name) if isinstance(arg, DType) else arg)
    return make_call(op_of(node.op), plain.args, plain.kwargs, lambda arg: _tensor(bound, arg))


def _rule(unreal: tuple[LogicalGraph, Node], real: tuple[LogicalGraph, Node], use_cache: bool) -> FoundRule:
    """The rule of a node, bound at a batch that is no other size and at one that divides evenly."""
    node = real[1]
    declared = declared_rule(*real)
    try:
        calls = node_call(*unreal), node_call(*real)
    except GraphError as error:
        return declared or FoundRule((), f"cannot be run here: {error}"[:MAX_REASON])
    outputs, last = ([meta.sizes for meta in one[1].outputs] for one in (unreal, real))
    failure = Undiscoverable("")
    for change in (doubled, lambda call: call):
        try:
            small = stand_in(change(calls[0]), outputs, (change(calls[1]), last))
        except Random as error:
            return declared or FoundRule((), str(error)[:MAX_REASON], random=True)
        except Undiscoverable as error:
            failure = error
            continue
        if declared is not None:
            check_declared(declared, node, small)
            return _with_kept(declared, of_dtypes(small, calls[0]))
        return found_rule(small, use_cache, of_dtypes(small, calls[0]))
    return declared or FoundRule((), str(failure)[:MAX_REASON])


def _with_kept(rule: FoundRule, plain: StandIn) -> FoundRule:
    """With what autograd keeps; of a call that takes no sample in its own dtypes, nothing is known."""
    try:
        saved = saved_by(plain.call, samples(plain.call, 1)[0])
    except Undiscoverable:
        return rule
    workspace, sizes = workspace_of(plain)
    return replace(rule, saved=saved, workspace=workspace, workspace_sizes=sizes)


def found_rule(small: StandIn, use_cache: bool = True, plain: StandIn | None = None) -> FoundRule:
    """The rule of a stand-in's call: from the cache where it still holds, else discovered. ``plain`` is the same in the dtypes
    in which the graph runs: what autograd keeps may depend on them."""
    plain = plain or small
    calls = [call for call in (small.call, small.confirm, plain.call) if call is not None]
    key = key_of(*calls) if use_cache else None
    prover = Prover(small.call, samples(small.call))
    cached = read_cached(key) if key is not None else None
    if cached is not None and cached.options and all(proved(prover, _way(option)) for option in cached.options):
        return cached
    found = search(prover)
    options = [
        FoundOption(tuple(map(str, option.ins)), tuple(map(str, option.outs)), option.divided)
        for option in found.options
    ]
    if small.confirm is not None:
        options = _confirmed(small.confirm, options)
    reason = found.reason or ("" if options else "has layouts for some sizes only")
    flops, sizes = work_of(small)
    rule = _with_kept(FoundRule(tuple(options), reason, flops=flops, sizes=sizes), plain)
    if key is not None and options and found.complete:
        write_cached(key, rule)
    return rule


def _confirmed(call: Call, options: list[FoundOption]) -> list[FoundOption]:
    """Those of the options that hold at the call's sizes, too."""
    prover = Prover(call, samples(call, 1))
    return [option for option in options if proved(prover, _way(option))]


def check_declared(rule: FoundRule, node: Node, small: StandIn) -> None:
    """Raise ``InputError`` where the op breaks a declared rule."""
    prover = Prover(small.call, samples(small.call))
    for option in rule.options:
        way = _way(option)
        if prover.counts(way.ins, way.outs, way.divided) and not proved(prover, way):
            layouts = f"{' '.join(option.ins)} -> {' '.join(option.outs)}"
            raise GraphError(f"register_op({node.op})", layouts, "layouts in which the op gives the same are expected")


def _way(option: FoundOption) -> Way:
    return Way(tuple(map(parse_sbp, option.ins)), tuple(map(parse_sbp, option.outs)), option.divided)
