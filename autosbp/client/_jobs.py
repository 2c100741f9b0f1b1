"""Jobs: look at them, wait for them, follow and cancel them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Literal

from autosbp.client._base import Part, Version, condition, window
from autosbp.client._connection import Job, UnreachableError, error_of
from autosbp.errors import ServiceError

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JobKind = Literal["capture", "calibrate", "search", "trial", "why", "what-if"]
_FIRST_POLL_S, _LONGEST_POLL_S = 0.05, 1.0
PATIENCE_S = 30.0
"""How long a service may be silent, or say that it cannot answer now, while a job is waited for."""


class StillRunningError(ServiceError):
    """A job has not ended in the time that the caller would wait; it goes on."""


class Jobs(Part):
    """``/v1/jobs``."""

    def wait(
        self,
        job: Job,
        timeout_s: float | None = None,
        on_progress: Callable[[Job], None] | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> Job:
        """Wait until a job has succeeded; a restart of the service on the way is waited for, too, for ``patience_s`` of
        silence or of answers such as 429, 502 and 503, whose Retry-After is kept to within it.

        Raises the error that failed the job, ``ServiceError`` if it was cancelled, ``StillRunningError`` if ``timeout_s`` has
        passed, or ``UnreachableError``; after these two the job goes on.
        """
        begun_s = answered_s = time.monotonic()
        poll_s = pause_s = _FIRST_POLL_S
        while not job.is_final:
            left_s = float("inf") if timeout_s is None else timeout_s - (time.monotonic() - begun_s)
            if left_s < 0:
                raise StillRunningError(f"job {job.id} is still {job.state} after {timeout_s:g} s")
            time.sleep(min(pause_s, left_s))
            poll_s = min(poll_s * 1.5, _LONGEST_POLL_S)
            try:
                seen, answered_s = self._now(job.id), time.monotonic()
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

    def follow(self, job_id: str, after: int = 0) -> Iterator[Job]:
        """A job at each of its changes, until it has ended; a connection that breaks is taken up where it broke."""
        answered_s = time.monotonic()
        while True:
            pause_s = _FIRST_POLL_S
            try:
                for revision, job in self._events(job_id, after):
                    after, answered_s = revision, time.monotonic()
                    yield job
                    if job.is_final:
                        return
                if self._now(job_id).is_final:
                    return
            except UnreachableError as error:
                pause_s = _pause_s(error, _FIRST_POLL_S, answered_s + PATIENCE_S)
            time.sleep(pause_s)

    def _now(self, job_id: str) -> Job:
        """A job, of one request: who asks here asks again."""
        return Job.from_dict(self._at.get(f"/v1/jobs/{job_id}", tries=1))

    def _events(self, job_id: str, after: int) -> Iterator[tuple[int, Job]]:
        revision = after
        with self._at.stream(f"/v1/jobs/{job_id}/events", {"last-event-id": str(after)}) as response:
            for line in response.iter_lines():
                name, _, text = line.partition(": ")
                if name == "id":
                    revision = int(text)
                elif name == "data":
                    yield revision, Job.from_dict(json.loads(text))

    def cancel(self, job_id: str, *, version: Version | None = None, idempotency_key: str | None = None) -> Job:
        """Ask for the end of a job; ``ConflictError`` where it has ended. With ``version``, only if the job is still so."""
        path = f"/v1/jobs/{job_id}:cancel"
        return Job.from_dict(self._at.post(path, headers=condition(version), key=idempotency_key))

    def get_job(self, job_id: str, *, version: Version | None = None) -> Job:
        """A job as it is now."""
        return Job.from_dict(self._read(f"/v1/jobs/{job_id}", version))

    def jobs(
        self,
        *,
        state: JobState | None = None,
        kind: JobKind | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[Job]:
        """Every job, newest first."""
        query = {"state": state, "kind": kind, **window(limit, created_after, created_before)}
        yield from map(Job.from_dict, self._at.pages("/v1/jobs", query))


def _pause_s(error: UnreachableError, poll_s: float, until_s: float) -> float:
    """How long to leave the service alone: as it asks, but it is asked once more before patience ends, which raises."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise error
    return min(max(poll_s, error.pause_s or 0.0), left_s)
