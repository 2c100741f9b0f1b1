"""/healthz, /readyz and /metrics"""

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
from service.edge import metrics
from service.edge.route import guarded, slow
from service.problems import ProblemError
from service.routers._base import problems
from service.services.jobs import counts
from service.state import SharedDep, State, StateDep

routes = APIRouter(tags=["health"])
measured = APIRouter(tags=["health"], route_class=guarded(GET=("admin",)), responses=problems(401, 403, 429, 503))
_log = logging.getLogger(__name__)
_ALMOST_FULL = "the disk is almost full"
_UNKEPT = {
    errno.ENOSPC: "the disk of the folder of artifacts is full",
    errno.EROFS: "the folder of artifacts is on a read-only disk",
}
_UNWRITABLE = {errno.ENOSPC: _ALMOST_FULL, errno.EROFS: "the data folder is on a read-only disk"}


@routes.get("/healthz", summary="Whether the process answers")
def health() -> dict[str, str]:
    """Always ok when it answers; needs no key."""
    return {"status": "ok", "version": autosbp.__version__}


@routes.get("/readyz", summary="Whether the service can work", responses=problems(503))
def ready(state: SharedDep) -> dict[str, object]:
    """Ok when the database answers with the newest schema, jobs are being worked on, and the disk has room; needs no key."""
    checks = {name: check(state) for name, check in _CHECKS.items()}
    wrong = {name: words for name, words in checks.items() if words != "ok"}
    if wrong:
        detail = "; ".join(wrong.values())
        raise ProblemError(503, "not-ready", "The service cannot work now", detail, checks=checks)
    return {"status": "ok", "checks": checks}


@measured.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=Response,
    responses={200: {"description": "The text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@slow
def read_metrics(state: StateDep) -> Response:
    """For admins of the operators' tenant: requests, durations, jobs and streams of all tenants, none of which is named. For
    others: jobs and streams of their own tenant."""
    tenant = state.call.caller.tenant
    if tenant == state.settings.operator_tenant:
        return Response(state.metrics.text(), media_type=metrics.MEDIA_TYPE)
    own = state.metrics.text_of_tenant(lambda: counts(state.database), lambda: state.feed.num_followers_of(tenant))
    return Response(own, media_type=metrics.MEDIA_TYPE)


def _database(state: State) -> str:
    try:
        return "ok" if state.database.is_current() else "the database's schema is not the newest"
    except SQLAlchemyError as error:
        _log.warning("the database does not answer: %s", error)
        return "the database does not answer"


def _runner(state: State) -> str:
    return "ok" if state.runner.alive() else "no job is being worked on"


def _disk(state: State) -> str:
    try:
        found = os.statvfs(state.settings.data_dir)
    except OSError as error:
        _log.warning("the data folder cannot be read: %s", error)
        return "the data folder cannot be read"
    try:
        with tempfile.TemporaryFile(dir=state.settings.data_dir):  # without a name: nothing is left of it
            pass
    except OSError as error:  # a disk that failed may be read-only without a flag that says so
        _log.warning("nothing can be written to the data folder: %s", error)
        return _UNWRITABLE.get(error.errno or 0, "the data folder cannot be written to")
    if (ailment := state.places.ailment()) is not None:
        return ailment
    if found.f_bavail * found.f_frsize < state.settings.min_free_bytes:
        return _ALMOST_FULL
    if (unkept := state.places.unwritable()) is not None:
        _log.warning("nothing can be written to the folder of artifacts: %s", unkept)
        return _UNKEPT.get(unkept.errno or 0, "the folder of artifacts cannot be written to")
    return "ok"


_CHECKS: Mapping[str, Callable[[State], str]] = {"database": _database, "runner": _runner, "disk": _disk}
