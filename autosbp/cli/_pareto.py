"""``autosbp plan --pareto N``: the fastest plan and slower plans that need less memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as naturals
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from autosbp.cli._exit_codes import console
from autosbp.cli._text_tables import table
from autosbp.utils.formatting import num_bytes, percent, seconds

if TYPE_CHECKING:
    from autosbp.plan.plan import Plan


def front_paths(output: Path, count: int) -> list[Path]:
    """Paths for the plans of a Pareto front: ``plan.json``, ``plan.2.json``, ..., fastest first."""
    return [output, *(_numbered_path(output, at) for at in range(2, count + 1))]


def stale_front_files(output: Path, count: int) -> list[Path]:
    """Plan files that remain from an earlier, longer front."""
    return list(takewhile(Path.exists, (_numbered_path(output, at) for at in naturals(count + 1))))


def _numbered_path(output: Path, at: int) -> Path:
    return output.with_suffix(f".{at}{output.suffix}")


def show_front(plans: Sequence[Plan]) -> None:
    """Print one row per plan, fastest first."""
    fastest, limit = plans[0].document["step_time_s"], plans[0].document["memory_limit_bytes"]
    rows = []
    for plan in plans:
        document, strategy = plan.document, plan.strategy
        step, memory = document["step_time_s"], document["memory_bytes_per_device"]
        rows.append(
            (
                plan.plan_id,
                seconds(step),
                f"{step / fastest:.3g} x",
                num_bytes(memory),
                percent(memory, limit),
                str(strategy.num_stages),
                " x ".join(str(axis.size) for axis in strategy.mesh.axes) or "1",
                str(strategy.micro_batch),
                strategy.gather,
            )
        )
    columns = ("plan", "step time", "", "memory", "of the limit", "stages", "mesh", "microbatch", "gathered per")
    console().print(table("step time and memory", columns, rows, 1))
