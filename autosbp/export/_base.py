"""Contract of an exporter, and helpers that exporters share."""

from __future__ import annotations

from typing import Protocol

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import planned_graph
from autosbp.plan.plan import Plan

NEAREST_TO = "nearest_to"
"""Field of an exported plan that replaces another one: the id of the original plan, and the loss in step time."""


class Exporter(Protocol):
    """Writes a plan in the format of another tool.

    An exporter is exact: if the tool cannot express the plan, it raises ``UnsupportedError``, which names the op or
    parameter. It imports neither the tool nor torch.

    Args:
        plan: the plan, with its strategy and cluster.
        graph: the plan's graph, with symbolic dims; exporters that need it raise ``InputError`` without it.
        calibration: the calibration of the plan's costs; only exporters of costs need it.

    Returns:
        Contents of files by name. They depend only on the arguments: the same plan gives the same bytes.
    """

    def __call__(
        self, plan: Plan, graph: LogicalGraph | None = None, calibration: Calibration | None = None
    ) -> dict[str, str]: ...


def required_graph(plan: Plan, graph: LogicalGraph | None, target: str) -> LogicalGraph:
    """The graph in the plan's precision; raises ``InputError`` if it is missing or not the plan's."""
    if graph is None:
        raise InputError("graph", None, f"exporting to {target} requires the plan's graph")
    return checked_graph(plan, graph)


def checked_graph(plan: Plan, graph: LogicalGraph) -> LogicalGraph:
    """The graph in the plan's precision; raises ``InputError`` if it is not the plan's."""
    return planned_graph(graph, plan.document)


def check_calibration(plan: Plan, calibration: Calibration | None) -> None:
    """Raise ``InputError`` unless the plan was made with this calibration."""
    wanted = plan.document["provenance"].get("calibration_id")
    given = None if calibration is None else calibration.calibration_id
    if wanted != given:
        limit = f"expected the plan's calibration {wanted}" if wanted else "the plan was made without a calibration"
        raise InputError("calibration", given, limit)


def provenance_lines(plan: Plan) -> list[str]:
    """Origin of an export, as comment lines; line breaks in names of models and clusters are escaped."""
    document = plan.document
    lines = [
        f"{document['plan_id']} of model {document.get('model', '')!r} on cluster {plan.cluster.name!r}",
        f"written by autosbp {document['provenance'].get('version', '')!r}",
    ]
    if NEAREST_TO in document:
        nearest = document[NEAREST_TO]
        lines.append(f"the nearest plan to {nearest['plan_id']!r} that this tool can express; {nearest['summary']!r}")
    return lines
