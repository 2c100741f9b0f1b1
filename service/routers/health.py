"""Routes /healthz, /readyz and /metrics."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Mapping

from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy.exc import SQLAlchemyError

import autosbp
from autosbp.service import database_damage
from autosbp.service.http import metrics
from autosbp.service.http.api_route import in_thread, make_route_class
from autosbp.service.http.query_parameters import PublicRoute
from autosbp.service.problem_details import ProblemError
from autosbp.service.request_state import AppState, PublicStateDep, StateDep
from autosbp.service.routers._base import documented_problems
from autosbp.service.services.jobs import counts

routes = APIRouter(tags=["health"], route_class=PublicRoute)
metrics_routes = APIRouter(
    tags=["health"], route_class=make_route_class(GET=("admin",)), responses=documented_problems(401, 403, 429, 503)
)
_log = logging.getLogger(__name__)
_ALMOST_FULL = "the disk is almost full"
_ARTIFACT_ERRORS = {
    errno.ENOSPC: "the disk of the artifacts folder is full",
    errno.EROFS: "the artifacts folder is on a read-only disk",
}
_UNWRITABLE = {errno.ENOSPC: _ALMOST_FULL, errno.EROFS: "the data folder is on a read-only disk"}


@routes.get("/healthz", summary="Liveness: whether the process responds")
async def get_health() -> dict[str, str]:
    """Returns ok whenever the process answers; needs no key."""
    return {"status": "ok", "version": autosbp.__version__}


@routes.get("/readyz", summary="Readiness: whether the service can work", responses=documented_problems(503))
async def get_readiness(state: PublicStateDep) -> dict[str, object]:
    """Returns ok if the database is readable with the newest schema, the job runner works, and the disk has room.

    Needs no key. Otherwise answers 503 with the failed checks.
    """
    checks = await state.health.run(lambda: {name: check(state) for name, check in _CHECKS.items()})
    wrong = {name: words for name, words in checks.items() if words != "ok"}
    if wrong:
        detail = "; ".join(wrong.values())
        raise ProblemError(503, "not-ready", "The service is not ready", detail, checks=checks)
    return {"status": "ok", "checks": checks}


@metrics_routes.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Metrics in the Prometheus text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
@in_thread
def get_metrics(state: StateDep) -> Response:
    """Returns metrics in the Prometheus text format.

    Admins of the operators' tenant get requests, durations, jobs and streams of all tenants together; no tenant is
    named. Other admins get the jobs and streams of their own tenant.
    """
    tenant = state.call.caller.tenant
    if tenant == state.settings.operator_tenant:
        return Response(state.metrics.text(), media_type=metrics.MEDIA_TYPE)
    own = state.metrics.text_of_tenant(lambda: counts(state.database), lambda: state.feed.num_followers_of(tenant))
    return Response(own, media_type=metrics.MEDIA_TYPE)


def _database(state: AppState) -> str:
    try:
        return database_damage.find_damage(state.database) or "ok"
    except SQLAlchemyError as error:
        _log.warning("the database does not respond: %s", error)
        return "the database does not respond"


def _runner(state: AppState) -> str:
    return state.runner.unhealthy_reason() or "ok"


def _disk(state: AppState) -> str:
    try:
        found = os.statvfs(state.settings.data_dir)
    except OSError as error:
        _log.warning("cannot read the data folder: %s", error)
        return "the data folder is not readable"
    try:
        with tempfile.TemporaryFile(dir=state.settings.data_dir):  # unnamed: leaves nothing behind
            pass
    except OSError as error:  # a failed disk may be read-only without the file system's flag
        _log.warning("the data folder is not writable: %s", error)
        return _UNWRITABLE.get(error.errno or 0, "the data folder is not writable")
    if (ailment := state.places.misplaced_storage()) is not None:
        return ailment
    if found.f_bavail * found.f_frsize < state.settings.min_free_bytes:
        return _ALMOST_FULL
    if (unkept := state.places.write_error()) is not None:
        _log.warning("the artifacts folder is not writable: %s", unkept)
        return _ARTIFACT_ERRORS.get(unkept.errno or 0, "the artifacts folder is not writable")
    return "ok"


_CHECKS: Mapping[str, Callable[[AppState], str]] = {"database": _database, "runner": _runner, "disk": _disk}
