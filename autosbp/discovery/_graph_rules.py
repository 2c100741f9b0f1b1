"""``discover_rules``: adds declared or discovered rules for all ops of a graph that the rule table lacks.

Runs after the import passes. The results are stored in the graph as data, so that planner, service and executor need
neither torch nor the op to know its layouts.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

from autosbp.discovery._cache import key_of, read_cached, write_cached
from autosbp.discovery._call import Call, Tensor, make_call
from autosbp.discovery._child_process import run_trials
from autosbp.discovery._declared_rules import declared_rule
from autosbp.discovery._op_flops import forward_flops, saved_tensors, saved_workspace
from autosbp.discovery._prover import Prover, SplitWay
from autosbp.discovery._samples import RandomOp, Undiscoverable, samples
from autosbp.discovery._search import as_float64, holds_in_parts, search
from autosbp.discovery._stand_ins import StandIn, stand_in, with_dtypes
from autosbp.errors import GraphError
from autosbp.graph.discovered_rules import MAX_REASON, DiscoveredOption, DiscoveredRule
from autosbp.graph.ir import DType, LogicalGraph, Node, Ref, TensorMeta
from autosbp.graph.to_fx import resolve_op, torch_dtype
from autosbp.sbp.layout import parse_sbp
from autosbp.sbp.rules import RULES

BATCHES = (37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127)
"""Candidate batch sizes: the first that divides no other size marks the batch, as only its own multiples contain it."""
REAL_BATCH = 12
"""Batch size for runs of an op at its real sizes."""


def discover_rules(graph: LogicalGraph, *, use_cache: bool = True) -> LogicalGraph:
    """``graph`` with a rule for each computed node whose op has none in the table.

    If discovery fails, the rule has no layouts and says why: the op stays replicated. Data needs no layouts, but custom
    ops that draw random data have a rule that says so.

    Raises:
        InputError: the op violates a declared rule.
    """
    bound = graph.bind(**dict.fromkeys(graph.symbols, _batch(graph)))
    real = graph.bind(**dict.fromkeys(graph.symbols, REAL_BATCH))
    keys: dict[str, Hashable] = {}
    wanted: dict[Hashable, tuple[Node, Node]] = {}
    for node, at_size, at_real in zip(graph.nodes, bound.nodes, real.nodes, strict=True):
        computed = node.name in graph.parameter_dependent
        if node.op not in RULES and not node.rule and (computed or not node.op.startswith("aten.")):
            keys[node.name] = computed, _identity(bound, at_size)
            wanted.setdefault(keys[node.name], (at_size, at_real))
    trials = [partial(_rule, (bound, at_size), (real, at_real), use_cache) for at_size, at_real in wanted.values()]
    rules = dict(graph.rules)
    names: dict[Hashable, str] = {}
    for (key, (_, node)), rule in zip(wanted.items(), run_trials(trials), strict=True):
        names[key] = _free_name(node.op, rules) if node.name in graph.parameter_dependent or rule.random else ""
        rules |= {names[key]: rule} if names[key] else {}
    nodes = tuple(replace(node, rule=names[keys[node.name]]) if node.name in keys else node for node in graph.nodes)
    return replace(graph, nodes=nodes, rules=rules) if rules else graph


def _batch(graph: LogicalGraph) -> int:
    sizes = {dim for metas in graph.metas.values() for meta in metas for dim in meta.shape if isinstance(dim, int)}
    return next((batch for batch in BATCHES if all(size % batch or not size for size in sizes)), REAL_BATCH)


def _free_name(op: str, rules: dict[str, DiscoveredRule]) -> str:
    return next(name for name in (op, *(f"{op}/{at}" for at in range(2, len(rules) + 3))) if name not in rules)


def _identity(bound: LogicalGraph, node: Node) -> Hashable:
    """Key that is equal for nodes that share a rule."""
    blank = node.map_args(lambda arg: _tensor(bound, arg) or (type(arg).__name__, arg))
    return node.op, blank.args, tuple(blank.kwargs.items()), node.outputs


def _tensor(bound: LogicalGraph, arg: Any) -> Tensor | None:
    if not isinstance(arg, Ref):
        return None
    meta: TensorMeta = bound.meta(arg)
    high = next((leaf.high for leaf in bound.inputs if leaf.name == arg.name), None)
    return Tensor(meta.sizes, torch_dtype(meta.dtype), bound.has_gradient(arg), high)


def node_call(bound: LogicalGraph, node: Node) -> Call:
    """The call of a bound graph's node."""
    plain = node.map_args(lambda arg: torch_dtype(arg.name) if isinstance(arg, DType) else arg)
    return make_call(resolve_op(node.op), plain.args, plain.kwargs, lambda arg: _tensor(bound, arg))


