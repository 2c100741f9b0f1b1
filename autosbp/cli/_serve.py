"""``autosbp serve``: run the service on this machine; ``autosbp work``: run an additional worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._exit_codes import GATE_FAILED, note
from autosbp.cli._option_checks import refuse_unused

if TYPE_CHECKING:
    from autosbp.service.settings import Settings

Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen on; addresses other than loopback require API keys.")
]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port; 0 picks a free one. Default: 8000.")]
RootPath = Annotated[
    str | None,
    typer.Option(
        "--root-path",
        metavar="PATH",
        help="URL path prefix under which a reverse proxy serves this service, such as /planner.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="SQLAlchemy URL of the database; default: a SQLite file."),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the default database, logs and trials.")]


Worker = Annotated[
    bool,
    typer.Option(
        "--worker/--no-worker", help="Also run jobs in this process, or leave them to `autosbp work` (PostgreSQL only)."
    ),
]


def serve(
    host: Host = None,
    port: Port = None,
    root_path: RootPath = None,
    database: Database = None,
    data_dir: DataDir = None,
    worker: Worker = True,
) -> None:
    """Run the service until interrupted. Options not given come from AUTOSBP_* variables. Logs go to standard error."""
    from autosbp.service.server import serve as run

    given = {"worker": False} if not worker else {}
    run(settings_of(host=host, port=port, root_path=root_path, database_url=database, data_dir=data_dir, **given))


Check = Annotated[
    bool, typer.Option("--check", help="Only check that this machine's workers are healthy; exit with 1 if not.")
]


def work(database: Database = None, data_dir: DataDir = None, check: Check = False) -> int:
    """Run jobs from a service's database until interrupted, without serving requests. Logs go to standard error."""
    if check:
        refuse_unused(work, "--check only checks this machine; omit it", database=database)
        return _check(settings_of(data_dir=data_dir).data_dir)
    from autosbp.service.server import log_to_standard_error
    from autosbp.service.worker_main import run_worker as run

    log_to_standard_error()
    run(settings_of(database_url=database, data_dir=data_dir, worker=True))
    return 0


def _check(data_dir: Path) -> int:
    from autosbp.service.jobs.heartbeat import unhealthy_workers

    found = unhealthy_workers(data_dir)
    for ailment in found:
        note(ailment)
    return GATE_FAILED if found else 0


def settings_of(**given: Any) -> Settings:
    """Build the service's settings; an option that is None comes from AUTOSBP_* variables. May raise ``InputError``."""
    from autosbp.service.settings import read_settings

    return read_settings(**given)
