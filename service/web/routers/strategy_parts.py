"""Parts of a strategy's page that need its graph: sharding map, timeline, communication, downloads."""

from __future__ import annotations

import io
import zipfile
from typing import Annotated

from fastapi import Query, Request, Response

from autosbp.service.http.api_route import in_thread
from autosbp.service.http.etags import set_etag
from autosbp.service.problem_details import not_found
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.routers.strategies import BaselineName, Target
from autosbp.service.schemas._base import PathId
from autosbp.service.services import strategies, strategy_timeline
from autosbp.service.web.lru_cache import LruCache
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters.page_parts import Chart
from autosbp.service.web.presenters.sharding_map import ShardingMap, sharding_map
from autosbp.service.web.presenters.timeline import events_chart, pipeline_chart
from autosbp.service.web.presenters.traffic import traffic_view
from autosbp.service.web.rendering import is_fragment, render_part

routes = page_router()
MOST_ROWS = 200
_FIRST_ROWS = 120
_MOST_HITS = 50
_STAMP = (1980, 1, 1, 0, 0, 0)
_maps: LruCache[ShardingMap] = LruCache(8)
_charts: LruCache[Chart] = LruCache(16)
Text = Annotated[str, Query(max_length=200)]


@routes.get("/strategies/{strategy_id}/sharding")
@in_thread
def sharding(request: Request, state: StateDep, strategy_id: PathId, text: Text = "") -> Response:
    """Shows the groups of equal layers, the first ones opened."""
    found = _map(state, strategy_id)
    return render_part(
        request,
        "sharding.html",
        "Sharding map",
        f"/strategies/{strategy_id}#sharding",
        map=found,
        path=f"/strategies/{strategy_id}/sharding",
        opened=_initially_open_groups(found),
        most=MOST_ROWS,
        text=text,
        hits=found.found(text, _MOST_HITS) if text else None,
        most_hits=_MOST_HITS,
    )


@routes.get("/strategies/{strategy_id}/sharding/find")
@in_thread
def find(request: Request, state: StateDep, strategy_id: PathId, text: Text = "") -> Response:
    """Shows rows whose name contains a text."""
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
@in_thread
def rows(
    request: Request,
    state: StateDep,
    strategy_id: PathId,
    group: int,
    start: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """Shows rows of one group, at most ``MOST_ROWS`` at a time."""
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
@in_thread
def timeline(request: Request, state: StateDep, strategy_id: PathId) -> Response:
    """Shows the timeline of the step."""
    strategies.require_stored(state, strategy_id)
    chart = _charts.get(strategy_id, lambda: _timeline(state, strategy_id))
    return render_part(request, "timeline.html", "Step timeline", f"/strategies/{strategy_id}#timeline", chart=chart)


@routes.get("/strategies/{strategy_id}/traffic")
@in_thread
def traffic(request: Request, state: StateDep, strategy_id: PathId) -> Response:
    """Shows the collectives of a step."""
    view = traffic_view(strategy_timeline.traffic(state, strategy_id))
    return render_part(request, "traffic.html", "Traffic per device", f"/strategies/{strategy_id}#traffic", view=view)


@routes.get("/strategies/{strategy_id}/plan.json")
def plan(state: StateDep, strategy_id: PathId) -> Response:
    """Returns the plan as a file."""
    response = Response(strategies.text(state, strategy_id), media_type="application/json")
    response.headers["content-disposition"] = f'attachment; filename="{strategy_id}.json"'
    set_etag(response, strategy_id)
    return response


@routes.get("/strategies/{strategy_id}/exports/{target}")
@in_thread
def export(state: StateDep, strategy_id: PathId, target: Target, baseline: BaselineName = None) -> Response:
    """Returns an export as a file, or several files as a zip archive; equal strategies give equal bytes."""
    files = strategies.export(state, strategy_id, target, baseline)
    if len(files) == 1:
        ((name, content),) = files.items()
        body, media_type = content.encode(), "application/octet-stream"
    else:
        name, body, media_type = f"{target}.zip", _zipped(files), "application/zip"
    response = Response(body, media_type=media_type)
    response.headers["content-disposition"] = f'attachment; filename="{strategy_id}-{name}"'
    set_etag(response, strategy_id, target, baseline or "")
    return response


def _zipped(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _STAMP), content)
    return packed.getvalue()


def _map(state: AppState, strategy_id: str) -> ShardingMap:
    strategies.require_stored(state, strategy_id)

    def make() -> ShardingMap:
        one = strategies.load_context(state, strategy_id)
        return sharding_map(strategy_timeline.bind_microbatch(one), one.plan.strategy)

    return _maps.get(strategy_id, make)


def _timeline(state: AppState, strategy_id: str) -> Chart:
    spans = strategy_timeline.passes(state, strategy_id)
    if spans:
        return pipeline_chart(spans, 1 + max(span.stage for span in spans))
    return events_chart(strategy_timeline.events(state, strategy_id))


def _initially_open_groups(found: ShardingMap) -> set[int]:
    """Indices of the first groups that fit on a screen or two; at least one."""
    opened: set[int] = set()
    total = 0
    for group in found.groups:
        total += min(len(group.rows), MOST_ROWS)
        if opened and total > _FIRST_ROWS:
            break
        opened.add(group.index)
    return opened