def _rule(unreal: tuple[LogicalGraph, Node], real: tuple[LogicalGraph, Node], use_cache: bool) -> DiscoveredRule:
    """The rule of a node, bound at a batch that equals no other size and at one that divides evenly."""
    node = real[1]
    declared = declared_rule(*real)
    try:
        calls = node_call(*unreal), node_call(*real)
    except GraphError as error:
        return declared or DiscoveredRule((), f"cannot be run on this machine: {error}"[:MAX_REASON])
    outputs, last = ([meta.sizes for meta in one[1].outputs] for one in (unreal, real))
    failure = Undiscoverable("")
    for change in (as_float64, lambda call: call):
        try:
            small = stand_in(change(calls[0]), outputs, (change(calls[1]), last))
        except RandomOp as error:
            return declared or DiscoveredRule((), str(error)[:MAX_REASON], random=True)
        except Undiscoverable as error:
            failure = error
            continue
        plain = with_dtypes(small, calls[0])
        try:
            if declared is None:
                return discover_rule(small, use_cache, plain)
            check_declared(declared, node, small)
        except Undiscoverable as error:  # it takes the values of one sample, but not of all
            failure = error
            continue
        return _with_saved_tensors(declared, plain)
    return declared or DiscoveredRule((), str(failure)[:MAX_REASON])


def _with_saved_tensors(rule: DiscoveredRule, plain: StandIn) -> DiscoveredRule:
    """Add the tensors that autograd saves; unchanged if the call fails on samples in its own dtypes."""
    try:
        saved = saved_tensors(plain.call, samples(plain.call, 1)[0])
    except Undiscoverable:
        return rule
    workspace, sizes = saved_workspace(plain)
    return replace(rule, saved=saved, workspace=workspace, workspace_sizes=sizes)


def discover_rule(small: StandIn, use_cache: bool = True, plain: StandIn | None = None) -> DiscoveredRule:
    """The rule of a stand-in's call: from the cache if it still holds, else discovered.

    ``plain`` is the stand-in in the graph's dtypes, which determine what autograd saves.
    """
    plain = plain or small
    calls = [call for call in (small.call, small.confirmation_call, plain.call) if call is not None]
    key = key_of(*calls) if use_cache else None
    prover = Prover(small.call, samples(small.call))
    cached = read_cached(key) if key is not None else None
    if (
        cached is not None
        and cached.options
        and all(holds_in_parts(prover, _split_way(option)) for option in cached.options)
    ):
        return cached
    found = search(prover)
    options = [
        DiscoveredOption(tuple(map(str, option.ins)), tuple(map(str, option.outs)), option.divided)
        for option in found.options
    ]
    if small.confirmation_call is not None:
        options = _confirmed(small.confirmation_call, options)
    reason = found.reason or ("" if options else "has layouts only for some sizes")
    flops, sizes = forward_flops(small)
    rule = _with_saved_tensors(DiscoveredRule(tuple(options), reason, flops=flops, sizes=sizes), plain)
    if key is not None and options and found.complete:
        write_cached(key, rule)
    return rule


def _confirmed(call: Call, options: list[DiscoveredOption]) -> list[DiscoveredOption]:
    """The options that hold at the sizes of ``call``, too."""
    prover = Prover(call, samples(call, 1))
    return [option for option in options if holds_in_parts(prover, _split_way(option))]


def check_declared(rule: DiscoveredRule, node: Node, small: StandIn) -> None:
    """Raise ``GraphError`` if the op violates a declared rule."""
    prover = Prover(small.call, samples(small.call))
    for option in rule.options:
        way = _split_way(option)
        if prover.counts(way.ins, way.outs, way.divided) and not holds_in_parts(prover, way):
            layouts = f"{' '.join(option.ins)} -> {' '.join(option.outs)}"
            raise GraphError(f"register_op({node.op})", layouts, "the op gives other results in these layouts")


def _split_way(option: DiscoveredOption) -> SplitWay:
    return SplitWay(tuple(map(parse_sbp, option.ins)), tuple(map(parse_sbp, option.outs)), option.divided)
