"""Best step time over the course of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.plan.plan import OLDER_SCHEMA
from autosbp.service.models import JobRow
from autosbp.service.web.number_format import seconds, time_unit
from autosbp.service.web.presenters.page_parts import Chart, Table

_FEWEST = 2


def search_curve(plan: Mapping[str, Any], job: JobRow) -> Chart | None:
    """Chart of the search that found a plan.

    ``plan`` is the stored plan, ``job`` its search's job. None if the job has no curve or only one point.
    """
    points = (job.result or {}).get("curve") or []
    if len(points) < _FEWEST:
        return None
    bound_s = plan.get("lower_bound_s")
    unit = time_unit([*(best_s for _, best_s in points), bound_s])
    clock = time_unit([at_s for at_s, _ in points])
    data = {
        "points": [[at_s / clock.scale, best_s / unit.scale] for at_s, best_s in points],
        "bound": None if bound_s is None else bound_s / unit.scale,
        "x": f"Time ({clock.name})",
        "y": f"Best step ({unit.name})",
    }
    rows = tuple((clock.of(at_s), unit.of(best_s)) for at_s, best_s in points)
    ended_s, best_s = points[-1]
    proved = f"; proved lower bound: {seconds(bound_s)}" if bound_s is not None else ""
    spoken = f"From {seconds(points[0][1])} to {seconds(best_s)} in {seconds(ended_s)}{proved}."
    if plan.get("schema") == OLDER_SCHEMA:
        spoken += " These are step times without overlap, by which an earlier release searched."
    table = Table((f"After ({clock.name})", f"Best step ({unit.name})"), rows, 0)
    return Chart("search-curve", "curve", "Best step time over search time", spoken, data, table, "small")
