"""The traces that jobs are parts of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their column; no job so far is part of one."""
    op.add_column("jobs", sa.Column("trace", sa.JSON()))


def downgrade() -> None:
    """Drop what this revision made."""
    op.drop_column("jobs", "trace")
