"""Parts of a strategy's page that need its graph: the sharding map, the timeline, what is sent, and the downloads."""

from __future__ import annotations

import io
import zipfile
from typing import Annotated

from fastapi import Query, Request, Response

from service.edge.conditions import tag
from service.edge.route import slow
from service.problems import not_found
from service.routers.strategies import BaselineName, Target
from service.schemas._base import PathId
from service.services import insights, strategies
from service.state import State, StateDep
from service.web.memo import Memo
from service.web.presenters.parts import Chart
from service.web.presenters.sharding import ShardingMap, sharding_map
from service.web.presenters.timeline import events_chart, pipeline_chart
from service.web.presenters.traffic import traffic_view
from service.web.rendering import is_fragment, render_part
from service.web.route import pages

routes = pages()
MOST_ROWS = 200
_FIRST_ROWS = 120
_MOST_HITS = 50
_STAMP = (1980, 1, 1, 0, 0, 0)
_maps: Memo[ShardingMap] = Memo(8)
_charts: Memo[Chart] = Memo(16)
Text = Annotated[str, Query(max_length=200)]


@routes.get("/strategies/{strategy_id}/sharding")
@slow
def sharding(request: Request, state: StateDep, strategy_id: PathId, text: Text = "") -> Response:
    """Groups of layers that are alike; the first ones with their rows."""
    found = _map(state, strategy_id)
    return render_part(
        request,
        "sharding.html",
        "Sharding map",
        f"/strategies/{strategy_id}#sharding",
        map=found,
        path=f"/strategies/{strategy_id}/sharding",
        opened=_opened(found),
        most=MOST_ROWS,
        text=text,
        hits=found.found(text, _MOST_HITS) if text else None,
        most_hits=_MOST_HITS,
    )


@routes.get("/strategies/{strategy_id}/sharding/find")
@slow
def find(request: Request, state: StateDep, strategy_id: PathId, text: Text = "") -> Response:
    """Rows whose name has a text in it."""
    found = _map(state, strategy_id)
    return render_part(
        request,
        "sharding_found.html",
        "Ops and parameters",
        f"/strategies/{strategy_id}#sharding",
        map=found,
        text=text,
        hits=found.found(text, _MOST_HITS) if text else [],
        most_hits=_MOST_HITS,
    )


@routes.get("/strategies/{strategy_id}/sharding/{group}")
@slow
def rows(
    request: Request,
    state: StateDep,
    strategy_id: PathId,
    group: int,
    start: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """Rows of one group, some hundreds at a time."""
    found = _map(state, strategy_id)
    if not 0 <= group < len(found.groups):
        raise not_found("group of layers", str(group))
    path = f"/strategies/{strategy_id}/sharding"
    return render_part(
        request,
        "sharding_rows.html" if is_fragment(request) else "sharding_page.html",
        found.groups[group].title,
        path,
        map=found,
        path=path,
        group=found.groups[group],
        start=start,
        most=MOST_ROWS,
    )


@routes.get("/strategies/{strategy_id}/timeline")
@slow
def timeline(request: Request, state: StateDep, strategy_id: PathId) -> Response:
    """When everything of the step runs."""
    strategies.require_stored(state, strategy_id)
    chart = _charts.get(strategy_id, lambda: _timeline(state, strategy_id))
    return render_part(
        request, "timeline.html", "Timeline of a step", f"/strategies/{strategy_id}#timeline", chart=chart
    )


@routes.get("/strategies/{strategy_id}/traffic")
@slow
def traffic(request: Request, state: StateDep, strategy_id: PathId) -> Response:
    """Collectives of a step."""
    view = traffic_view(insights.traffic(state, strategy_id))
    return render_part(request, "traffic.html", "What a device sends", f"/strategies/{strategy_id}#traffic", view=view)


@routes.get("/strategies/{strategy_id}/plan.json")
def plan(state: StateDep, strategy_id: PathId) -> Response:
    """The plan as a file."""
    response = Response(strategies.text(state, strategy_id), media_type="application/json")
    response.headers["content-disposition"] = f'attachment; filename="{strategy_id}.json"'
    tag(response, strategy_id)
    return response


@routes.get("/strategies/{strategy_id}/exports/{target}")
@slow
def export(state: StateDep, strategy_id: PathId, target: Target, baseline: BaselineName = None) -> Response:
    """An export as a file, several files as an archive; equal strategies give equal bytes."""
    files = strategies.export(state, strategy_id, target, baseline)
    if len(files) == 1:
        ((name, content),) = files.items()
        body, media_type = content.encode(), "application/octet-stream"
    else:
        name, body, media_type = f"{target}.zip", _zipped(files), "application/zip"
    response = Response(body, media_type=media_type)
    response.headers["content-disposition"] = f'attachment; filename="{strategy_id}-{name}"'
    tag(response, strategy_id, target, baseline or "")
    return response


def _zipped(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _STAMP), content)
    return packed.getvalue()


def _map(state: State, strategy_id: str) -> ShardingMap:
    strategies.require_stored(state, strategy_id)

    def make() -> ShardingMap:
        one = strategies.subject(state, strategy_id)
        return sharding_map(insights.bound(one), one.plan.strategy)

    return _maps.get(strategy_id, make)


def _timeline(state: State, strategy_id: str) -> Chart:
    spans = insights.passes(state, strategy_id)
    if spans:
        return pipeline_chart(spans, 1 + max(span.stage for span in spans))
    return events_chart(insights.events(state, strategy_id))


def _opened(found: ShardingMap) -> set[int]:
    """As many of the first groups as a screen or two hold; at least one."""
    opened: set[int] = set()
    total = 0
    for group in found.groups:
        total += min(len(group.rows), MOST_ROWS)
        if opened and total > _FIRST_ROWS:
            break
        opened.add(group.index)
    return opened
