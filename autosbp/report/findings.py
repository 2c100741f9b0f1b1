"""Findings of a plan's document: the bottleneck, the optimality gap, and what to try next."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from autosbp.plan.plan import OLDER_OBJECTIVE_WARNING
from autosbp.utils.formatting import count, num_bytes, percent, seconds

_TIGHT_MEMORY_FRACTION = 0.9
_PROVING_SOLVERS = ("auto", "exact", "exhaustive")
_FACTOR_SPEEDUP = 1.1
"""Ratio of step times from which a speedup is written as a factor; smaller ones are written in per cent."""
_FACTOR_GAP = 2.0
"""Ratio to the optimum from which it is written as a factor; smaller ones are written in per cent above."""
STEP_TIME_RTOL = 1e-6
"""Relative tolerance: step times that differ by less are equal."""
_VERDICTS = {True: "may be faster than shown here", False: "does not run", None: "is unknown"}
"""Verdict on a baseline that has a reason, by whether the baseline is feasible."""
_ADVICE = {
    "compute_s": ("Computation", "use a lower precision or faster devices"),
    "exposed_comm_s": ("Communication", "use a larger global batch or a faster slowest link"),
    "bubble_s": ("The pipeline bubble", "use more microbatches"),
    "optimizer_s": ("The optimizer", "shard more parameters or enlarge the global batch"),
}
"""Label and advice for each of the four parts that add up to the step time."""
PURPOSES = {
    "gradient_sync": "gradient sync",
    "parameter_gather": "parameter gather",
    "tensor_parallel": "tensor parallelism",
    "expert_parallel": "expert parallelism",
    "pipeline": "messages between stages",
    "loss": "loss reduction",
}
"""Purposes of communication (``costmodel.step_event.PURPOSES``), in words."""
_MIN_COMM_FRACTION = 0.01
"""Fraction of the step time below which communication is not mentioned."""


def certificate(document: Mapping[str, Any]) -> str:
    """Bound on the gap between the plan and the optimum, in words."""
    gap, bound = document.get("gap"), document.get("lower_bound_s")
    if gap is None or bound is None:
        return f"no bound: {why_no_bound(document)}"
    if gap == 0:
        return "optimal: no strategy of the search space is faster under the cost model"
    early = "; search was stopped early" if ended_early(document) else ""
    return f"at most {above_optimum(gap)} the optimum (lower bound {seconds(bound)}){early}"


def training_terms(document: Mapping[str, Any]) -> str:
    """Precision, sequence length, throughput, utilisation and cost of a plan, in one line."""
    length, tokens_per_s = document.get("sequence_length"), document.get("tokens_per_s")
    samples_per_s = document["strategy"]["global_batch"] / document["step_time_s"]
    rate = (
        f"{count(samples_per_s).strip()} samples/s"
        if tokens_per_s is None
        else f"{count(tokens_per_s).strip()} tokens/s"
    )
    said = [
        f"precision {document.get('precision') or 'of the graph as captured'}",
        *([] if length is None else [f"{length:,} tokens a sample"]),
        rate,
        *([f"MFU {percent(document['mfu'], 1.0)}"] if document.get("mfu") else []),
    ]
    hours, price = document.get("hours_per_billion_tokens"), document.get("price_per_billion_tokens")
    if hours is not None:
        said.append(f"{hours:.3g} h{'' if price is None else f' and {price:,.0f} USD'} for 10^9 tokens")
    return ", ".join(said)


def above_optimum(gap: float) -> str:
    """Convert a gap relative to the plan to words relative to the optimum: gap 0.5 means twice the lower bound."""
    if gap >= 1.0:
        return "an unknown factor above"
    times = 1 / (1 - gap)
    return f"{100 * (times - 1):.3g} % above" if times < _FACTOR_GAP else f"{times:.3g} x"


def why_no_bound(document: Mapping[str, Any]) -> str:
    """Why there is no lower bound, in words."""
    if _has_earlier_objective(document):
        return "an earlier release searched this plan with a cost model without overlap; plan again"
    if ended_early(document):
        return "search was stopped early; a longer time limit may give one"
    if document.get("searcher") in _PROVING_SOLVERS:
        return "the cost model may overestimate strategies"
    return f"searcher {document.get('searcher')} proves no bounds; use exact"


def ended_early(document: Mapping[str, Any]) -> bool:
    """Whether a time limit or the caller's callback stopped a searcher that proves bounds.

    Plans of releases without the field ``ended_early`` have no gap in this case.
    """
    known = document.get("ended_early", document.get("gap") is None and not _has_earlier_objective(document))
    return bool(known) and document.get("searcher") in _PROVING_SOLVERS


def _has_earlier_objective(document: Mapping[str, Any]) -> bool:
    return OLDER_OBJECTIVE_WARNING in document.get("warnings", ())


def findings(document: Mapping[str, Any]) -> list[str]:
    """Findings as sentences, most important first."""
    return [
        *_fewer_devices(document),
        _bottleneck(document),
        *_communication(document),
        *_stage_times(document),
        *_memory(document),
        *_baselines(document),
        *_advice(document),
    ]


def link_findings(links: Mapping[str, float], step_s: float) -> list[str]:
    """The level of links that takes most of the communication time, exposed or hidden."""
    spent = sum(links.values())
    if not spent:
        return []
    name = max(links, key=lambda level: links[level])
    share, of_step = percent(links[name], spent), percent(links[name], step_s)
    return [f"{share} of all communication time is on links of level {name}, equal to {of_step} of the step."]


def purposes(breakdown: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of exposed communication by purpose in words, longest first; empty if a plan does not record it."""
    exposed = breakdown.get("exposed_comm_by_purpose_s") or {}
    longest = sorted((pair for pair in exposed.items() if pair[1] > 0), key=lambda pair: -pair[1])
    return {PURPOSES.get(name, name): seconds_of for name, seconds_of in longest}


