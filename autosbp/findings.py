"""What the numbers of a plan's document say: what binds, how good it provably is, and where to look next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.plan import EARLIER_OBJECTIVE
from autosbp.units import num_bytes, percent, seconds

_TIGHT = 0.9
_PROVING = ("auto", "exact", "exhaustive")
_MUCH = 1.1
"""Times as fast: what is less is told in per cent."""
_TIMES = 2.0
"""Times as long as the optimum: what is less is told in per cent above."""
SAME = 1e-6
"""Relative: steps that differ by less are equal."""
_VERDICTS = {True: "may be faster than is said here", False: "does not run", None: "is not known"}
"""What a reason is given for, by whether a baseline is feasible."""
_ADVICE = {
    "compute_s": ("Computation", "more devices or a lower precision shorten it"),
    "exposed_comm_s": ("Communication", "a larger global batch or a faster slowest link shortens it"),
    "bubble_s": ("Waiting of stages", "more microbatches fill the pipeline"),
    "optimizer_s": ("The optimizer", "split more parameters, or enlarge the global batch"),
}
"""Of each part of a step, the four of which add up to it."""
PURPOSES = {
    "gradient_sync": "gradient sync",
    "parameter_gather": "parameter gather",
    "tensor_parallel": "tensor parallelism",
    "expert_parallel": "expert parallelism",
    "pipeline": "messages between stages",
    "loss": "sum of the loss",
}
"""What communication is for (``costmodel.timeline_event.PURPOSES``), in words."""
_NOTABLE = 0.01
"""Of a step: communication that takes less is not told of."""


def certificate(document: Mapping[str, Any]) -> str:
    """How far from the optimum the plan can be, in words."""
    gap, bound = document.get("gap"), document.get("lower_bound_s")
    if gap is None or bound is None:
        return f"no bound: {why_no_bound(document)}"
    if gap == 0:
        return "optimal: no strategy of the search space is faster under the cost model"
    early = "; search ended before all was looked at" if ended_early(document) else ""
    return f"at most {above_optimum(gap)} the optimum (lower bound {seconds(bound)}){early}"


def above_optimum(gap: float) -> str:
    """A gap, which is relative to the plan, relative to the optimum: a plan of twice the bound has one of a half."""
    if gap >= 1.0:
        return "any number of times"
    times = 1 / (1 - gap)
    return f"{100 * (times - 1):.3g} % above" if times < _TIMES else f"{times:.3g} x"


def why_no_bound(document: Mapping[str, Any]) -> str:
    """Why nothing is known of the optimum."""
    if _is_earlier(document):
        return "an earlier release searched it, by a sum in which nothing overlaps; plan again"
    if ended_early(document):
        return "search ended before all was looked at; a longer time limit may give one"
    if document.get("searcher") in _PROVING:
        return "what is charged of a strategy may be more than it takes"
    return f"searcher {document.get('searcher')} proves none; exact does"


def ended_early(document: Mapping[str, Any]) -> bool:
    """Whether a searcher that proves bounds was stopped, by its time limit or by whom it told how it went. Plans of releases
    that did not say so have no gap then."""
    known = document.get("ended_early", document.get("gap") is None and not _is_earlier(document))
    return bool(known) and document.get("searcher") in _PROVING


def _is_earlier(document: Mapping[str, Any]) -> bool:
    return EARLIER_OBJECTIVE in document.get("warnings", ())


def findings(document: Mapping[str, Any]) -> list[str]:
    """Sentences, most important first."""
    return [
        _what_binds(document),
        *_communication(document),
        *_stages(document),
        *_memory(document),
        *_fewer(document),
        *_baselines(document),
        *_next(document),
    ]


def of_links(links: Mapping[str, float], step_s: float) -> list[str]:
    """Which link communication takes most of its time on, whether anybody waits for it or not."""
    spent = sum(links.values())
    if not spent:
        return []
    name = max(links, key=lambda level: links[level])
    share, of_step = percent(links[name], spent), percent(links[name], step_s)
    return [f"Of all communication, {share} crosses links of level {name}, for as long as {of_step} of the step."]


def purposes(breakdown: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of exposed communication by what it is for, in words, longest first; none where plans of earlier releases do not
    say."""
    exposed = breakdown.get("exposed_comm_by_purpose_s") or {}
    longest = sorted((pair for pair in exposed.items() if pair[1] > 0), key=lambda pair: -pair[1])
    return {PURPOSES.get(name, name): seconds_of for name, seconds_of in longest}


