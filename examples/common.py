"""Helpers of the examples, which start four ranks.

``train`` trains graphs under strategies and measures them; ``run_on_ranks`` runs an example's own program.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from autosbp.api import LogicalGraph
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Strategy
from autosbp.utils.processes import exit_rank

NUM_RANKS = 4
STEPS = 4


@dataclass(frozen=True, slots=True)
class Run:
    """Training under one strategy. All values are the maximum over ranks.

    Attributes:
        losses: loss of each step.
        step_s: the rank's fastest step, in seconds.
        loss_error: largest relative error of a loss against training on one device.
        gradient_error: the same for gradients.
        parameters: bytes allocated for stored parameters; likewise ``gradients`` and ``optimizer``.
        peak: most bytes of tensors alive at once during a step.
        sent: collectives of one step, counted by kind.
        as_charged: every rank issued exactly the planned collectives.
    """

    losses: tuple[float, ...]
    step_s: float
    loss_error: float
    gradient_error: float
    parameters: int
    gradients: int
    optimizer: int
    peak: int
    sent: Mapping[str, int]
    as_charged: bool

    @property
    def collectives(self) -> str:
        """Collectives of one step, such as ``2 all_gather, 1 all_reduce``."""
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.sent.items())) or "none"


@dataclass(frozen=True, slots=True)
class Report:
    """Text that a program on ranks reports, and whether all its checks passed."""

    text: str
    right: bool


def train(cases: Mapping[str, tuple[LogicalGraph, Strategy]], *, seed: int = 0) -> dict[str, Run]:
    """Train each graph under its strategy on four ranks of this machine, on one random batch; compare with one device."""
    request = {
        label: {"graph": graph.to_dict(), "strategy": strategy.to_dict(), "seed": seed}
        for label, (graph, strategy) in cases.items()
    }
    return {label: Run(**result) for label, result in _launch("train", request).items()}


def run_on_ranks(module: str, program: Callable[[], Report]) -> Report:
    """Run ``program`` of the example ``module`` on four ranks of this machine and return rank 0's report.

    ``right`` is True only if it is on every rank. On a rank, which torchrun started, this function runs the program
    itself and then exits.
    """
    if "RANK" not in os.environ:
        return Report(**_launch(module, None))
    with process_group() as dist:
        report = program()
        everyone = [False] * dist.get_world_size()
        dist.all_gather_object(everyone, report.right)
        if dist.get_rank() == 0:
            Path(sys.argv[2]).write_text(json.dumps({"text": report.text, "right": all(everyone)}))
    sys.exit(0)


def _launch(module: str, request: object) -> dict[str, Any]:
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="autosbp-example-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(request))
        arguments = [str(folder / "request.json"), str(folder / "result.json")]
        outcome = run_ranks(module, arguments, NUM_RANKS, folder / "log", timeout_s=300)
        if outcome.reason:
            sys.exit(f"{outcome.reason}\n{outcome.log_tail}")
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found


@contextmanager
def process_group() -> Iterator[Any]:
    """``torch.distributed`` with Gloo among the ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    yield dist
    exit_rank()


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Text table with the first column left-aligned and the others right-aligned."""
    texts = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(head))]
    return "".join(
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        + "\n"
        for row in texts
    )


def kib(num_bytes: float) -> str:
    """Format bytes in KiB."""
    return f"{num_bytes / 1024:,.0f}"


def print_flush(text: str) -> None:
    """Print and flush."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
