"""The service, or a worker of it (``CHAOS_MODE=work``), with tasks that write down their runs; made to be killed."""

from __future__ import annotations

import os
from dataclasses import replace

from service.app import create_app
from service.jobs._base import JobKind, Kinds
from service.server import log_to_standard_error, serve
from service.services.kinds import kinds
from service.settings import Settings
from service.work import work


def written_down(settings: Settings) -> Kinds:
    """The service's kinds with this task; what it returns is the job's result."""

    def of(name: str, kind: JobKind) -> JobKind:
        return replace(
            kind,
            target="benchmarks.chaos._task:run",
            prepare=lambda _, job: {"job": job.id, "kind": name, "attempt": job.attempts},
            store=lambda _, __, found: found,
        )

    return {name: of(name, kind) for name, kind in kinds(settings).items()}


def main() -> None:
    """Serve or work as the environment says."""
    settings = Settings()
    table = kinds(settings) if os.environ.get("CHAOS_MODE") == "real" else written_down(settings)
    if os.environ.get("CHAOS_MODE") == "work":
        log_to_standard_error()
        work(settings, kinds=table)
    else:
        serve(settings, app=create_app(settings, table))


if __name__ == "__main__":
    main()