def _what_binds(document: Mapping[str, Any]) -> str:
    breakdown, step = document["breakdown"], document["step_time_s"]
    largest = _largest(breakdown)
    name, advice = _ADVICE[largest]
    mostly = _mostly(breakdown) if largest == "exposed_comm_s" else ""
    return f"{name} binds with {percent(breakdown[largest], step)} of the step{mostly}: {advice}."


def _largest(breakdown: Mapping[str, Any]) -> str:
    return max(_ADVICE, key=lambda name: float(breakdown[name]))


def _mostly(breakdown: Mapping[str, Any]) -> str:
    """Of exposed communication, the purpose that takes most."""
    found = purposes(breakdown)
    if not found:
        return ""
    name = next(iter(found))
    part = "all" if len(found) == 1 else "most" if found[name] > sum(found.values()) / 2 else "the largest part"
    return f", {part} of it {name}"


def _communication(document: Mapping[str, Any]) -> list[str]:
    """How much is waited for, where that is not what binds, and how much is hidden."""
    breakdown, step = document["breakdown"], document["step_time_s"]
    exposed, hidden, said = breakdown["exposed_comm_s"], breakdown.get("hidden_comm_s", 0.0), []
    if exposed > _NOTABLE * step and _largest(breakdown) != "exposed_comm_s":
        said.append(f"Communication is waited for during {percent(exposed, step)} of the step{_mostly(breakdown)}.")
    if hidden > _NOTABLE * step:
        share = percent(hidden, exposed + hidden)
        said.append(f"{seconds(hidden)} of communication, {share} of all of it, are hidden behind computation.")
    return said


def _stages(document: Mapping[str, Any]) -> list[str]:
    stages = document.get("by_stage")
    if not stages:
        return []
    said = ", ".join(f"{stage['group']} {seconds(stage['busy_s'])}" for stage in stages)
    return [f"Stages are on groups of unlike devices, and work for so long in a step: {said}."]


def _fewer(document: Mapping[str, Any]) -> list[str]:
    fewer = document.get("fewer_devices")
    if fewer is None:
        return []
    return [f"{fewer['num_devices']} of the devices would do: these take {seconds(fewer['step_time_s'])} a step."]


def _memory(document: Mapping[str, Any]) -> list[str]:
    used, limit = document["memory_bytes_per_device"], document["memory_limit_bytes"]
    parts = document.get("memory_breakdown", {})
    if used < _TIGHT * limit or not parts:
        return []
    largest = max(parts, key=lambda name: parts[name])
    most = f"most of it {largest} ({num_bytes(parts[largest])})"
    return [f"Memory is tight: {percent(used, limit)} of {num_bytes(limit)}, {most}."]


def _baselines(document: Mapping[str, Any]) -> list[str]:
    step, said = document["step_time_s"], []
    known = {name: entry for name, entry in document["baselines"].items() if entry["feasible"]}
    feasible = {name: entry for name, entry in known.items() if not entry.get("free_of")}
    for name, entry in known.items():
        if entry.get("free_of") and entry["step_time_s"] < step * (1 - SAME):
            free = ", ".join(entry["free_of"])
            said.append(f"{name} takes {seconds(entry['step_time_s'])}, free of what is asked for: {free}.")
    if feasible:
        best = min(feasible, key=lambda name: feasible[name]["step_time_s"])
        ratio = feasible[best]["step_time_s"] / step
        if ratio <= 1 + SAME:
            said.append(f"It is no faster than {best}, the best baseline.")
        else:
            faster = f"{ratio:.3g} x" if ratio >= _MUCH else percent(ratio - 1, 1.0)
            said.append(f"It is {faster} faster than {best}, the best baseline.")
    for name, entry in document["baselines"].items():
        if entry["reason"]:
            said.append(f"{name} {_VERDICTS[entry['feasible']]}: {entry['reason']}.")
    return said


def _next(document: Mapping[str, Any]) -> list[str]:
    advice = []
    if document["provenance"].get("calibration_id") is None and "groups" not in document["cluster"]:
        advice.append("Costs come from the cluster's data sheet: a calibration measures it.")
    gap, tolerance = document.get("gap"), document["options"].get("gap_tolerance")
    if ended_early(document):
        advice.append("A longer time limit may give a better plan, and a better bound.")
    elif gap and tolerance is not None and gap > tolerance and document.get("searcher") in _PROVING:
        advice.append(
            f"All was looked at: more time would not prove the {percent(tolerance, 1.0)} that the gap may have."
        )
    return advice
