"""Deletion of a resource, alone or with all its dependents, in one transaction.

Files are deleted after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from autosbp.service.auth.authentication import check_scope
from autosbp.service.auth.caller import Caller
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.models import (
    AnalysisRow,
    ArtifactRow,
    Base,
    CalibrationRow,
    ClusterRow,
    JobRow,
    ModelRow,
    SearchRow,
    StrategyRow,
    TrialRow,
    table_of,
)
from autosbp.service.problem_details import ProblemError, conflict
from autosbp.service.request_state import AppState
from autosbp.service.services import deleted_files, jobs
from autosbp.service.services._queries import require
from autosbp.service.services.dependents import IdsByKind, chunks, closure, delete_rows

Row = TypeVar("Row", bound=Base)
_TRIES = 3
_SHOWN = 5
_MAX_FILES_PER_REQUEST = 64  # files deleted within a request; maintenance deletes the others
_SCOPES: dict[type[Base], str] = {
    **dict.fromkeys((ModelRow, ClusterRow, SearchRow, StrategyRow, AnalysisRow), "search"),
    CalibrationRow: "calibrate",
    TrialRow: "trial",
}
"""Scope that creating, and so deleting, a resource needs; jobs and artifacts need that of the job's kind."""


def remove(
    state: AppState, kind: type[Row], identifier: str, what: str, check: Callable[[Row], None], *, cascade: bool
) -> None:
    """Delete a resource.

    Args:
        state: of the request.
        kind: row class of the resource.
        identifier: its id.
        what: its name in errors.
        check: may refuse by raising.
        cascade: whether to delete its dependents as well.

    Raises:
        ProblemError: 404; 403 if the caller may not delete all of it; 409 for dependents without ``cascade`` and for
            jobs that have not ended.
    """
    for _ in range(_TRIES):
        try:
            with state.database.write() as session:
                root = require(session, kind, identifier, what, lock=True)
                check(root)
                found = closure(session, root)
                _check_scopes(session, state.call.caller, found)
                _check_ended(session, found)
                if not cascade:
                    _check_no_dependents(root, what, found)
                places = delete_rows(session, found)
            break
        except IntegrityError:  # a new dependent appeared meanwhile
            continue
    else:
        raise conflict(f"{what} {identifier!r} is in use; try again later")
    with suppress(SQLAlchemyError):  # maintenance deletes them then
        deleted_files.delete_files(state.settings, state.database, places[:_MAX_FILES_PER_REQUEST])


def _check_scopes(session: Session, caller: Caller, found: IdsByKind) -> None:
    needed = {_SCOPES[kind] for kind in found if kind in _SCOPES}
    own = set(found.get(JobRow, ()))
    for chunk in chunks(found.get(ArtifactRow, ())):
        own |= set(session.scalars(select(ArtifactRow.job_id).where(ArtifactRow.id.in_(chunk))))
    for chunk in chunks(own):
        kinds = session.scalars(select(JobRow.kind).where(JobRow.id.in_(chunk)).distinct())
        needed |= {jobs.SCOPE_OF.get(each, "admin") for each in kinds}
    for scope in sorted(needed):
        check_scope(caller, (scope,))


def _check_ended(session: Session, found: IdsByKind) -> None:
    """Raise 409 if jobs that use the rows have not ended."""
    unfinished: list[str] = []
    for chunk in chunks(found.get(JobRow, ())):
        unfinished += session.scalars(select(JobRow.id).where(JobRow.id.in_(chunk), JobRow.state.not_in(FINAL_STATES)))
    measuring = select(JobRow).where(JobRow.kind == "calibrate", JobRow.state.not_in(FINAL_STATES))
    models, clusters = found.get(ModelRow, set()), found.get(ClusterRow, set())
    if models or clusters:
        for job in session.scalars(measuring):
            if job.payload["cluster_id"] in clusters or models.intersection(job.payload["model_ids"]):
                unfinished.append(job.id)
    if unfinished:
        raise _refusal(f"{_listed('job', unfinished)} still active; cancel first", {"jobs": unfinished})


def _check_no_dependents(root: Base, what: str, found: IdsByKind) -> None:
    """Raise 409 with the dependents if there are any."""
    own = getattr(root, "job_id", None) if type(root) is not ArtifactRow else None
    rest = {kind: sorted(ids - {root.id} if kind is type(root) else ids) for kind, ids in found.items()}
    if own is not None:
        rest[JobRow].remove(own)
    dependents = {table_of(kind).name: ids for kind, ids in rest.items() if ids}
    if dependents:
        words = ", ".join(_listed(name, ids) for name, ids in dependents.items())
        detail = f"{what} {root.id!r} is used by {words}; delete them first, or use ?cascade=true"
        raise _refusal(detail, dependents)


def _listed(name: str, ids: Sequence[str]) -> str:
    more = "" if len(ids) <= _SHOWN else ", ..."
    return f"{len(ids)} {name} ({', '.join(ids[:_SHOWN])}{more})"


def _refusal(detail: str, dependents: dict[str, list[str]]) -> ProblemError:
    refusal = conflict(detail)
    refusal.problem["dependents"] = {
        name: {"count": len(ids), "ids": ids[:_SHOWN]} for name, ids in sorted(dependents.items())
    }
    return refusal
