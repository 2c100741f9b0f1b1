"""Changes of jobs for those who follow them: one query for all, however many there are."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from service.access.caller import Caller
from service.db import Database
from service.jobs._base import FINAL
from service.models import JobRow

if TYPE_CHECKING:
    from threading import Event

_log = logging.getLogger(__name__)
_POLL_S = 0.2
_HEARTBEAT_S = 15.0
_CHUNK = 500
_SHUT_OUT = ": the API key of this stream has ended, or one is needed by now\n\n"


@dataclass(frozen=True, slots=True)
class Change:
    """A job as it is now: ``text`` is what its followers are sent."""

    revision: int
    is_final: bool
    text: str


class Follower:
    """Knows a job up to ``revision``; ``change`` is newer, where there is one."""

    change: Change | None = None

    def __init__(self, job_id: str, revision: int, caller: Caller) -> None:
        self.job_id, self.revision, self.caller = job_id, revision, caller
        self.wake = asyncio.Event()


class Feed:
    """Belongs to one event loop. The database is asked while somebody follows a job, five times a second, in one query; so
    jobs that another process works on are followed too. ``encode`` writes a job for its followers, once for all. ``stands``
    says whether a caller would still be let in; the stream of one that would not ends."""

    def __init__(self, database: Database, encode: Callable[[JobRow], str], stands: Callable[[Caller], bool]) -> None:
        self._database, self._encode, self._stands = database, encode, stands
        self._followers: dict[str, set[Follower]] = defaultdict(set)
        self._polling: asyncio.Task[None] | None = None

    @property
    def num_followers(self) -> int:
        """How many follow jobs now."""
        return sum(map(len, self._followers.values()))

    def num_followers_of(self, tenant: str) -> int:
        """How many of them are this tenant's."""
        return sum(each.caller.tenant == tenant for found in self._followers.values() for each in found)

    def follow(self, job_id: str, revision: int, caller: Caller) -> Follower:
        """One more follower, who knows the job up to ``revision``; it counts from now on until it is left (``leave``), so that
        who looks at the number of followers first, and waits for nothing between, has no more of them than it wants."""
        follower = Follower(job_id, revision, caller)
        self._followers[job_id].add(follower)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        return follower

    def leave(self, follower: Follower) -> None:
        """It follows no more; to be repeated at will."""
        found = self._followers.get(follower.job_id, set())
        found.discard(follower)
        if not found:
            self._followers.pop(follower.job_id, None)

    async def changes(self, follower: Follower, closing: Event) -> AsyncIterator[Change | None]:
        """The job whenever it is newer than what the follower knows, until it, the service or what lets the caller in ends;
        None now and then, as a heartbeat. Changes that come faster than they are asked for are one."""
        while not closing.is_set():
            try:
                async with asyncio.timeout(_HEARTBEAT_S):  # wait_for would take a task for each follower
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
        """Wake everybody, who then sees that the service is closing."""
        for followers in self._followers.values():
            for follower in followers:
                follower.wake.set()

    async def _poll(self) -> None:
        while self._followers:
            known = {job: min(each.revision for each in found) for job, found in self._followers.items()}
            callers = {each.caller for found in self._followers.values() for each in found}
            try:
                changes, shut_out = await self._database.ask(self._look, known, callers)
            except SQLAlchemyError as error:
                _log.warning("jobs cannot be followed now: %s", error)
                changes, shut_out = {}, set()
            if shut_out:
                self._end(shut_out)
            for job, change in changes.items():
                for follower in self._followers.get(job, ()):
                    if change.revision > follower.revision and follower.caller not in shut_out:
                        follower.revision, follower.change = change.revision, change
                        follower.wake.set()
            await asyncio.sleep(_POLL_S)

    def _end(self, shut_out: Set[Caller]) -> None:
        """End the streams of these callers, who are told nothing more of the job."""
        for found in self._followers.values():
            for follower in found:
                if follower.caller in shut_out:
                    follower.change = Change(follower.revision, True, _SHUT_OUT)
                    follower.wake.set()

    def _look(self, known: dict[str, int], callers: Set[Caller]) -> tuple[dict[str, Change], Set[Caller]]:
        return self._newer(known), {each for each in callers if not self._stands(each)}

    def _newer(self, known: dict[str, int]) -> dict[str, Change]:
        """Jobs that are newer than they are known."""
        ids, found = sorted(known), list[JobRow]()
        with self._database.read() as session:
            for at in range(0, len(ids), _CHUNK):
                part = ids[at : at + _CHUNK]
                seen = session.execute(select(JobRow.id, JobRow.revision).where(JobRow.id.in_(part))).all()
                newer = [job for job, revision in seen if revision > known[job]]
                if newer:
                    found += session.scalars(select(JobRow).where(JobRow.id.in_(newer))).all()
        return {row.id: Change(row.revision, row.state in FINAL, self._encode(row)) for row in found}
