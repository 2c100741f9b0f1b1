"""/healthz and /readyz"""

from __future__ import annotations

import logging

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

import autosbp
from service.problems import ProblemError
from service.routers._base import problems
from service.state import StateDep

routes = APIRouter(tags=["health"])
_log = logging.getLogger(__name__)


@routes.get("/healthz", summary="Whether the process answers")
def health() -> dict[str, str]:
    """Always ok when it answers."""
    return {"status": "ok", "version": autosbp.__version__}


@routes.get("/readyz", summary="Whether the service can work", responses=problems(503))
def ready(state: StateDep) -> dict[str, str]:
    """Ok when the database answers with the newest schema and jobs are being worked on."""
    try:
        current = state.database.is_current()
    except SQLAlchemyError as error:
        _log.warning("the database does not answer: %s", error)
        raise _unready("the database does not answer") from None
    if not current:
        raise _unready("the database's schema is not the newest")
    if not state.runner.alive():
        raise _unready("no job is being worked on")
    return {"status": "ok"}


def _unready(detail: str) -> ProblemError:
    return ProblemError(503, "not-ready", "The service cannot work now", detail)
