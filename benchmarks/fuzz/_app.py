"""The service with no-op tasks, so that only requests are tested: a job ends soon after it is accepted.

While the file ``FUZZ_REAL`` exists, searches and analyses are real, and trials have made-up results: they create the
resources that later requests find.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy.orm import Session

from autosbp.plan.plan import Plan
from autosbp.service.app import create_app
from autosbp.service.jobs import tasks
from autosbp.service.jobs._base import JobKind, Kinds, TaskContext
from autosbp.service.models import JobRow
from autosbp.service.server import serve
from autosbp.service.services.job_kinds import kinds
from autosbp.service.settings import Settings

_REAL = {"search": tasks.search, "why": tasks.why, "what-if": tasks.what_if, "trial": tasks.trial}


def work(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Task of every job."""
    context.progress(None, "at work")
    task = _REAL.get(inputs["kind"]) if inputs["inputs"] is not None else None
    if task is None:
        return {}
    with patch("autosbp.api.run_trial", _trial):
        return task(inputs["inputs"], context)


def _trial(plan: Plan, *_: object, workdir: Path, **__: object) -> dict[str, Any]:
    (workdir / "ranks.log").write_text("a rank says something\n")
    return {"plan_id": plan.plan_id, "collectives_match": True, "step_time_s": {"median": 0.01}}


def noop_kinds(settings: Settings, flag: Path) -> Kinds:
    """The service's job kinds with this task."""

    def of(name: str, kind: JobKind) -> JobKind:
        def prepare(session: Session, job: JobRow) -> dict[str, Any]:
            return {"kind": name, "inputs": kind.prepare(session, job) if flag.exists() else None}

        def store(session: Session, job: JobRow, found: dict[str, Any]) -> dict[str, Any]:
            return kind.store(session, job, found) if found else {}

        return replace(kind, target=f"{__package__}._app:work", prepare=prepare, store=store)

    return {name: of(name, kind) for name, kind in kinds(settings).items()}


def main() -> None:
    """Serve with settings from the environment; writes the URL to the file ``FUZZ_URL``."""
    settings = Settings()
    app = create_app(settings, noop_kinds(settings, Path(os.environ["FUZZ_REAL"])))
    serve(settings, on_ready=Path(os.environ["FUZZ_URL"]).write_text, app=app)


if __name__ == "__main__":
    main()
