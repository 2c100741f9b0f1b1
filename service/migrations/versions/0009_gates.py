"""Labels and gate results of trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; stored trials have no label and are not judged, so they are no reference for later trials."""
    op.add_column("trials", sa.Column("label", sa.String(200)))
    op.add_column("trials", sa.Column("passed", sa.Boolean()))
    op.add_column("trials", sa.Column("gates", sa.JSON()))


def downgrade() -> None:
    """Drop what this revision added."""
    for name in ("gates", "passed", "label"):
        op.drop_column("trials", name)
