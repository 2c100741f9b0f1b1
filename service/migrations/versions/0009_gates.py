"""What trials were run for, and what came of their gates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their columns; no trial so far has a label or was judged here, so none is one to compare with."""
    op.add_column("trials", sa.Column("label", sa.String(200)))
    op.add_column("trials", sa.Column("passed", sa.Boolean()))
    op.add_column("trials", sa.Column("gates", sa.JSON()))


def downgrade() -> None:
    """Drop what this revision made."""
    for name in ("gates", "passed", "label"):
        op.drop_column("trials", name)
