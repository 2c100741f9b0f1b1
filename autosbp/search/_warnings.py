"""What a plan says of itself: ops that run whole on every device, and what no runtime here runs yet."""

from __future__ import annotations

from collections import Counter

from autosbp.graph.found import FoundRule
from autosbp.graph.ir import LogicalGraph
from autosbp.pipeline import SCHEDULES
from autosbp.plan import Strategy
from autosbp.sbp.rules import RULES

UNKNOWN = "has no sharding rule, and its layouts were not looked for"
SUMS = "cannot be split, only pass on partial sums"


def replication_warnings(graph: LogicalGraph) -> list[str]:
    """A sentence for each op that depends on a parameter and has no layout that splits a tensor."""
    found: Counter[tuple[str, str]] = Counter()
    for node in graph.nodes:
        if node.name in graph.computed and node.op not in RULES:
            rule = graph.rules.get(node.rule)
            if rule is None or not _splits(rule):
                found[node.op, UNKNOWN if rule is None else rule.reason or SUMS] += 1
    return [
        f"{op} ({count} node{'s' if count > 1 else ''}) {reason}: every device runs it whole."
        for (op, reason), count in found.items()
    ]


def runtime_warnings(strategy: Strategy) -> list[str]:
    """A sentence for what a trial refuses."""
    if strategy.pipeline is None or SCHEDULES[strategy.pipeline.schedule].runs:
        return []
    return [f"No runtime here runs the schedule {strategy.pipeline.schedule} yet: the plan is a prediction alone."]


def _splits(rule: FoundRule) -> bool:
    return any(state.startswith("S") for option in rule.options for state in (*option.ins, *option.outs))
