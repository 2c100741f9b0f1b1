"""The contract of every exporter, and helpers that exporters share."""

from __future__ import annotations

from typing import Protocol

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import planned_graph
from autosbp.plan.plan import Plan

NEAREST_TO = "nearest_to"
"""Member of the document of a plan that is exported in place of another one: that one's id, and the loss."""


class Exporter(Protocol):
    """Writes a plan in the format of another tool.

    Returns a map from file names to their content, which depends on the arguments alone: the same plan gives the same
    bytes. An exporter writes nothing that differs from the plan: it raises ``UnsupportedError``, which names the op or
    parameter, for whatever the target cannot express. It imports neither the target nor torch.

    Args:
        plan: the plan, with its strategy and cluster.
        graph: the plan's graph, with symbolic dims; exporters that need it raise ``InputError`` without it.
        calibration: the calibration of the plan's costs; only exporters of costs need it.
    """

    def __call__(
        self, plan: Plan, graph: LogicalGraph | None = None, calibration: Calibration | None = None
    ) -> dict[str, str]: ...


def required_graph(plan: Plan, graph: LogicalGraph | None, target: str) -> LogicalGraph:
    """The plan's graph; raise ``InputError`` if it is missing or not the plan's."""
    if graph is None:
        raise InputError("graph", None, f"exporting to {target} requires the plan's graph")
    return checked_graph(plan, graph)


def checked_graph(plan: Plan, graph: LogicalGraph) -> LogicalGraph:
    """The graph in the plan's precision; raise ``InputError`` if it is not the plan's."""
    return planned_graph(graph, plan.document)


def check_calibration(plan: Plan, calibration: Calibration | None) -> None:
    """Raise ``InputError`` unless the calibration is the one that made the plan's costs."""
    wanted = plan.document["provenance"].get("calibration_id")
    given = None if calibration is None else calibration.calibration_id
    if wanted != given:
        limit = f"expected the plan's calibration {wanted}" if wanted else "the plan was made without a calibration"
        raise InputError("calibration", given, limit)


def provenance_lines(plan: Plan) -> list[str]:
    """Origin of an export, as comment lines; they hold no line breaks, whatever the plan's names are."""
    document = plan.document
    lines = [
        f"{document['plan_id']} of model {document.get('model', '')!r} on cluster {plan.cluster.name!r}",
        f"written by autosbp {document['provenance'].get('version', '')!r}",
    ]
    if NEAREST_TO in document:
        nearest = document[NEAREST_TO]
        lines.append(f"the nearest to {nearest['plan_id']!r} that can be expressed; {nearest['summary']!r}")
    return lines
