"""Artifacts: saved files of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from autosbp.service.models._base import UtcDateTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; files of jobs that have ended already stay where they are."""
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", "tenant", name="pk_artifacts"),
        sa.ForeignKeyConstraint(["job_id", "tenant"], ["jobs.id", "jobs.tenant"], name="fk_artifacts_job_id"),
    )
    op.create_index("ix_artifacts_tenant_created_at_id", "artifacts", ["tenant", "created_at", "id"])
    op.create_index("ix_artifacts_tenant_job_id_created_at_id", "artifacts", ["tenant", "job_id", "created_at", "id"])


def downgrade() -> None:
    """Drop what this revision added."""
    op.drop_table("artifacts")
