"""Breakdown of the step time into parts, and the communication hidden behind computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosbp.report.findings import purposes
from autosbp.service.web.number_format import Unit, seconds, share, time_unit
from autosbp.service.web.presenters.page_parts import Stack, stack

PARTS = {
    "compute_s": "Computation",
    "exposed_comm_s": "Exposed communication",
    "bubble_s": "Pipeline bubble",
    "optimizer_s": "Optimizer",
}
"""Parts that add up to the step time, with their labels."""
HIDDEN, HIDDEN_WORDS = "hidden_comm_s", "Hidden communication"
_TONES = ("a", "b", "c", "d", "e", "f")


def time_stack(plan: Mapping[str, Any]) -> Stack:
    """The parts of a plan's step."""
    parts = plan["breakdown"]
    return _stack("Step time", {words: parts.get(name, 0.0) for name, words in PARTS.items()})


def exposed_stack(plan: Mapping[str, Any]) -> Stack | None:
    """Exposed communication by purpose; None if there is none or the plan does not list purposes."""
    found = {name[:1].upper() + name[1:]: spent for name, spent in purposes(plan["breakdown"]).items()}
    return _stack(PARTS["exposed_comm_s"], found) if found else None


def hidden_note(plan: Mapping[str, Any]) -> str:
    """Sentence about the hidden communication."""
    exposed, hidden = plan["breakdown"].get("exposed_comm_s", 0.0), plan["breakdown"].get(HIDDEN, 0.0)
    if not hidden > 0:
        return "No communication is hidden behind computation."
    of_all = share(hidden / (exposed + hidden))
    return f"{seconds(hidden)} of communication ({of_all} of the total) is hidden behind computation."


def chart_parts(plans: Sequence[Mapping[str, Any]], unit: Unit) -> list[dict[str, Any]]:
    """Data of a stacked bar chart: each part for all plans or baselines."""
    return [
        {"name": words, "values": [each["breakdown"].get(name, 0.0) / unit.scale for each in plans]}
        for name, words in PARTS.items()
    ]


def _stack(label: str, parts: Mapping[str, float]) -> Stack:
    named = [(words, spent, tone) for (words, spent), tone in zip(parts.items(), _TONES, strict=False)]
    return stack(label, named, time_unit(parts.values()))
