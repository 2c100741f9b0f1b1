"""How the best step time fell while it was searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.plan import EARLIER_SCHEMA
from service.models import JobRow
from service.web.presenters.parts import Chart, Table
from service.web.text import seconds, time_unit

_FEWEST = 2


def search_curve(plan: Mapping[str, Any], job: JobRow) -> Chart | None:
    """Of the job that found the plan, as it is stored; None where it kept no curve, or found one strategy only."""
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
    proved = f"; the proved bound is {seconds(bound_s)}" if bound_s is not None else ""
    spoken = f"From {seconds(points[0][1])} to {seconds(best_s)} in {seconds(ended_s)}{proved}."
    if plan.get("schema") == EARLIER_SCHEMA:
        spoken += " These are sums in which nothing overlaps, by which an earlier release searched."
    table = Table((f"After ({clock.name})", f"Best step ({unit.name})"), rows, 0)
    return Chart("search-curve", "curve", "Best step found so far", spoken, data, table, "small")
