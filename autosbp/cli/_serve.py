"""``autosbp serve``: the service on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autosbp.errors import InputError

Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen on. The service has no accounts: keep it private.")
]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0 takes a free one; 8000 by default.")]
Database = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="SQLAlchemy URL; a SQLite file by default.")
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the default database, logs and trials.")]


def serve(host: Host = None, port: Port = None, database: Database = None, data_dir: DataDir = None) -> None:
    """Serve until interrupted; options not given come from AUTOSBP_* variables. Logs go to standard error."""
    from pydantic import ValidationError

    from service.server import serve as run
    from service.settings import Settings

    given: dict[str, Any] = {"host": host, "port": port, "database_url": database, "data_dir": data_dir}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(".".join(map(str, first["loc"])), first["input"], first["msg"]) from None
    run(settings)
