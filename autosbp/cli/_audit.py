"""``autosbp audit``: show the audit log.

On the service's machine: entries of every tenant and of unauthenticated callers. With ``--server``: what the API key
may read, which is its own tenant's log and, for operators, also entries of unauthenticated callers.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._exit_codes import console, print_json
from autosbp.cli._keys import open_database
from autosbp.cli._options import AsJson, Server
from autosbp.cli._serve import Database, DataDir
from autosbp.cli._text_tables import table
from autosbp.errors import InputError, printable

if TYPE_CHECKING:
    from autosbp.service.models import AuditRow

Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only entries of this tenant.")]
Unauthenticated = Annotated[
    bool,
    typer.Option(
        "--strangers", help="Only unauthenticated calls: no API key, a wrong key, or a foreign Host or Origin."
    ),
]
Status = Annotated[int | None, typer.Option("--status", min=100, max=599, help="Only entries with this HTTP status.")]
Last = Annotated[int, typer.Option("--last", min=1, metavar="N", help="Show the N newest entries.")]

_PAGE = 200


def audit(
    tenant: Tenant = None,
    strangers: Unauthenticated = False,
    status: Status = None,
    last: Last = 100,
    server: Server = None,
    database: Database = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the audit log, newest first.

    On the service's machine it covers all tenants and unauthenticated callers; with --server, the key's tenant.
    """
    if strangers and tenant is not None:
        raise InputError(
            "tenant", tenant, ("--strangers selects calls without a tenant; use either --tenant or --strangers")
        )
    if server is None:
        found = _local_entries(tenant, strangers, status, last, database, data_dir)
    else:
        for field, given in (("tenant", tenant), ("database", database), ("data_dir", data_dir)):
            if given is not None:
                raise InputError(
                    field, str(given), ("not available with --server, which shows the tenant of the API key")
                )
        found = _remote_entries(server, strangers, status, last)
    if as_json:
        print_json({"entries": found})
        return
    columns = ("time", "tenant", "caller", "address", "method", "path", "status")
    rows = [tuple(_cell(one.get(column)) for column in columns) for one in found]
    console().print(table("", columns, rows, left=len(columns)))


def _cell(value: object) -> str:
    return "-" if value in (None, "") else printable(str(value))


def _local_entries(
    tenant: str | None, strangers: bool, status: int | None, last: int, database: str | None, data_dir: Any
) -> list[dict[str, Any]]:
    from autosbp.service.models import NO_TENANT
    from autosbp.service.services import audit as log

    with open_database(database, data_dir) as db:
        return [_document(row) for row in log.newest_entries(db, NO_TENANT if strangers else tenant, status, last)]


def _remote_entries(server: str, strangers: bool, status: int | None, last: int) -> list[dict[str, Any]]:
    from autosbp.cli._remote import open_client

    with open_client(server) as client:
        entries = client.audit(strangers=strangers or None, status=status, limit=min(last, _PAGE))
        shown = ("caller", "address", "method", "path", "status", "request_id", "location")
        return [
            {"time": each["created_at"], **{name: each.get(name) for name in shown}} for each in islice(entries, last)
        ]


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