def _bottleneck(document: Mapping[str, Any]) -> str:
    breakdown, step = document["breakdown"], document["step_time_s"]
    largest = _largest_part(breakdown)
    name, advice = _ADVICE[largest]
    mostly = _largest_purpose(breakdown) if largest == "exposed_comm_s" else ""
    return f"{name} is the bottleneck with {percent(breakdown[largest], step)} of the step{mostly}: {advice}."


def _largest_part(breakdown: Mapping[str, Any]) -> str:
    return max(_ADVICE, key=lambda name: float(breakdown[name]))


def _largest_purpose(breakdown: Mapping[str, Any]) -> str:
    """The purpose with the largest share of exposed communication."""
    found = purposes(breakdown)
    if not found:
        return ""
    name = next(iter(found))
    part = "all" if len(found) == 1 else "most" if found[name] > sum(found.values()) / 2 else "the largest part"
    return f", {part} of it {name}"


def _communication(document: Mapping[str, Any]) -> list[str]:
    """The share of exposed communication, unless it is the bottleneck, and of hidden communication."""
    breakdown, step = document["breakdown"], document["step_time_s"]
    exposed, hidden, said = breakdown["exposed_comm_s"], breakdown.get("hidden_comm_s", 0.0), []
    if exposed > _MIN_COMM_FRACTION * step and _largest_part(breakdown) != "exposed_comm_s":
        said.append(f"Exposed communication takes {percent(exposed, step)} of the step{_largest_purpose(breakdown)}.")
    if hidden > _MIN_COMM_FRACTION * step:
        share = percent(hidden, exposed + hidden)
        said.append(f"{seconds(hidden)} of communication ({share} of the total) is hidden behind computation.")
    return said


def _stage_times(document: Mapping[str, Any]) -> list[str]:
    stages = document.get("by_stage")
    if not stages:
        return []
    said = ", ".join(f"{stage['group']} {seconds(stage['busy_s'])}" for stage in stages)
    return [f"Stages run on groups of different devices; busy time per step: {said}."]


def _fewer_devices(document: Mapping[str, Any]) -> list[str]:
    fewer = document.get("fewer_devices")
    if fewer is None:
        return []
    devices = prod(level["count"] for level in document["cluster"]["levels"])
    took, these = seconds(document["step_time_s"]), seconds(fewer["step_time_s"])
    return [
        f"{fewer['num_devices']} of {devices} devices are sufficient: they take {these} per step, all {devices} {took}."
    ]


def _memory(document: Mapping[str, Any]) -> list[str]:
    used, limit = document["memory_bytes_per_device"], document["memory_limit_bytes"]
    parts = document.get("memory_breakdown", {})
    if used < _TIGHT_MEMORY_FRACTION * limit or not parts:
        return []
    largest = max(parts, key=lambda name: parts[name])
    most = f"most of it {largest} ({num_bytes(parts[largest])})"
    reserve = document.get("memory_reserve", {})
    beside = f", beside {num_bytes(sum(reserve.values()))} for {', '.join(reserve)}" if reserve else ""
    return [f"Memory is tight: {percent(used, limit)} of {num_bytes(limit)}{beside}; {most}."]


def _baselines(document: Mapping[str, Any]) -> list[str]:
    step, said = document["step_time_s"], []
    known = {name: entry for name, entry in document["baselines"].items() if entry["feasible"]}
    feasible = {name: entry for name, entry in known.items() if not entry.get("free_of")}
    for name, entry in known.items():
        if entry.get("free_of") and entry["step_time_s"] < step * (1 - STEP_TIME_RTOL):
            free = ", ".join(entry["free_of"])
            said.append(f"{name} takes {seconds(entry['step_time_s'])} without the requested options: {free}.")
    if feasible:
        best = min(feasible, key=lambda name: feasible[name]["step_time_s"])
        ratio = feasible[best]["step_time_s"] / step
        if ratio <= 1 + STEP_TIME_RTOL:
            said.append(f"It is no faster than {best}, the best baseline.")
        else:
            faster = f"{ratio:.3g} x" if ratio >= _FACTOR_SPEEDUP else percent(ratio - 1, 1.0)
            said.append(f"It is {faster} faster than {best}, the best baseline.")
    for name, entry in document["baselines"].items():
        if entry["reason"]:
            said.append(f"{name} {_VERDICTS[entry['feasible']]}: {entry['reason']}.")
    return said


def _advice(document: Mapping[str, Any]) -> list[str]:
    advice = []
    if document["provenance"].get("calibration_id") is None and "groups" not in document["cluster"]:
        advice.append("Costs come from the cluster's data sheet; calibrate the cluster for measured costs.")
    gap, tolerance = document.get("gap"), document["options"].get("gap_tolerance")
    if ended_early(document):
        advice.append("A longer time limit may give a better plan and a tighter bound.")
    elif gap and tolerance is not None and gap > tolerance and document.get("searcher") in _PROVING_SOLVERS:
        advice.append(
            f"Search is complete: more time would not reduce the gap to the tolerance of {percent(tolerance, 1.0)}."
        )
    return advice
