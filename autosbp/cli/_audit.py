"""``autosbp audit``: who did what, of every tenant and of strangers, read on the service's machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._format import table
from autosbp.cli._keys import opened
from autosbp.cli._options import AsJson
from autosbp.cli._run import console, print_json
from autosbp.cli._serve import Database, DataDir
from autosbp.errors import InputError

if TYPE_CHECKING:
    from service.models import AuditRow

Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Of this tenant alone.")]
Strangers = Annotated[
    bool, typer.Option("--strangers", help="Only calls of nobody known: no key, a wrong one, a foreign Host or page.")
]
Status = Annotated[int | None, typer.Option("--status", min=100, max=599, help="With this answer alone.")]
Last = Annotated[int, typer.Option("--last", min=1, metavar="N", help="So many of the newest.")]


def audit(
    tenant: Tenant = None,
    strangers: Strangers = False,
    status: Status = None,
    last: Last = 100,
    database: Database = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Read the audit log of the service on this machine, newest first: all tenants, and those whom no tenant knows."""
    from service.models import NO_TENANT
    from service.services import audit as log

    if strangers and tenant is not None:
        raise InputError("tenant", tenant, "strangers are of no tenant: one of --tenant and --strangers is expected")
    with opened(database, data_dir) as db:
        found = [_document(row) for row in log.every(db, NO_TENANT if strangers else tenant, status, last)]
    if as_json:
        print_json({"entries": found})
        return
    columns = ("time", "tenant", "caller", "address", "method", "path", "status")
    rows = [tuple(str("-" if one[column] in (None, "") else one[column]) for column in columns) for one in found]
    console().print(table("", columns, rows, left=len(columns)))


def _document(row: AuditRow) -> dict[str, Any]:
    return {
        "time": row.created_at.isoformat(timespec="seconds"),
        "tenant": row.tenant or None,
        "caller": row.caller,
        "address": row.address,
        "method": row.method,
        "path": row.path,
        "status": row.status,
        "request_id": row.request_id,
        "location": row.location,
    }
