"""What every exporter promises, and what they share."""

from __future__ import annotations

from typing import Protocol

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan


class Exporter(Protocol):
    """Writes a plan in the form of another tool.

    The result maps file names to their content. It depends on the arguments alone: the same plan gives the same bytes.
    An exporter never writes something that is not the plan: what the target cannot express is an ``UnsupportedError``
    that names the op or parameter. Nothing is imported from the target, and torch is not imported at all.

    Args:
        plan: with its strategy and cluster.
        graph: the plan's graph, not bound; exporters that need it raise ``InputError`` without it.
        calibration: the one that the plan's costs come from; only exporters of costs need it.
    """

    def __call__(
        self, plan: Plan, graph: LogicalGraph | None = None, calibration: Calibration | None = None
    ) -> dict[str, str]: ...


def needed_graph(plan: Plan, graph: LogicalGraph | None, target: str) -> LogicalGraph:
    """The plan's graph; an ``InputError`` where it is missing or another one."""
    if graph is None:
        raise InputError("graph", None, f"{target} needs the plan's graph")
    return checked_graph(plan, graph)


def checked_graph(plan: Plan, graph: LogicalGraph) -> LogicalGraph:
    """The graph, if it is the plan's."""
    wanted = plan.document["provenance"].get("graph_hash")
    if graph.graph_hash != wanted:
        raise InputError("graph", graph.graph_hash, f"the plan's graph {wanted} is expected")
    return graph


def headline(plan: Plan) -> list[str]:
    """Where an export came from, as lines for comments; they hold no line breaks whatever the plan's names are."""
    document = plan.document
    return [
        f"{document['plan_id']} of model {document.get('model', '')!r} on cluster {plan.cluster.name!r}",
        f"written by autosbp {document['provenance'].get('version', '')!r}",
    ]
