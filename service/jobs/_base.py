"""The contract of a job runner, and of the kinds of job that it runs.

A job is a row of the table ``jobs`` and moves through these states, never back except for the one dashed arrow:

    queued -> running -> succeeded | failed | cancelled
      ^- - - - -'  an interruption (the service stopped or died)
    queued -> cancelled

- **Durable**: ``submit`` adds the row in the caller's transaction, together with the resource that the job fills. Once
  that has committed the job will run, whatever happens to the process.
- **All or nothing**: what a job found is stored in the same transaction as its state ``succeeded``. A job that failed
  or was cancelled has stored nothing but its ``problem``.
- **Attempts**: a job that was interrupted is queued again, and started ``max_attempts`` times at most, or once if its
  kind is not resumable; then it fails as ``interrupted``. An attempt starts when every process of the one before is
  dead. What an attempt found before the interruption is kept, and no further one is made.
- **Fencing**: whoever takes a job raises its ``fence``. With an older one nothing can be reported or stored.
- **Cancel** is a request: a queued job is cancelled at once; a running one is told, and killed with all its processes
  when it has not stopped within its grace period. Once a request was accepted, the job never becomes ``succeeded``.
- **Progress**: ``progress`` is a fraction or null, ``message`` is for people, ``figures`` are the kind's own numbers.
  ``revision`` grows with every change of the row, so an observer that knows a revision can ask for what is newer.
- **Errors** are problem documents (RFC 9457), the same that a request would have been answered with.

Payloads, inputs and results are JSON. ``prepare`` and ``store`` have a session of the job's tenant. Every method may be
called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the worker process reads this module and needs no database
    from sqlalchemy.orm import Session

    from service.models import ArtifactRow, JobRow

Document = dict[str, Any]

FINAL = ("succeeded", "failed", "cancelled")
LANES = ("plan", "measure")
"""Searches and the like wait in one queue; what measures a machine, and so wants it for itself, in the other."""


class TaskContext(Protocol):
    """What a task may ask of its surroundings, in the worker process."""

    def progress(self, fraction: float | None, message: str, **figures: float) -> bool:
        """Report progress; False means that the task should stop."""

    def cancelled(self) -> bool:
        """Whether the task should stop, because somebody asked for it or because the service is gone."""

    def orphaned(self) -> bool:
        """Whether the service is gone."""


Task = Callable[[Document, TaskContext], Document]


class CancelledError(Exception):
    """A task raises it when it stopped because it was told to; what a task returns is all of its work."""


class Interrupted(BaseException):  # noqa: N818 - no error: nothing that handles errors may take it for one
    """The work on a job ends here without an outcome; it goes on later, here or elsewhere."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the process of a job may use; None is no limit. Processes that it starts have each as much memory."""

    memory_bytes: int | None = None
    cpu_s: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job.

    Args:
        target: ``module:function`` of the ``Task``, which runs in a worker process without the database.
        prepare: reads what the task needs from the database; ``attempts`` of the row counts this one.
        store: writes the task's result in the transaction that ends the job; returns the job's ``result``.
        resumable: whether an interrupted job may run again.
        lane: the queue that it waits in, of ``LANES``.
        limits: of its process.
        keep: keeps the files that the work has left, however it has ended; the rows that say so are stored with its end.
    """

    target: str
    prepare: Callable[[Session, JobRow], Document]
    store: Callable[[Session, JobRow, Document], Document]
    resumable: bool
    lane: str = "plan"
    limits: Limits = Limits()
    keep: Callable[[JobRow], Sequence[ArtifactRow]] | None = None


Kinds = Mapping[str, JobKind]


class JobRunner(Protocol):
    """Runs the jobs of one database; see the module's docstring for the promises."""

    def start(self) -> None:
        """Begin to work, on interrupted jobs too."""

    def stop(self) -> None:
        """End running jobs as interruptions, and every process with them."""

    def submit(
        self, session: Session, kind: str, payload: Document, resource: str | None = None, job_id: str | None = None
    ) -> JobRow:
        """Queue a job of the session's tenant in the caller's transaction; ``ProblemError`` 429 when too many wait.
        Without ``job_id`` it gets a fresh one."""

    def get(self, job_id: str) -> JobRow | None:
        """The job's present row, detached."""

    def cancel(self, job_id: str, check: Callable[[JobRow], None] | None = None) -> JobRow | None:
        """Request the end of a job and return its row; ``ProblemError`` 409 when it has already ended otherwise. ``check``
        is given the row first, in the same transaction, and may refuse by raising."""

    def newer(self, job_id: str, revision: int) -> JobRow | None:
        """The job's row if it has changed since ``revision``; an observer polls this."""

    def alive(self) -> bool:
        """Whether queued jobs are being worked on."""
