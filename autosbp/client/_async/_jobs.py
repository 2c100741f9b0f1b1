"""Jobs: read, wait for, follow and cancel them."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime

from autosbp.client._async._base import Part
from autosbp.client._conditional_requests import Version, condition, window
from autosbp.client._http_messages import Job, UnreachableError, error_of
from autosbp.client._sleep import async_pause
from autosbp.client._types import JobKind, JobState, StillRunningError
from autosbp.errors import ServiceError

_FIRST_POLL_S, _LONGEST_POLL_S = 0.05, 1.0
PATIENCE_S = 30.0
"""Seconds that a service may be unreachable or not ready while the client waits for a job."""


class Jobs(Part):
    """Routes of ``/v1/jobs``."""

    async def wait(
        self,
        job: Job,
        timeout_s: float | None = None,
        on_progress: Callable[[Job], None] | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> Job:
        """Wait until a job has succeeded, polling; tolerates restarts of the service.

        Args:
            timeout_s: longest wait in seconds; None waits without limit.
            on_progress: called with the job after each change.
            patience_s: seconds for which the service may be silent or answer 429, 502 or 503. Within them the client
                honours Retry-After.

        Raises:
            StillRunningError: ``timeout_s`` has passed; the job continues.
            UnreachableError: ``patience_s`` has passed; the job continues.
            ServiceError: the job was cancelled.
            AutosbpError: the job failed; the error is the one that it failed with.
        """
        begun_s = answered_s = time.monotonic()
        poll_s = pause_s = _FIRST_POLL_S
        while not job.is_final:
            left_s = float("inf") if timeout_s is None else timeout_s - (time.monotonic() - begun_s)
            if left_s < 0:
                raise StillRunningError(f"job {job.id} is still {job.state} after {timeout_s:g} s")
            await async_pause(min(pause_s, left_s))
            poll_s = min(poll_s * 1.5, _LONGEST_POLL_S)
            try:
                seen, answered_s = await self._now(job.id), time.monotonic()
            except UnreachableError as error:
                pause_s = _pause_s(error, poll_s, answered_s + patience_s)
                continue
            before, job, pause_s = job, seen, poll_s
            if job != before and on_progress is not None:
                on_progress(job)
        if job.problem is not None:
            raise error_of(job.problem)
        if job.state == "cancelled":
            raise ServiceError(f"job {job.id} was cancelled")
        return job

    async def follow(self, job_id: str, after: int = 0) -> AsyncIterator[Job]:
        """Yield a job at each change until it has ended; reconnects after a broken connection and resumes where it broke."""
        answered_s = time.monotonic()
        while True:
            pause_s = _FIRST_POLL_S
            try:
                async for revision, job in self._events(job_id, after):
                    after, answered_s = revision, time.monotonic()
                    yield job
                    if job.is_final:
                        return
                if (await self._now(job_id)).is_final:
                    return
            except UnreachableError as error:
                pause_s = _pause_s(error, _FIRST_POLL_S, answered_s + PATIENCE_S)
            await async_pause(pause_s)

    async def _now(self, job_id: str) -> Job:
        """Read a job with a single request; callers poll, so no retries are needed."""
        return Job.from_dict(await self._at.get(f"/v1/jobs/{job_id}", tries=1))

    async def _events(self, job_id: str, after: int) -> AsyncIterator[tuple[int, Job]]:
        revision = after
        async with self._at.stream(f"/v1/jobs/{job_id}/events", {"last-event-id": str(after)}) as response:
            async for line in response.aiter_lines():
                name, _, text = line.partition(": ")
                if name == "id":
                    revision = int(text)
                elif name == "data":
                    yield revision, Job.from_dict(json.loads(text))

    async def cancel(self, job_id: str, *, version: Version | None = None, idempotency_key: str | None = None) -> Job:
        """Request cancellation of a job; ``ConflictError`` if it has ended, or has changed since ``version``."""
        path = f"/v1/jobs/{job_id}:cancel"
        return Job.from_dict(await self._at.post(path, headers=condition(version), key=idempotency_key))

    async def get_job(self, job_id: str, *, version: Version | None = None) -> Job:
        """The current state of a job."""
        return Job.from_dict(await self._read(f"/v1/jobs/{job_id}", version))

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        kind: JobKind | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncIterator[Job]:
        """Every job, newest first."""
        query = {"state": state, "kind": kind, **window(limit, created_after, created_before)}
        async for found in self._at.pages("/v1/jobs", query):
            yield Job.from_dict(found)


def _pause_s(error: UnreachableError, poll_s: float, until_s: float) -> float:
    """Seconds until the next poll: at least Retry-After, but no later than ``until_s``; past that, raise ``error``."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise error
    return min(max(poll_s, error.pause_s or 0.0), left_s)
