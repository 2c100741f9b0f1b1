"""``autosbp plan --pareto N``: plans of less and less memory beside the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as naturals
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from autosbp.cli._format import table
from autosbp.cli._run import console
from autosbp.units import num_bytes, percent, seconds

if TYPE_CHECKING:
    from autosbp.plan import Plan


def front_paths(output: Path, count: int) -> list[Path]:
    """Where the plans of a front are written: ``plan.json``, ``plan.2.json``, ..., fastest first."""
    return [output, *(_numbered(output, at) for at in range(2, count + 1))]


def left_of_others(output: Path, count: int) -> list[Path]:
    """Plans of an earlier, longer front beside these."""
    return list(takewhile(Path.exists, (_numbered(output, at) for at in naturals(count + 1))))


def _numbered(output: Path, at: int) -> Path:
    return output.with_suffix(f".{at}{output.suffix}")


def show_front(plans: Sequence[Plan]) -> None:
    """A row for each plan, fastest first."""
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
    columns = ("plan", "step time", "", "memory", "of the limit", "stages", "mesh", "microbatch", "gathered once a")
    console().print(table("step time against memory", columns, rows, 1))
