"""Strategies that searches begin with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their column; no search so far began with any."""
    op.add_column("searches", sa.Column("start_id", sa.String(64)))


def downgrade() -> None:
    """Drop what this revision made."""
    op.drop_column("searches", "start_id")
