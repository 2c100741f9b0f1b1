"""``autosbp serve``: the service on this machine; ``autosbp work``: more hands for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._run import GATE_FAILED, note
from autosbp.cli._unused import refuse_unused

if TYPE_CHECKING:
    from service.settings import Settings

Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen on; any but a loopback address needs API keys.")
]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0 takes a free one; 8000 by default.")]
RootPath = Annotated[
    str | None, typer.Option("--root-path", metavar="PATH", help="Path below which a proxy has the service: /planner.")
]
Database = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="SQLAlchemy URL; a SQLite file by default.")
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the default database, logs and trials.")]


Worker = Annotated[
    bool, typer.Option("--worker/--no-worker", help="Work on jobs, or leave them to `autosbp work` (PostgreSQL).")
]


def serve(
    host: Host = None,
    port: Port = None,
    root_path: RootPath = None,
    database: Database = None,
    data_dir: DataDir = None,
    worker: Worker = True,
) -> None:
    """Serve until interrupted; options not given come from AUTOSBP_* variables. Logs go to standard error."""
    from service.server import serve as run

    given = {"worker": False} if not worker else {}
    run(settings_of(host=host, port=port, root_path=root_path, database_url=database, data_dir=data_dir, **given))


Check = Annotated[
    bool, typer.Option("--check", help="Only say whether the workers on this machine work, and exit with 1 if not.")
]


def work(database: Database = None, data_dir: DataDir = None, check: Check = False) -> int:
    """Work on the jobs of a service's database until interrupted, without serving requests. Logs go to standard error."""
    if check:
        refuse_unused(work, "--check looks at this machine alone: leave it out", database=database)
        return _check(settings_of(data_dir=data_dir).data_dir)
    from service.server import log_to_standard_error
    from service.work import work as run

    log_to_standard_error()
    run(settings_of(database_url=database, data_dir=data_dir, worker=True))
    return 0


def _check(data_dir: Path) -> int:
    from service.jobs.heartbeat import ailments

    found = ailments(data_dir)
    for ailment in found:
        note(ailment)
    return GATE_FAILED if found else 0


def settings_of(**given: Any) -> Settings:
    """The service's settings: what is given, and what is None from AUTOSBP_* variables; ``InputError``."""
    from service.settings import read_settings

    return read_settings(**given)
