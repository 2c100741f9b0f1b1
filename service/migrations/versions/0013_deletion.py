"""Deletion of resources: indexes of references, files to delete, full content hashes and sizes of documents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from autosbp.service.models._base import UtcDateTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_REFERENCES = (
    ("analyses", "job_id"),
    ("calibrations", "job_id"),
    ("searches", "calibration_id"),
    ("searches", "job_id"),
    ("searches", "start_id"),
    ("trials", "job_id"),
)
_NAMED_BY_CONTENT = ("models", "clusters", "calibrations", "strategies")
_DOCUMENTS = ("models", "calibrations")
_COUNTED = (*_DOCUMENTS, "artifacts")


def upgrade() -> None:
    """Create the indexes, the table and the columns; stored rows get no hash."""
    for table in _NAMED_BY_CONTENT:
        op.add_column(table, sa.Column("content_hash", sa.String(64)))
    for table in _DOCUMENTS:
        op.add_column(table, sa.Column("num_bytes", sa.BigInteger(), nullable=False, server_default="0"))
        rows = sa.table(table, sa.column("num_bytes", sa.BigInteger()), sa.column("document", sa.JSON()))
        op.execute(rows.update().values(num_bytes=sa.func.length(sa.cast(rows.c.document, sa.Text()))))
    for table in _COUNTED:
        op.create_index(f"ix_{table}_tenant_num_bytes", table, ["tenant", "num_bytes"])
    for table, column in _REFERENCES:
        op.create_index(f"ix_{table}_tenant_{column}", table, ["tenant", column])
    op.create_table(
        "removed_files",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("place", sa.String(512), nullable=False),
        sa.PrimaryKeyConstraint("id", "tenant", name="pk_removed_files"),
    )


def downgrade() -> None:
    """Drop what this revision added."""
    op.drop_table("removed_files")
    for table, column in reversed(_REFERENCES):
        op.drop_index(f"ix_{table}_tenant_{column}", table)
    for table in reversed(_COUNTED):
        op.drop_index(f"ix_{table}_tenant_num_bytes", table)
    for table in reversed(_DOCUMENTS):
        op.drop_column(table, "num_bytes")
    for table in reversed(_NAMED_BY_CONTENT):
        op.drop_column(table, "content_hash")
