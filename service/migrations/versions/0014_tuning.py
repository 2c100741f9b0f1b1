"""Searches by trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; stored searches are without trials."""
    op.add_column("searches", sa.Column("tuning", sa.JSON()))
    op.add_column("searches", sa.Column("tuning_summary", sa.JSON()))


def downgrade() -> None:
    """Drop what this revision added."""
    for name in ("tuning_summary", "tuning"):
        op.drop_column("searches", name)
