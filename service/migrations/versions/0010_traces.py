"""Trace contexts of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; stored jobs have no trace."""
    op.add_column("jobs", sa.Column("trace", sa.JSON()))


def downgrade() -> None:
    """Drop what this revision added."""
    op.drop_column("jobs", "trace")
