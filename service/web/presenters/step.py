"""Where the time of a step goes: the parts that add up to it, and the communication that is hidden beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosbp.findings import purposes
from service.web.presenters.parts import Stack, stack
from service.web.text import Unit, seconds, share, time_unit

PARTS = {
    "compute_s": "Computation",
    "exposed_comm_s": "Exposed communication",
    "bubble_s": "Waiting of stages",
    "optimizer_s": "Optimizer",
}
"""What adds up to a step, in words."""
HIDDEN, HIDDEN_WORDS = "hidden_comm_s", "Hidden communication"
_TONES = ("a", "b", "c", "d", "e", "f")


def time_stack(plan: Mapping[str, Any]) -> Stack:
    """The parts of a plan's step."""
    parts = plan["breakdown"]
    return _stack("Time of a step", {words: parts.get(name, 0.0) for name, words in PARTS.items()})


def exposed_stack(plan: Mapping[str, Any]) -> Stack | None:
    """What the communication that is waited for is for; None where there is none, or where the plan does not say."""
    found = {name[:1].upper() + name[1:]: spent for name, spent in purposes(plan["breakdown"]).items()}
    return _stack(PARTS["exposed_comm_s"], found) if found else None


def hidden_note(plan: Mapping[str, Any]) -> str:
    """How much communication nobody waits for."""
    exposed, hidden = plan["breakdown"].get("exposed_comm_s", 0.0), plan["breakdown"].get(HIDDEN, 0.0)
    if not hidden > 0:
        return "No communication is hidden behind computation."
    of_all = share(hidden / (exposed + hidden))
    return f"{seconds(hidden)} of communication, {of_all} of all of it, are hidden behind computation."


def chart_parts(plans: Sequence[Mapping[str, Any]], unit: Unit) -> list[dict[str, Any]]:
    """For a chart of stacked bars: each part of all plans, or baselines."""
    return [
        {"name": words, "values": [each["breakdown"].get(name, 0.0) / unit.scale for each in plans]}
        for name, words in PARTS.items()
    ]


def _stack(label: str, parts: Mapping[str, float]) -> Stack:
    named = [(words, spent, tone) for (words, spent), tone in zip(parts.items(), _TONES, strict=False)]
    return stack(label, named, time_unit(parts.values()))
