"""Tenants in every row, primary key and foreign key; existing rows belong to the tenant "default"."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_DEFAULT = "default"
_NAMES = {"fk": "fk_%(table_name)s_%(column_0_name)s"}
_TABLES = ("clusters", "jobs", "models", "calibrations", "strategies", "searches", "trials")
_UNIQUE = {"clusters": "cluster_hash", "models": "graph_hash"}
_REFERENCES = {
    "calibrations": {"cluster_id": "clusters", "job_id": "jobs", "root_id": "calibrations"},
    "strategies": {"model_id": "models", "cluster_id": "clusters", "calibration_id": "calibrations"},
    "searches": {
        "model_id": "models",
        "cluster_id": "clusters",
        "calibration_id": "calibrations",
        "job_id": "jobs",
        "strategy_id": "strategies",
    },
    "trials": {"strategy_id": "strategies", "job_id": "jobs"},
}
_BEFORE = {
    "calibrations": ("cluster_id", "root_id"),
    "strategies": ("model_id", "cluster_id"),
    "searches": ("model_id", "cluster_id", "strategy_id"),
    "trials": ("strategy_id",),
}
_AFTER = {**_BEFORE, "strategies": ("model_id", "cluster_id", "calibration_id")}


def upgrade() -> None:
    """Change primary keys to (id, tenant) and add indexes for the lists of a tenant."""
    for table in _TABLES:
        for column in ("created_at", *_BEFORE.get(table, ())):
            op.drop_index(f"ix_{table}_{column}", table)
    _drop_references()
    for table in _TABLES:
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("tenant", sa.String(64), nullable=False, server_default=_DEFAULT))
            if table in _UNIQUE:
                batch.drop_constraint(f"uq_{table}_{_UNIQUE[table]}", type_="unique")
            batch.drop_constraint(f"pk_{table}", type_="primary")
            batch.create_primary_key(f"pk_{table}", ["id", "tenant"])
        with op.batch_alter_table(table) as batch:
            batch.alter_column("tenant", existing_type=sa.String(64), existing_nullable=False, server_default=None)
    _create_references("tenant")
    for table in _TABLES:
        for columns in _listed(table):
            op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def downgrade() -> None:
    """Drop the tenants; refused if there are several, because their rows may have the same ids."""
    connection = op.get_bind()
    for name in _TABLES:
        rows = sa.table(name, sa.column("tenant"))
        others = sa.select(sa.func.count()).select_from(rows).where(rows.c.tenant != _DEFAULT)
        if connection.execute(others).scalar():
            raise RuntimeError(
                f"table {name} has rows of tenants other than {_DEFAULT!r}, but the older schema has no tenants"
            )
    for table in _TABLES:
        for columns in _listed(table):
            op.drop_index(f"ix_{table}_{'_'.join(columns)}", table)
    _drop_references()
    for table in _TABLES:
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"pk_{table}", type_="primary")
            batch.create_primary_key(f"pk_{table}", ["id"])
            batch.drop_column("tenant")
            if table in _UNIQUE:
                batch.create_unique_constraint(f"uq_{table}_{_UNIQUE[table]}", [_UNIQUE[table]])
    _create_references()
    for table in _TABLES:
        for column in ("created_at", *_BEFORE.get(table, ())):
            op.create_index(f"ix_{table}_{column}", table, [column])


def _listed(table: str) -> list[tuple[str, ...]]:
    order = ("created_at", "id")
    return [("tenant", *order), *(("tenant", name, *order) for name in _AFTER.get(table, ()))]


def _drop_references() -> None:
    for table, references in _REFERENCES.items():
        with op.batch_alter_table(table, naming_convention=_NAMES) as batch:
            named = {found["constrained_columns"][0]: found["name"] for found in _stored_references(table)}
            for column in references:
                batch.drop_constraint(named[column] or f"fk_{table}_{column}", type_="foreignkey")


def _create_references(*more: str) -> None:
    for table, references in _REFERENCES.items():
        with op.batch_alter_table(table) as batch:
            for column, target in references.items():
                batch.create_foreign_key(f"fk_{table}_{column}", target, [column, *more], ["id", *more])


def _stored_references(table: str) -> list[Any]:
    """Foreign keys as stored; the one added by revision 0002 has another name on each database, or none."""
    return list(sa.inspect(op.get_bind()).get_foreign_keys(table))
