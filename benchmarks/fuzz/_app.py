"""The service with tasks that do nothing, so that the requests are what is tried: a job is over soon after it is accepted.

While the file ``FUZZ_REAL`` is there, searches and answers are real ones and a trial has a made-up result: they make the
resources that the requests then find.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy.orm import Session

from autosbp.plan import Plan
from service.app import create_app
from service.jobs import tasks
from service.jobs._base import JobKind, Kinds, TaskContext
from service.models import JobRow
from service.server import serve
from service.services.kinds import kinds
from service.settings import Settings

_REAL = {"search": tasks.search, "why": tasks.why, "what-if": tasks.what_if, "trial": tasks.trial}


def work(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """The task of every job."""
    context.progress(None, "at work")
    task = _REAL.get(inputs["kind"]) if inputs["inputs"] is not None else None
    if task is None:
        return {}
    with patch("autosbp.api.run_trial", _trial):
        return task(inputs["inputs"], context)


def _trial(plan: Plan, *_: object, log: Any, **__: object) -> dict[str, Any]:
    log("a rank says something")
    return {"plan_id": plan.plan_id, "collectives_match": True, "step_time_s": {"median": 0.01}}


def short(settings: Settings, flag: Path) -> Kinds:
    """The service's kinds with this task."""

    def of(name: str, kind: JobKind) -> JobKind:
        def prepare(session: Session, job: JobRow) -> dict[str, Any]:
            return {"kind": name, "inputs": kind.prepare(session, job) if flag.exists() else None}

        def store(session: Session, job: JobRow, found: dict[str, Any]) -> dict[str, Any]:
            return kind.store(session, job, found) if found else {}

        return replace(kind, target=f"{__package__}._app:work", prepare=prepare, store=store)

    return {name: of(name, kind) for name, kind in kinds(settings).items()}


def main() -> None:
    """Serve as the environment says; the URL goes to the file ``FUZZ_URL``."""
    settings = Settings()
    app = create_app(settings, short(settings, Path(os.environ["FUZZ_REAL"])))
    serve(settings, on_ready=Path(os.environ["FUZZ_URL"]).write_text, app=app)


if __name__ == "__main__":
    main()
