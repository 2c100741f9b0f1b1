"""Lanes and expected seconds of jobs, and the tenants' shares of each lane."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from autosbp.service.models._base import UtcDateTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_MEASURE = ("calibrate", "trial")
_INDEX = "ix_jobs_state_lane_tenant_created_at"


def upgrade() -> None:
    """Stored jobs get the lane of their kind and the expected time of a job without a time limit."""
    op.add_column("jobs", sa.Column("lane", sa.String(16), nullable=False, server_default="plan"))
    op.add_column("jobs", sa.Column("expected_s", sa.Double(), nullable=False, server_default="20"))
    jobs = sa.table("jobs", sa.column("kind", sa.String()), sa.column("lane", sa.String()))
    op.execute(jobs.update().where(jobs.c.kind.in_(_MEASURE)).values(lane="measure"))
    op.create_index(_INDEX, "jobs", ["state", "lane", "tenant", "created_at"])
    op.create_table(
        "queue_shares",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("began_s", sa.Double(), nullable=False),
        sa.Column("due_s", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", "tenant", name="pk_queue_shares"),
    )


def downgrade() -> None:
    """Drop what this revision added."""
    op.drop_table("queue_shares")
    op.drop_index(_INDEX, "jobs")
    for column in ("expected_s", "lane"):
        op.drop_column("jobs", column)
