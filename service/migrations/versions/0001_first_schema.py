"""First schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from autosbp.service.models._base import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = ("clusters", "jobs", "models", "calibrations", "strategies", "searches", "trials")
_INDEXES = {
    "jobs": (("state", "created_at"),),
    "calibrations": (("cluster_id",),),
    "strategies": (("model_id",), ("cluster_id",)),
    "searches": (("model_id",), ("cluster_id",), ("strategy_id",)),
    "trials": (("strategy_id",),),
}


def upgrade() -> None:
    """Create every table and index."""
    _create(
        "clusters",
        sa.Column("name", sa.String(4096), nullable=False),
        sa.Column("cluster_hash", sa.String(64), nullable=False),
        sa.Column("num_devices", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.UniqueConstraint("cluster_hash", name="uq_clusters_cluster_hash"),
    )
    _create(
        "jobs",
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("resource", sa.String(128)),
        sa.Column("progress", sa.Double()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("problem", sa.JSON()),
        sa.Column("result", sa.JSON()),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime()),
        sa.Column("finished_at", UtcDateTime()),
    )
    _create(
        "models",
        sa.Column("name", sa.String(4096), nullable=False),
        sa.Column("source", sa.String(256), nullable=False),
        sa.Column("graph_hash", sa.String(64), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.UniqueConstraint("graph_hash", name="uq_models_graph_hash"),
    )
    _create(
        "calibrations",
        _reference("calibrations", "cluster_id", "clusters"),
        _reference("calibrations", "job_id", "jobs", nullable=True),
        sa.Column("backend", sa.String(16), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("num_collectives", sa.Integer(), nullable=False),
        sa.Column("num_ops", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
    )
    _create(
        "strategies",
        _reference("strategies", "model_id", "models"),
        _reference("strategies", "cluster_id", "clusters"),
        _reference("strategies", "calibration_id", "calibrations", nullable=True),
        sa.Column("searcher", sa.String(64), nullable=False),
        sa.Column("step_time_s", sa.Double(), nullable=False),
        sa.Column("comm_bytes_per_device", sa.BigInteger(), nullable=False),
        sa.Column("memory_bytes_per_device", sa.BigInteger(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
    )
    _create(
        "searches",
        _reference("searches", "model_id", "models"),
        _reference("searches", "cluster_id", "clusters"),
        _reference("searches", "calibration_id", "calibrations", nullable=True),
        _reference("searches", "job_id", "jobs"),
        _reference("searches", "strategy_id", "strategies", nullable=True),
        sa.Column("options", sa.JSON(), nullable=False),
    )
    _create(
        "trials",
        _reference("trials", "strategy_id", "strategies"),
        _reference("trials", "job_id", "jobs"),
        sa.Column("baseline", sa.String(64)),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("predicted", sa.JSON(), nullable=False),
        sa.Column("measured_step_time_s", sa.Double()),
        sa.Column("relative_error", sa.Double()),
        sa.Column("result", sa.JSON()),
    )


def downgrade() -> None:
    """Drop every table."""
    for table in reversed(_TABLES):
        op.drop_table(table)


def _create(table: str, *parts: sa.schema.SchemaItem) -> None:
    op.create_table(
        table,
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        *parts,
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
    )
    for columns in (("created_at",), *_INDEXES.get(table, ())):
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def _reference(table: str, column: str, target: str, nullable: bool = False) -> sa.Column[str]:
    key = sa.ForeignKey(f"{target}.id", name=f"fk_{table}_{column}")
    return sa.Column(column, sa.String(64), key, nullable=nullable)
