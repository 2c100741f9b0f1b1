"""What is read from one run of nccl-tests, whatever the format, and which collective it measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autosbp.costmodel.calibration import Point
from autosbp.errors import InputError

TOOLS: Mapping[str, str] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "p2p",
}
"""Kinds of collectives by the names of nccl-tests' programs, which end in ``_perf``."""
_STARTED = re.compile(r"# Collective test starting: (\w+?)_perf")
_PROGRAM = re.compile(r"(?:^|[/\s])(\w+?)_perf\w*\b")
MIN_ALGBW = 1.0  # GB/s: below it the printed digits are too few to tell the number of ranks


@dataclass(frozen=True, slots=True)
class NcclLog:
    """Points of one collective; medians are nccl-tests' means, without a spread.

    ``bus_factor`` is busbw / algbw where it is known, which tells the number of ranks; ``num_skipped`` counts the
    pieces of rows whose message size was lost between other lines; ``num_groups`` ran at once, None where the log does
    not list its devices. It ``ends`` with the run's summary: of one without, nothing tells whether rows are missing.
    """

    kind: str
    out_of_place: tuple[Point, ...]
    in_place: tuple[Point, ...]
    bus_factor: float | None
    num_skipped: int
    num_groups: int | None = None
    ends: bool = True


def kind_of(given: str | None, program: str, path: Path) -> str:
    """The kind that the caller gives, or that the program's or the file's name tells; ``InputError`` where none does, and for
    a program of what no plan uses, such as ``gather_perf``."""
    if given is not None:
        if given not in TOOLS.values():
            raise InputError("kind", given, f"one of {', '.join(TOOLS.values())} is expected")
        return given
    named = _STARTED.search(program) or _PROGRAM.search(program)
    if named is not None:
        for tool, kind in TOOLS.items():
            if f"_{named[1]}".endswith(f"_{tool}"):
                return kind
        raise InputError("kind", named[1], f"a log of one that plans use is expected: {', '.join(TOOLS)}")
    for tool, kind in TOOLS.items():
        if tool in path.name:
            return kind
    limit = f"a log that names its program, or a file named after it, is expected: one of {', '.join(TOOLS)}"
    raise InputError("kind", f"that of {path.name}", limit)
