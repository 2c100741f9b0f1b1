"""Families of calibrations: versions corrected by trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_KEY = "fk_calibrations_root_id"


def upgrade() -> None:
    """Add the columns; every stored calibration becomes the root of a family.

    ``root_id`` stays nullable, because SQLite cannot add a required column with a foreign key.
    """
    root = sa.Column("root_id", sa.String(64), sa.ForeignKey("calibrations.id", name=_KEY))
    op.add_column("calibrations", root, inline_references=True)
    op.add_column("calibrations", sa.Column("num_trials", sa.Integer(), nullable=False, server_default="0"))
    rows = sa.table(
        "calibrations", sa.column("id"), sa.column("root_id"), sa.column("num_trials"), sa.column("document", sa.JSON)
    )
    connection = op.get_bind()
    for identifier, document in connection.execute(sa.select(rows.c.id, rows.c.document)).all():
        corrections = document.get("corrections") or [{"num_trials": 0}]
        values = {"root_id": identifier, "num_trials": corrections[-1]["num_trials"]}
        connection.execute(rows.update().where(rows.c.id == identifier).values(values))
    op.create_index("ix_calibrations_root_id", "calibrations", ["root_id"])


def downgrade() -> None:
    """Drop the families; versions stay as separate calibrations."""
    op.drop_index("ix_calibrations_root_id", "calibrations")
    with op.batch_alter_table("calibrations", naming_convention={"fk": "fk_%(table_name)s_%(column_0_name)s"}) as batch:
        if op.get_bind().dialect.name == "sqlite":  # other databases drop the foreign key with its column
            batch.drop_constraint(_KEY, type_="foreignkey")
        for column in ("num_trials", "root_id"):
            batch.drop_column(column)
