"""API keys, audit log, stored answers of idempotent calls, analyses, and hashes of searches' requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from autosbp.service.models._base import UtcDateTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SEARCHES = ("tenant", "request_hash", "created_at")


def upgrade() -> None:
    """Create the new tables; stored searches get no hash, so that none of them answers a new request."""
    _create(
        "api_keys",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("salt", sa.String(64), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(128), nullable=False),
        sa.Column("created_by", sa.String(64)),
        sa.Column("expires_at", UtcDateTime()),
        sa.Column("revoked_at", UtcDateTime()),
        lists=((),),
    )
    op.create_index("ix_api_keys_prefix", "api_keys", ["prefix"], unique=True)
    _create(
        "audit",
        sa.Column("caller", sa.String(64)),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("path", sa.String(512), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("location", sa.String(256)),
        lists=((), ("caller",)),
    )
    _create(
        "replays",
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("headers", sa.JSON()),
        sa.Column("body", sa.Text()),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_replays_expires_at", "replays", ["expires_at"])
    _create(
        "analyses",
        sa.Column("strategy_id", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON()),
        *(
            sa.ForeignKeyConstraint(
                [column, "tenant"], [f"{table}.id", f"{table}.tenant"], name=f"fk_analyses_{column}"
            )
            for column, table in (("strategy_id", "strategies"), ("job_id", "jobs"))
        ),
        lists=((), ("strategy_id",)),
    )
    op.add_column("searches", sa.Column("num_points", sa.Integer()))
    op.add_column("searches", sa.Column("front", sa.JSON()))
    op.add_column("searches", sa.Column("request_hash", sa.String(64)))
    op.create_index(f"ix_searches_{'_'.join(_SEARCHES)}", "searches", list(_SEARCHES))


def downgrade() -> None:
    """Drop what this revision added."""
    op.drop_index(f"ix_searches_{'_'.join(_SEARCHES)}", "searches")
    for column in ("request_hash", "front", "num_points"):
        op.drop_column("searches", column)
    for table in ("analyses", "replays", "audit", "api_keys"):
        op.drop_table(table)


def _create(table: str, *parts: sa.schema.SchemaItem, lists: tuple[tuple[str, ...], ...] = ()) -> None:
    op.create_table(
        table,
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        *parts,
        sa.PrimaryKeyConstraint("id", "tenant", name=f"pk_{table}"),
    )
    for filters in lists:
        columns = ("tenant", *filters, "created_at", "id")
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))
