"""One strategy: what it costs, where time and memory go, how it compares, and how it lies on the devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.findings import above_optimum, ended_early, findings, why_no_bound
from autosbp.plan import BUCKET_BYTES, current_document
from autosbp.units import count, num_bytes
from service.models import StrategyRow
from service.web.presenters.baselines import baselines
from service.web.presenters.mesh import AxisUse, axis_uses
from service.web.presenters.parts import Chart, Fact, Figure, Stack, stack
from service.web.presenters.step import exposed_stack, hidden_note, time_stack
from service.web.text import number, ratio, seconds, share, size_unit, title

_STORAGE = {
    "step": "parameters gathered once a step where they are split (ZeRO-2)",
    "use": "parameters gathered for every use (ZeRO-3)",
}
_MEMORY_TONES = ("a", "b", "d", "e", "f", "g", "h")
_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "interleaved 1F1B",
    "zero_bubble": "zero bubble",
    "message_driven": "message-driven",
}


@dataclass(frozen=True, slots=True)
class StrategyView:
    """Everything that the page shows at once; what needs the graph comes behind."""

    id: str
    heading: str
    model: str
    cluster: str
    figures: tuple[Figure, ...]
    findings: tuple[str, ...]
    warnings: tuple[str, ...]
    time: Stack
    exposed: Stack | None
    hidden_note: str
    memory: Stack
    layout: tuple[Fact, ...]
    axes: tuple[AxisUse, ...]
    baselines: Chart | None
    infeasible: tuple[tuple[str, str], ...]
    provenance: tuple[Fact, ...]
    runnable: tuple[str, ...]
    has_stages: bool
    parameters: tuple[str, ...]


def strategy_view(row: StrategyRow, model: str, cluster: str) -> StrategyView:
    """Of a stored strategy with its plan, whatever release found it, and the names of what it is of."""
    plan = current_document(row.plan)
    compared, infeasible = baselines(plan)
    return StrategyView(
        id=row.id,
        heading=f"{model} on {cluster}",
        model=model,
        cluster=cluster,
        figures=_figures(plan),
        findings=tuple(findings(plan)),
        warnings=tuple(plan.get("warnings", ())),
        time=time_stack(plan),
        exposed=exposed_stack(plan),
        hidden_note=hidden_note(plan),
        memory=_memory(plan),
        layout=_layout(plan),
        axes=axis_uses(plan),
        baselines=compared,
        infeasible=infeasible,
        provenance=_provenance(row, plan),
        runnable=tuple(plan["baseline_strategies"]),
        has_stages="pipeline" in plan["strategy"],
        parameters=tuple(plan["strategy"]["parameters"]),
    )


@dataclass(frozen=True, slots=True)
class Brief:
    """A plan in a few numbers, for the page that it appears on."""

    id: str
    heading: str
    figures: tuple[Figure, ...]
    findings: tuple[str, ...]
    time: Stack
    layout: tuple[Fact, ...]


def brief(row: StrategyRow, model: str, cluster: str) -> Brief:
    """Of a stored strategy with its plan."""
    plan = current_document(row.plan)
    said = tuple(findings(plan)[:3])
    return Brief(row.id, f"{model} on {cluster}", _figures(plan), said, time_stack(plan), _layout(plan))


def optimality(plan: Mapping[str, Any]) -> Figure:
    """What is proved of the step time."""
    gap, bound = plan.get("gap"), plan.get("lower_bound_s")
    if gap is None or bound is None:
        return Figure("Optimality", "no bound", why_no_bound(plan))
    if gap == 0:
        return Figure("Optimality", "proved", "no strategy of the space is faster", tone="good")
    early = "; search ended early" if ended_early(plan) else ""
    return Figure("Optimality", f"≤ {above_optimum(gap)}", f"no strategy takes less than {seconds(bound)}{early}")


def _figures(plan: Mapping[str, Any]) -> tuple[Figure, ...]:
    step_s, strategy = plan["step_time_s"], plan["strategy"]
    used, limit = plan["memory_bytes_per_device"], plan["memory_limit_bytes"]
    feasible = [each for each in plan["baselines"].values() if each["feasible"]]
    best_s = min((each["step_time_s"] for each in feasible), default=None)
    return (
        Figure("Step", seconds(step_s), f"predicted, {number(strategy['global_batch'])} samples"),
        Figure("Throughput", f"{count(strategy['global_batch'] / step_s).strip()}/s", "samples"),
        Figure("Memory", num_bytes(used), f"{share(used / limit)} of {num_bytes(limit)} a device", part=used / limit),
        Figure("Traffic", num_bytes(plan["comm_bytes_per_device"]), "sent by a device in a step"),
        Figure("Against baselines", ratio(best_s / step_s) if best_s else "–", "as fast as the best of them"),
        optimality(plan),
    )


def _memory(plan: Mapping[str, Any]) -> Stack:
    parts, limit = plan.get("memory_breakdown", {}), plan["memory_limit_bytes"]
    named = [
        (title(name), size, _MEMORY_TONES[at % len(_MEMORY_TONES)])
        for at, (name, size) in enumerate(sorted(parts.items(), key=lambda part: -part[1]))
    ]
    return stack("Memory of a device at its fullest moment", named, size_unit([limit]), limit, "Free")


def _layout(plan: Mapping[str, Any]) -> tuple[Fact, ...]:
    strategy = plan["strategy"]
    global_batch, micro = strategy["global_batch"], strategy["micro_batch"]
    facts = [
        Fact("Batch", f"{number(global_batch)} samples in {number(global_batch // micro)} × {number(micro)}"),
        Fact("Storage of parameters", _STORAGE.get(strategy.get("gather", "step"), strategy.get("gather", ""))),
    ]
    pipeline = strategy.get("pipeline")
    if pipeline:
        chunks = (len(pipeline["cuts"]) + 1) // pipeline["num_stages"]
        more = f", {chunks} chunks a stage" if chunks > 1 else ""
        if "weights_lag" in pipeline:
            more += f", gradients of weights at most {pipeline['weights_lag']} passes later"
        schedule = _SCHEDULES.get(pipeline["schedule"], pipeline["schedule"])
        facts.append(Fact("Pipeline", f"{pipeline['num_stages']} stages, {schedule}{more}"))
    else:
        facts.append(Fact("Pipeline", "none"))
    runs = strategy.get("recompute", [])
    facts.append(Fact("Recomputation", f"{number(len(runs))} runs of ops, made again in backward" if runs else "none"))
    facts.append(Fact("Messages of gradients", f"up to {num_bytes(strategy.get('bucket_bytes', BUCKET_BYTES))}"))
    fewer = plan.get("fewer_devices")
    if fewer:
        facts.append(Fact("Fewer devices", f"{fewer['num_devices']} would take {seconds(fewer['step_time_s'])}"))
    return tuple(facts)


def _provenance(row: StrategyRow, plan: Mapping[str, Any]) -> tuple[Fact, ...]:
    source, options = plan["provenance"], plan["options"]
    known = row.calibration_id
    asked = [f"{title(name).lower()} {value}" for name, value in options.items() if value not in (None, {}, [], "")]
    return (
        Fact("Model", source.get("graph_hash", ""), f"/models/{row.model_id}"),
        Fact("Cluster", source.get("cluster_hash", ""), f"/clusters/{row.cluster_id}"),
        Fact("Costs", known or "the cluster’s data sheet", f"/calibrations/{known}" if known else ""),
        Fact("Searcher", f"{row.searcher}, seed {source.get('seed')}, {number(plan['evaluations'])} evaluations"),
        Fact("Asked for", ", ".join(asked)),
        Fact("Release", str(source.get("version"))),
    )
