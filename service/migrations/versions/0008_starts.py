"""Warm starts of searches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; stored searches have no warm start."""
    op.add_column("searches", sa.Column("start_id", sa.String(64)))


def downgrade() -> None:
    """Drop what this revision added."""
    op.drop_column("searches", "start_id")
