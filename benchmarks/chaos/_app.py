"""The service, or a worker of it (``CHAOS_MODE=work``), to be killed; its tasks record their runs."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from autosbp.service.app import create_app
from autosbp.service.jobs._base import JobKind, Kinds
from autosbp.service.models import JobRow
from autosbp.service.server import log_to_standard_error, serve
from autosbp.service.services.job_kinds import kinds
from autosbp.service.settings import Settings
from autosbp.service.worker_main import run_worker


def recording_kinds(settings: Settings) -> Kinds:
    """The service's job kinds with the recording task; the job's result is what the task returns."""

    def of(name: str, kind: JobKind) -> JobKind:
        return replace(
            kind,
            target="benchmarks.chaos._task:run",
            prepare=lambda _, job: {"job": job.id, "kind": name, "attempt": job.attempts},
            store=_note_outcome,
        )

    return {name: of(name, kind) for name, kind in kinds(settings).items()}


def _note_outcome(_: Session, job: JobRow, found: dict[str, Any]) -> dict[str, Any]:
    """Append a line to the record of runs; from here on the job must not run again."""
    with open(os.environ["CHAOS_RUNS"], "a") as file:
        file.write(f"kept {job.kind} {job.id} {found['attempt']} {time.monotonic()}\n")
    return found


def main() -> None:
    """Serve or work, depending on environment variables."""
    settings = Settings()
    table = kinds(settings) if os.environ.get("CHAOS_MODE") == "real" else recording_kinds(settings)
    if os.environ.get("CHAOS_MODE") == "work":
        log_to_standard_error()
        run_worker(settings, kinds=table)
    else:
        serve(settings, app=create_app(settings, table))


if __name__ == "__main__":
    main()
