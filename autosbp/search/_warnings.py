"""What a plan says of ops that it cannot lay out: they run whole on every device."""

from __future__ import annotations

from collections import Counter

from autosbp.graph.found import FoundRule
from autosbp.graph.ir import LogicalGraph
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


def _splits(rule: FoundRule) -> bool:
    return any(state.startswith("S") for option in rule.options for state in (*option.ins, *option.outs))
