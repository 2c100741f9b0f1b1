"""Choice of a lane's next job: start-time fair queueing over tenants (Goyal, Vin and Cheng, SIGCOMM 1996).

Each lane has a virtual clock, in seconds of work divided by weight. A tenant's next job gets as its start tag the
finish tag of the tenant's previous job, but at least the clock's current value, so that idle tenants save up no credit.
The tenant with the smallest start tag is next, with its oldest job. The clock then advances to that start tag. The
tenant's finish tag is computed from the job's expected time, and corrected to the actual time when the job ends.

Workers choose one at a time: under an advisory lock per lane on PostgreSQL, as the single writer on SQLite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from autosbp.service.jobs._base import LANES
from autosbp.service.models import JobRow, ShareRow, now
from autosbp.service.models._base import table_of

# plus the lane's index: keys of PostgreSQL's advisory locks, any numbers that all our processes share
_QUEUE_LOCK_KEY = 0x6175746A


@dataclass(frozen=True, slots=True)
class FairQueue:
    """Shares of tenants in a lane.

    Args:
        weights: a tenant of weight 2 gets twice the work of one of weight 1; tenants not listed have weight 1.
        most_running: limit of a tenant's running jobs in all processes; None is unlimited.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    max_running: int | None = None


def next_job(session: Session, lane: str, fairness: FairQueue) -> JobRow | None:
    """Choose and lock the lane's next job; None if no job may run."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _QUEUE_LOCK_KEY + LANES.index(lane)})
    for tenant in _tenants_by_start_tag(session, lane, fairness):
        free = (JobRow.state == "queued", JobRow.worker.is_(None), JobRow.lane == lane, JobRow.tenant == tenant)
        oldest = select(JobRow).where(*free).order_by(JobRow.created_at, JobRow.id).limit(1)
        if (row := session.scalar(oldest.with_for_update(skip_locked=True))) is not None:
            return row
    return None


def _tenants_by_start_tag(session: Session, lane: str, fairness: FairQueue) -> list[str]:
    """Tenants that have a job to run, in the order of their start tags."""
    jobs, shares = table_of(JobRow).c, table_of(ShareRow).c
    counted = select(jobs.tenant, jobs.state, func.count(), func.min(jobs.created_at))
    unfinished = jobs.state.in_(("queued", "running")) & (jobs.lane == lane)
    found = session.execute(counted.where(unfinished).group_by(jobs.tenant, jobs.state)).all()
    running = {tenant: count for tenant, state, count, _ in found if state == "running"}
    waiting = {tenant: oldest for tenant, state, _, oldest in found if state == "queued"}
    had = session.execute(select(shares.tenant, shares.began_s, shares.due_s).where(shares.id == lane)).all()
    clock_s = max((began_s for _, began_s, _ in had), default=0.0)
    due_s = {tenant: due for tenant, _, due in had}
    most = fairness.max_running
    free = [tenant for tenant in waiting if most is None or running.get(tenant, 0) < most]
    return sorted(free, key=lambda each: (max(clock_s, due_s.get(each, clock_s)), waiting[each], each))


def add_to_finish_tag(session: Session, row: JobRow, fairness: FairQueue) -> None:
    """Add a started job to its tenant's finish tag, by the expected time."""
    shares = table_of(ShareRow).c
    clock_s = session.scalar(select(func.max(shares.began_s)).where(shares.id == row.lane)) or 0.0
    share = session.get(ShareRow, (row.lane, row.tenant), with_for_update=True)
    if share is None:
        share = ShareRow(id=row.lane, tenant=row.tenant, due_s=clock_s)
        session.add(share)
    share.began_s, share.weight = max(clock_s, share.due_s), fairness.weights.get(row.tenant, 1.0)
    share.due_s = share.began_s + row.expected_s / share.weight
    session.flush()


def correct_finish_tag(session: Session, row: JobRow) -> None:
    """Correct the finish tag of a job's tenant from the expected to the actual time."""
    if row.started_at is None:
        return
    spare_s = row.expected_s - (now() - row.started_at).total_seconds()
    mine = (ShareRow.id == row.lane) & (ShareRow.tenant == row.tenant)
    due_s = ShareRow.due_s - spare_s / ShareRow.weight
    session.execute(update(ShareRow).where(mine).values(due_s=due_s), execution_options={"synchronize_session": False})
