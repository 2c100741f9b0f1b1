"""``autosbp keys``: API keys of the service on this machine, made without a running service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._format import table
from autosbp.cli._options import AsJson
from autosbp.cli._run import console, guarded, note, print_json
from autosbp.cli._serve import Database, DataDir, settings_of
from autosbp.errors import InputError, ServiceError, printable

if TYPE_CHECKING:
    from service.db import Database as Db
    from service.models import KeyRow

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose everything is that the key reaches.")]
Name = Annotated[str, typer.Option("--name", help="For people: whose key it is, or what for.")]
Scopes = Annotated[
    str, typer.Option("--scopes", metavar="SCOPE,...", help="Some of read, search, trial, calibrate, admin.")
]
Days = Annotated[float, typer.Option("--days", min=0, help="Until it expires; 0: never.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="A key's id, as autosbp keys list shows it.")]
Grace = Annotated[float, typer.Option("--grace-s", min=0, help="Seconds for which the old key works on.")]
_NAME = 64
_MOST_DAYS, _MOST_GRACE_S = 3650.0, 30 * 86_400.0  # as the routes have them


def create(
    tenant: Tenant = "default",
    name: Name = "command line",
    scopes: Scopes = "read,search,trial,calibrate",
    days: Days = 90.0,
    database: Database = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it: it is shown this once. From then on the service asks for keys."""
    from service.services import audit, keys

    if not tenant.replace("-", "").replace("_", "").isalnum() or not tenant.isascii() or len(tenant) > _NAME:
        raise InputError("tenant", tenant, f"at most {_NAME} letters, digits, - and _ are expected")
    if not 1 <= len(name) <= 128:
        raise InputError("name", name, "1 to 128 characters are expected")
    lifetime = timedelta(days=_within("days", days, _MOST_DAYS)) if days else None
    with opened(database, data_dir) as db:
        made = keys.create(db.of(tenant), name, [scope.strip() for scope in scopes.split(",")], lifetime)
        audit.note(db.of(tenant), "POST", "/v1/keys", 201, f"/v1/keys/{made.row.id}")
        _print(made.row, made.text, as_json)


def rotate(
    key: KeyId, grace_s: Grace = 3600.0, database: Database = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Print a new key with the same name, scopes and lifetime; the old one works on for a while."""
    from service.services import audit, keys

    grace = timedelta(seconds=_within("grace_s", grace_s, _MOST_GRACE_S))
    with opened(database, data_dir) as db:
        row = _stored(db, key)
        if keys.state_of(row) != "valid":
            raise InputError("key", key, f"a valid key is expected; this one is {keys.state_of(row)}")
        made = keys.rotate(db.of(row.tenant), key, grace)
        audit.note(db.of(row.tenant), "POST", f"/v1/keys/{key}:rotate", 201, f"/v1/keys/{made.row.id}")
        _print(made.row, made.text, as_json)


def revoke(key: KeyId, database: Database = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """End a key at once."""
    from service.services import audit, keys

    with opened(database, data_dir) as db:
        row = keys.revoke(db.of(_stored(db, key).tenant), key)
        audit.note(db.of(row.tenant), "DELETE", f"/v1/keys/{key}")
        if as_json:
            print_json(_document(row))
        else:
            note(f"revoked {row.id} ({printable(row.name)}) of tenant {row.tenant}")


def listing(database: Database = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Every key of every tenant, without its text, which is not stored."""
    from service.services import keys

    with opened(database, data_dir) as db:
        found = [_document(row) for row in keys.every(db)]
    if as_json:
        print_json({"keys": found})
        return
    columns = ("key", "tenant", "name", "prefix", "scopes", "state", "expires")
    rows = [tuple(printable(str(one[column] or "never")) for column in columns) for one in found]
    console().print(table("", columns, rows, left=len(columns)))


def _within(field: str, value: float, most: float) -> float:
    if not 0 <= value <= most:
        raise InputError(field, value, f"0 to {most:.0f} is expected")
    return value


@contextmanager
def opened(database: str | None, data_dir: Any) -> Iterator[Db]:
    """The service's database, of the newest schema."""
    from sqlalchemy.exc import SQLAlchemyError

    from service.db import Database as Db
    from service.db import plainly
    from service.hold import migrate
    from service.privacy import keep_private

    settings = settings_of(database_url=database, data_dir=data_dir)
    keep_private(settings)
    db = Db(settings.url, settings.lock_timeout_s)
    try:
        migrate(db)
        yield db
    except SQLAlchemyError as error:
        raise ServiceError(f"{db.shown} cannot be used: {plainly(error)}") from None
    finally:
        db.close()


def _stored(db: Db, key_id: str) -> KeyRow:
    from service.services import keys

    for row in keys.every(db):
        if row.id == key_id:
            return row
    raise InputError("key", key_id, "the id of a stored key is expected")


def _document(row: KeyRow) -> dict[str, Any]:
    from service.services import keys

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
    note(f"{row.id} of tenant {row.tenant}, for {row.scopes}; keep it, it is not stored:")
    typer.echo(text)


app = typer.Typer(name="keys", help="Make, list, rotate and revoke API keys of the service.", no_args_is_help=True)
for _name, _command in (("create", create), ("list", listing), ("rotate", rotate), ("revoke", revoke)):
    app.command(_name)(guarded(_command))
