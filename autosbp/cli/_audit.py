"""``autosbp audit``: who did what, of every tenant and of strangers, read on the service's machine; or by ``--server`` what the
key may read: its own tenant's log, and the operators' also that of strangers."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._format import table
from autosbp.cli._keys import opened
from autosbp.cli._options import AsJson, Server
from autosbp.cli._run import console, print_json
from autosbp.cli._serve import Database, DataDir
from autosbp.errors import InputError, printable

if TYPE_CHECKING:
    from service.models import AuditRow

Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Of this tenant alone.")]
Strangers = Annotated[
    bool, typer.Option("--strangers", help="Only calls of nobody known: no key, a wrong one, a foreign Host or page.")
]
Status = Annotated[int | None, typer.Option("--status", min=100, max=599, help="With this answer alone.")]
Last = Annotated[int, typer.Option("--last", min=1, metavar="N", help="So many of the newest.")]

_PAGE = 200


def audit(
    tenant: Tenant = None,
    strangers: Strangers = False,
    status: Status = None,
    last: Last = 100,
    server: Server = None,
    database: Database = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Read the audit log, newest first: on the service's machine of all tenants and of those whom no tenant knows; with
    --server of the key's tenant."""
    if strangers and tenant is not None:
        raise InputError("tenant", tenant, "strangers are of no tenant: one of --tenant and --strangers is expected")
    if server is None:
        found = _here(tenant, strangers, status, last, database, data_dir)
    else:
        for field, given in (("tenant", tenant), ("database", database), ("data_dir", data_dir)):
            if given is not None:
                raise InputError(field, str(given), "a service shows its key's tenant: leave it out, or --server")
        found = _there(server, strangers, status, last)
    if as_json:
        print_json({"entries": found})
        return
    columns = ("time", "tenant", "caller", "address", "method", "path", "status")
    rows = [tuple(_cell(one.get(column)) for column in columns) for one in found]
    console().print(table("", columns, rows, left=len(columns)))


def _cell(value: object) -> str:
    return "-" if value in (None, "") else printable(str(value))


def _here(
    tenant: str | None, strangers: bool, status: int | None, last: int, database: str | None, data_dir: Any
) -> list[dict[str, Any]]:
    from service.models import NO_TENANT
    from service.services import audit as log

    with opened(database, data_dir) as db:
        return [_document(row) for row in log.every(db, NO_TENANT if strangers else tenant, status, last)]


def _there(server: str, strangers: bool, status: int | None, last: int) -> list[dict[str, Any]]:
    from autosbp.cli._server import connected

    with connected(server) as client:
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
