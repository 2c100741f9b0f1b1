"""Workers, and the fences of the jobs that they claim."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from autosbp.service.models._base import UtcDateTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of workers; no job is claimed."""
    op.create_table(
        "workers",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("machine", sa.String(64), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started", sa.BigInteger(), nullable=False),
        sa.Column("beats", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", "tenant", name="pk_workers"),
    )
    op.add_column("jobs", sa.Column("worker", sa.String(64)))
    op.add_column("jobs", sa.Column("fence", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop what this revision added."""
    for column in ("fence", "worker"):
        op.drop_column("jobs", column)
    op.drop_table("workers")
