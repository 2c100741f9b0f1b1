"""Feed of job changes for event streams: one query for all followers."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from autosbp.service.auth.caller import Caller
from autosbp.service.db import Database
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.models import JobRow

if TYPE_CHECKING:
    from threading import Event

_log = logging.getLogger(__name__)
_POLL_S = 0.2
_HEARTBEAT_S = 15.0
_CHUNK = 500
_NOT_ADMITTED_EVENT = ": the API key of this stream is no longer valid, or an API key is now required\n\n"


@dataclass(frozen=True, slots=True)
class JobChange:
    """The current state of a job; ``text`` is the event sent to its followers."""

    revision: int
    is_final: bool
    text: str


class Follower:
    """An observer that has seen a job up to ``revision``; ``change`` is a newer state, if there is one."""

    change: JobChange | None = None

    def __init__(self, job_id: str, revision: int, caller: Caller) -> None:
        self.job_id, self.revision, self.caller = job_id, revision, caller
        self.wake = asyncio.Event()


class ChangeFeed:
    """Polls followed jobs and notifies their followers. Belongs to one event loop.

    While anyone follows a job, one query runs five times a second, so that jobs of other processes are covered as well.

    Args:
        database: with the jobs.
        encode: formats a job's event, once for all followers.
        stands: whether a caller is still admitted; otherwise its streams end.
    """

    def __init__(self, database: Database, encode: Callable[[JobRow], str], stands: Callable[[Caller], bool]) -> None:
        self._database, self._encode, self._is_still_admitted = database, encode, stands
        self._followers: dict[str, set[Follower]] = defaultdict(set)
        self._polling: asyncio.Task[None] | None = None

    @property
    def num_followers(self) -> int:
        """Current number of followers."""
        return sum(map(len, self._followers.values()))

    def num_followers_of(self, tenant: str) -> int:
        """Current number of a tenant's followers."""
        return sum(each.caller.tenant == tenant for found in self._followers.values() for each in found)

    def follow(self, job_id: str, revision: int, caller: Caller) -> Follower:
        """Register a follower that has seen the job up to ``revision``; it counts until ``leave``.

        A caller that checks the number of followers and then calls this without awaiting in between cannot exceed its
        limit.
        """
        follower = Follower(job_id, revision, caller)
        self._followers[job_id].add(follower)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        return follower

    def leave(self, follower: Follower) -> None:
        """Unregister a follower; may be repeated."""
        found = self._followers.get(follower.job_id, set())
        found.discard(follower)
        if not found:
            self._followers.pop(follower.job_id, None)

    async def changes(self, follower: Follower, closing: Event) -> AsyncIterator[JobChange | None]:
        """Yield the job whenever it changes, and None every 15 s as a heartbeat.

        Ends when the job, the service or the caller's admission ends. Changes that come faster than the consumer reads
        are merged.
        """
        while not closing.is_set():
            try:
                async with asyncio.timeout(_HEARTBEAT_S):  # asyncio.wait_for would create a task per follower
                    await follower.wake.wait()
            except TimeoutError:
                yield None
                continue
            follower.wake.clear()
            change, follower.change = follower.change, None
            if change is not None:
                yield change
                if change.is_final:
                    return

    def close(self) -> None:
        """Wake all followers, which then notice that the service is closing."""
        for followers in self._followers.values():
            for follower in followers:
                follower.wake.set()

    async def _poll(self) -> None:
        while self._followers:
            known = {job: min(each.revision for each in found) for job, found in self._followers.items()}
            callers = {each.caller for found in self._followers.values() for each in found}
            try:
                changes, shut_out = await self._database.run_read(self._query_changes, known, callers)
            except SQLAlchemyError as error:
                _log.warning("cannot follow jobs: %s", error)
                changes, shut_out = {}, set()
            if shut_out:
                self._end_streams(shut_out)
            for job, change in changes.items():
                for follower in self._followers.get(job, ()):
                    if change.revision > follower.revision and follower.caller not in shut_out:
                        follower.revision, follower.change = change.revision, change
                        follower.wake.set()
            await asyncio.sleep(_POLL_S)

    def _end_streams(self, shut_out: Set[Caller]) -> None:
        """End the streams of these callers without sending the job's change."""
        for found in self._followers.values():
            for follower in found:
                if follower.caller in shut_out:
                    follower.change = JobChange(follower.revision, True, _NOT_ADMITTED_EVENT)
                    follower.wake.set()

    def _query_changes(self, known: dict[str, int], callers: Set[Caller]) -> tuple[dict[str, JobChange], Set[Caller]]:
        return self._newer_jobs(known), {each for each in callers if not self._is_still_admitted(each)}

    def _newer_jobs(self, known: dict[str, int]) -> dict[str, JobChange]:
        """Changes of jobs whose revision is newer than the known one."""
        ids, found = sorted(known), list[JobRow]()
        with self._database.read() as session:
            for at in range(0, len(ids), _CHUNK):
                part = ids[at : at + _CHUNK]
                seen = session.execute(select(JobRow.id, JobRow.revision).where(JobRow.id.in_(part))).all()
                newer = [job for job, revision in seen if revision > known[job]]
                if newer:
                    found += session.scalars(select(JobRow).where(JobRow.id.in_(newer))).all()
        return {row.id: JobChange(row.revision, row.state in FINAL_STATES, self._encode(row)) for row in found}
