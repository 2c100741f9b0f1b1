"""``autosbp admin``: back up and restore the service's data and erase tenants, on the service's machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._exit_codes import console, note, print_json, with_exit_codes
from autosbp.cli._keys import open_database
from autosbp.cli._options import AsJson
from autosbp.cli._serve import Database, DataDir, settings_of
from autosbp.cli._text_tables import table
from autosbp.utils.formatting import num_bytes

if TYPE_CHECKING:
    from autosbp.service.backup._archive import Manifest

Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Tenant to erase.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what is stored for the tenant; erase nothing.")]
KeepAudit = Annotated[bool, typer.Option("--keep-audit", help="Keep the tenant's audit log entries.")]
Target = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="Backup file to create, or a folder in which to create one named after the time."
    ),
]
Backup = Annotated[Path, typer.Argument(metavar="FILE", help="Backup file, as written by autosbp admin backup.")]
Replace = Annotated[
    bool, typer.Option("--replace", help="Overwrite existing data, after the backup has been verified.")
]


def erase_tenant(
    tenant: Tenant,
    dry_run: DryRun = False,
    keep_audit: KeepAudit = False,
    database: Database = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Erase a tenant permanently: its database rows, keys, sessions and files. All its jobs must have ended."""
    from autosbp.service.services import erasure

    settings = settings_of(database_url=database, data_dir=data_dir)
    with open_database(database, data_dir) as db:
        if dry_run:
            done = erasure.preview_erasure(db, tenant, keep_audit=keep_audit)
        else:
            done = erasure.erase(settings, db, tenant, keep_audit=keep_audit)
    if as_json:
        print_json({"tenant": tenant, "erased": not dry_run, "rows": dict(done.rows), "files_left": done.files_left})
        return
    console().print(table("", ("table", "rows"), [(name, str(count)) for name, count in done.rows.items()]))
    if done.files_left:
        note(f"the files of {done.files_left} jobs and trials could not be removed yet; the service will retry")
    note(f"tenant {tenant} {'has this' if dry_run else 'is erased'}")


def backup(target: Target, database: Database = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Write a backup of the database and the files it refers to, and verify it. The service may keep running."""
    from autosbp.service.backup import backup as take

    path, manifest = take(settings_of(database_url=database, data_dir=data_dir), target)
    _print(path, manifest, as_json)


def restore(
    file: Backup, replace: Replace = False, database: Database = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Restore a backup. No service may be running on the data."""
    from autosbp.service.backup import restore as put

    _print(file, put(settings_of(database_url=database, data_dir=data_dir), file, replace=replace), as_json)


def _print(path: Path, manifest: Manifest, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {
            "file": str(path),
            "created_at": manifest.created_at,
            "rows": dict(manifest.rows),
            "num_files": len(manifest.files),
            "num_bytes": sum(each.num_bytes for each in manifest.files.values()),
            "left_out": list(manifest.left_out),
        }
        print_json(document)
        return
    size = num_bytes(sum(each.num_bytes for each in manifest.files.values()))
    note(f"{path}: {sum(manifest.rows.values())} rows and {len(manifest.files)} files of {manifest.created_at}, {size}")
    if manifest.left_out:
        note(
            f"{len(manifest.left_out)} artifacts skipped because their files are missing: "
            f"{', '.join(manifest.left_out[:5])}"
        )


app = typer.Typer(
    name="admin",
    help="Back up and restore the service's data on this machine, and erase tenants.",
    no_args_is_help=True,
)
for _name, _command in (("backup", backup), ("restore", restore), ("erase-tenant", erase_tenant)):
    app.command(_name)(with_exit_codes(_command))
