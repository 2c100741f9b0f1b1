"""The step time of a strategy is the simulated one; earlier releases stored a sum without overlap."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_STRATEGIES = sa.table("strategies", sa.column("step_time_s", sa.Double()), sa.column("plan", sa.JSON()))


def upgrade() -> None:
    """Take the simulated step time from plans that have both."""
    _take("simulated_step_time_s")


def downgrade() -> None:
    """Take the step time that the search minimised."""
    _take("step_time_s")


def _take(name: str) -> None:
    stored_s = _STRATEGIES.c.plan[name].as_float()
    op.execute(_STRATEGIES.update().where(stored_s.is_not(None)).values(step_time_s=stored_s))
