"""Browser sessions that were signed out of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from autosbp.service.models._base import UtcDateTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, empty."""
    op.create_table(
        "ended_sessions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", "tenant", name="pk_ended_sessions"),
    )
    op.create_index("ix_ended_sessions_expires_at", "ended_sessions", ["expires_at"])


def downgrade() -> None:
    """Drop what this revision added."""
    op.drop_table("ended_sessions")
