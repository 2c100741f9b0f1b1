"""``autosbp keys``: manage API keys in the database of this machine; no service needs to be running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._exit_codes import console, note, print_json, with_exit_codes
from autosbp.cli._options import AsJson
from autosbp.cli._serve import Database, DataDir, settings_of
from autosbp.cli._text_tables import table
from autosbp.errors import InputError, ServiceError, printable

if TYPE_CHECKING:
    from autosbp.service.db import Database as Db
    from autosbp.service.models import KeyRow

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Tenant that the key belongs to.")]
Name = Annotated[str, typer.Option("--name", help="Description of the key, such as its owner or purpose.")]
Scopes = Annotated[
    str,
    typer.Option(
        "--scopes", metavar="SCOPE,...", help="Comma-separated scopes of: read, search, trial, calibrate, admin."
    ),
]
Days = Annotated[float, typer.Option("--days", min=0, help="Days until the key expires; 0: never.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="A key's id, as autosbp keys list shows it.")]
Grace = Annotated[float, typer.Option("--grace-s", min=0, help="Seconds for which the old key stays valid.")]
_NAME = 64
_MAX_DAYS, _MAX_GRACE_S = 3650.0, 30 * 86_400.0  # same limits as the HTTP routes


def create(
    tenant: Tenant = "default",
    name: Name = "command line",
    scopes: Scopes = "read,search,trial,calibrate",
    days: Days = 90.0,
    database: Database = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it; it is not shown again.

    As soon as a key exists, the service requires keys, so the first one needs the scope admin.
    """
    from autosbp.service.services import audit, keys

    if not tenant.replace("-", "").replace("_", "").isalnum() or not tenant.isascii() or len(tenant) > _NAME:
        raise InputError("tenant", tenant, f"expected at most {_NAME} letters, digits, - and _")
    if not 1 <= len(name) <= 128:
        raise InputError("name", name, "expected 1 to 128 characters")
    lifetime = timedelta(days=_check_range("days", days, _MAX_DAYS)) if days else None
    asked = keys.check_scopes([scope.strip() for scope in scopes.split(",")])
    with open_database(database, data_dir) as db:
        keys.check_first(db, asked)
        made = keys.create(db.of(tenant), name, asked, lifetime)
        audit.log_command(db.of(tenant), "POST", "/v1/keys", 201, f"/v1/keys/{made.row.id}")
        _print(made.row, made.text, as_json)


def rotate(
    key: KeyId, grace_s: Grace = 3600.0, database: Database = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Print a new key with the same name, scopes and lifetime; the old one stays valid for a grace period."""
    from autosbp.service.services import audit, keys

    grace = timedelta(seconds=_check_range("grace_s", grace_s, _MAX_GRACE_S))
    with open_database(database, data_dir) as db:
        row = _stored(db, key)
        if keys.state_of(row) != "valid":
            raise InputError("key", key, f"the key is {keys.state_of(row)}; expected a valid key")
        made = keys.rotate(db.of(row.tenant), key, grace)
        audit.log_command(db.of(row.tenant), "POST", f"/v1/keys/{key}:rotate", 201, f"/v1/keys/{made.row.id}")
        _print(made.row, made.text, as_json)


def revoke(key: KeyId, database: Database = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Revoke a key immediately."""
    from autosbp.service.services import audit, keys

    with open_database(database, data_dir) as db:
        row = keys.revoke(db.of(_stored(db, key).tenant), key)
        audit.log_command(db.of(row.tenant), "DELETE", f"/v1/keys/{key}")
        if as_json:
            print_json(_document(row))
        else:
            note(f"revoked {row.id} ({printable(row.name)}) of tenant {row.tenant}")


def listing(database: Database = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the keys of all tenants, without their secrets, which are not stored."""
    from autosbp.service.services import keys

    with open_database(database, data_dir) as db:
        found = [_document(row) for row in keys.all_keys(db)]
    if as_json:
        print_json({"keys": found})
        return
    columns = ("key", "tenant", "name", "prefix", "scopes", "state", "expires")
    rows = [tuple(printable(str(one[column] or "never")) for column in columns) for one in found]
    console().print(table("", columns, rows, left=len(columns)))


def _check_range(field: str, value: float, most: float) -> float:
    if not 0 <= value <= most:
        raise InputError(field, value, f"expected 0 to {most:.0f}")
    return value


@contextmanager
def open_database(database: str | None, data_dir: Any) -> Iterator[Db]:
    """Open the service's database, migrated to the newest schema."""
    from sqlalchemy.exc import SQLAlchemyError

    from autosbp.service.db import Database as Db
    from autosbp.service.db import one_line_message
    from autosbp.service.file_permissions import restrict_permissions
    from autosbp.service.process_lock import migrate

    settings = settings_of(database_url=database, data_dir=data_dir)
    restrict_permissions(settings)
    db = Db(settings.url, settings.lock_timeout_s)
    try:
        migrate(db)
        yield db
    except SQLAlchemyError as error:
        raise ServiceError(f"{db.redacted_url} cannot be used: {one_line_message(error)}") from None
    finally:
        db.close()


def _stored(db: Db, key_id: str) -> KeyRow:
    from autosbp.service.services import keys

    for row in keys.all_keys(db):
        if row.id == key_id:
            return row
    raise InputError("key", key_id, "expected the id of a stored key")


def _document(row: KeyRow) -> dict[str, Any]:
    from autosbp.service.services import keys

    return {
        "key": row.id,
        "tenant": row.tenant,
        "name": row.name,
        "prefix": row.prefix,
        "scopes": row.scopes,
        "state": keys.state_of(row),
        "expires": None if row.expires_at is None else row.expires_at.isoformat(timespec="seconds"),
    }


def _print(row: KeyRow, text: str, as_json: bool) -> None:
    if as_json:
        print_json({**_document(row), "secret": text})
        return
    note(f"{row.id} of tenant {row.tenant}, for {row.scopes}; save the key, it is shown only once:")
    typer.echo(text)


app = typer.Typer(name="keys", help="Create, list, rotate and revoke the service's API keys.", no_args_is_help=True)
for _name, _command in (("create", create), ("list", listing), ("rotate", rotate), ("revoke", revoke)):
    app.command(_name)(with_exit_codes(_command))
