"""Dependents of a resource, derived from the tables' foreign keys.

    model, cluster <- calibration <- search, strategy <- analysis, trial        job <- its resource, its artifacts

A search, analysis, trial or measured calibration has its own job, and both are deleted together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

from sqlalchemy import Text, cast, delete, select, true
from sqlalchemy.orm import Session

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
from autosbp.service.services import deleted_files

IdsByKind = dict[type[Base], set[str]]
"""Ids by row class."""
_CHUNK = 500
RESOURCES: tuple[type[Base], ...] = (
    *(ModelRow, ClusterRow, CalibrationRow, StrategyRow, SearchRow, AnalysisRow, TrialRow, ArtifactRow, JobRow),
)


def closure(session: Session, root: Base) -> IdsByKind:
    """Ids of a row and of all rows that cannot exist without it, by class; locked if the database has row locks."""
    found: IdsByKind = defaultdict(set)
    fresh: IdsByKind = {type(root): {root.id}}
    while fresh:
        following: IdsByKind = defaultdict(set)
        for kind, ids in fresh.items():
            new = ids - found[kind]
            found[kind] |= new
            for other, others in _referring_rows(session, kind, new):
                following[other] |= others - found[other]
        fresh = {kind: ids for kind, ids in following.items() if ids}
    return {kind: ids for kind, ids in found.items() if ids}


def _referring_rows(session: Session, kind: type[Base], ids: Collection[str]) -> Iterator[tuple[type[Base], set[str]]]:
    """Rows that refer to some rows, and the jobs of the latter."""
    for other, column in _references(kind):
        for chunk in chunks(ids):
            query = select(other.id).where(getattr(other, column).in_(chunk)).order_by(other.id)
            yield other, set(session.scalars(query.with_for_update()))
    # a set of strategies is deleted with its models or clusters, which also lead to the searches
    if kind is StrategyRow and len(ids) == 1:
        named = cast(SearchRow.front, Text).contains(f'"{next(iter(ids))}"', autoescape=True)
        yield SearchRow, set(session.scalars(select(SearchRow.id).where(named)))
    if hasattr(kind, "job_id") and kind is not ArtifactRow:
        own: Any = kind
        for chunk in chunks(ids):
            owned = select(own.job_id).where(kind.id.in_(chunk), own.job_id.is_not(None))
            yield JobRow, set(session.scalars(owned))


@cache
def _references(kind: type[Base]) -> tuple[tuple[type[Base], str], ...]:
    """Row classes with the column that refers to ``kind``."""
    table = table_of(kind)
    found = [
        (other, constraint.column_keys[0])
        for other in RESOURCES
        for constraint in table_of(other).foreign_key_constraints
        if constraint.referred_table is table
    ]
    return (*found, *(((SearchRow, "start_id"),) if kind is StrategyRow else ()))


def chunks(ids: Collection[str]) -> Iterator[list[str]]:
    """Split the ids into parts that fit one statement."""
    ordered = sorted(ids)
    for at in range(0, len(ordered), _CHUNK):
        yield ordered[at : at + _CHUNK]


def delete_rows(session: Session, found: IdsByKind) -> list[str]:
    """Delete rows, referring ones first, and record their files for deletion; return the files' places."""
    places = [f"trials/{each}" for each in sorted(found.get(TrialRow, ()))]
    places += [f"jobs/{each}" for each in sorted(found.get(JobRow, ()))]
    for chunk in chunks(found.get(ArtifactRow, ())):
        kept = session.execute(select(ArtifactRow.job_id, ArtifactRow.name).where(ArtifactRow.id.in_(chunk)))
        places += [f"artifacts/{row.job_id}/{row.name}" for row in kept if row.job_id not in found.get(JobRow, ())]
    deleted_files.record_for_deletion(session, places)
    order = [table.name for table in reversed(Base.metadata.sorted_tables)]
    for kind in sorted(found, key=lambda each: order.index(each.__tablename__)):
        versions = CalibrationRow.root_id != CalibrationRow.id  # versions before the roots that they refer to
        for which in (versions, true()) if kind is CalibrationRow else (true(),):
            for chunk in chunks(found[kind]):
                gone = delete(kind).where(kind.id.in_(chunk), which)
                session.execute(gone.execution_options(synchronize_session=False))
    return places
