"""What brings accepted jobs to their workflows, and jobs of dead workers to living ones.

``look`` compares the rows of unfinished jobs with the workflows, and is safe to repeat after a crash anywhere. Workers
sweep one after the other: whom one of them has resumed is not resumed by the next. A workflow that this process has taken
but does not run (it could not go on, say because it might have been taken for dead) is resumed too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import select

from service.db import Database
from service.jobs import _processes, _rows
from service.jobs._base import Kinds
from service.jobs._crash import Reach
from service.jobs._presence import Presence, living
from service.models import JobRow

if TYPE_CHECKING:
    from service.jobs._dbos import Engine

_log = logging.getLogger(__name__)
_SWEEPING = 0x61757463  # any number that all our processes use for PostgreSQL's advisory lock
_UNFINISHED = JobRow.state.in_(("queued", "running"))
_FORGET_EVERY = 15  # sweeps


@dataclass(slots=True)
class Sweeper:
    """One thread's.

    Args:
        engine: gives it, and opens it for the first job.
        active: ids of the jobs that this process runs now.
        every_s: between sweeps.
    """

    database: Database
    kinds: Kinds
    presence: Presence
    engine: Callable[[], Engine]
    active: Callable[[], Collection[str]]
    reach: Reach
    every_s: float
    _queued: set[str] = field(default_factory=set)
    _suspects: set[str] = field(default_factory=set)
    _due_s: float = float("-inf")
    _count: int = 0

    def look(self) -> None:
        """Sweep when it is time to, and queue a workflow for each accepted job."""
        if time.monotonic() >= self._due_s:
            with self.database.alone(_SWEEPING) as mine:
                if mine:
                    self._sweep()
            self._due_s = time.monotonic() + self.every_s
        with self.database.read() as session:
            waiting = select(JobRow.id, JobRow.kind).where(JobRow.state == "queued")
            rows = session.execute(waiting.order_by(JobRow.created_at, JobRow.id)).all()
        self._queued &= {job_id for job_id, _ in rows}
        for job_id, kind in rows:
            if job_id not in self._queued:
                self.reach(kind, "accepted")
                self.engine().enqueue(job_id, self._lane(kind))
                self._queued.add(job_id)
                self.reach(kind, "enqueued")

    def _sweep(self) -> None:
        is_first, self._count = self._count == 0, self._count + 1
        with self.database.read() as session:
            dead = self.presence.dead(session, all_others=self.database.is_embedded)
        with self.database.write() as session:
            for worker in dead:
                session.delete(worker)
            session.flush()
            alive = living(session)
            _rows.release(session, alive, "interrupted by a restart" if is_first else "its worker died")
            unfinished = session.scalar(select(JobRow.id).where(_UNFINISHED).limit(1))
        for worker in dead:  # after the fences, so that what is killed here is no failure of its job
            _log.warning("worker %s is dead; its jobs are queued again", worker.id)
            if worker.machine == _processes.machine():
                _processes.kill_tagged(worker.id)
        if unfinished is not None:
            engine = self.engine()
            self._resume(engine, alive)
            self._revive(engine)
            if self._count % _FORGET_EVERY == 0:
                engine.forget()

    def _resume(self, engine: Engine, alive: Collection[str]) -> None:
        """Queue the workflows again that nobody works on."""
        pending = engine.pending()
        active = self.active()
        lost = {each.job_id for each in pending if each.executor_id not in alive}
        idle = {each.job_id for each in pending if each.executor_id == self.presence.id} - set(active)
        lost |= idle & self._suspects  # twice in turn, since one that was only just taken is not active yet
        self._suspects = idle - lost
        if not lost:
            return
        with self.database.read() as session:
            found = session.execute(select(JobRow.id, JobRow.kind).where(JobRow.id.in_(lost))).all()
        kinds = {row.id: row.kind for row in found}
        for job_id in sorted(lost):
            _log.warning("job %s goes on", job_id)
            engine.resume([job_id], self._lane(kinds.get(job_id, "")))

    def _revive(self, engine: Engine) -> None:
        """Have a new workflow for jobs whose own has ended and that have not."""
        ended = engine.ended(sorted(self._queued)) if self._queued else []
        with self.database.read() as session:
            stuck = session.scalars(select(JobRow.id).where(JobRow.id.in_(ended), JobRow.state == "queued")).all()
        if stuck:
            engine.forget(list(stuck))
            self._queued -= set(stuck)

    def _lane(self, kind: str) -> str:
        return self.kinds[kind].lane if kind in self.kinds else "plan"
