"""A strategy: costs, breakdowns of time and memory, baselines, and layout on the devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.plan.plan import BUCKET_BYTES, upgrade_document
from autosbp.report.findings import above_optimum, ended_early, findings, why_no_bound
from autosbp.service.models import StrategyRow
from autosbp.service.web.number_format import number, ratio, seconds, share, size_unit, title
from autosbp.service.web.presenters.baselines import baselines
from autosbp.service.web.presenters.mesh_axes import AxisUse, axis_uses
from autosbp.service.web.presenters.page_parts import Chart, Fact, Figure, Stack, stack
from autosbp.service.web.presenters.request_words import option_facts
from autosbp.service.web.presenters.step_breakdown import exposed_stack, hidden_note, time_stack
from autosbp.utils.formatting import count, num_bytes

_STORAGE = {
    "step": "sharded parameters gathered once per step (ZeRO-2)",
    "use": "sharded parameters gathered for every use (ZeRO-3)",
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
    """Content of the page that the plan itself provides; parts that need the graph are loaded later."""

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
    """Build the page of a stored strategy of any release; ``model`` and ``cluster`` are names."""
    plan = upgrade_document(row.plan)
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
    """Key figures of a plan, for the page of its search."""

    id: str
    heading: str
    figures: tuple[Figure, ...]
    findings: tuple[str, ...]
    time: Stack
    layout: tuple[Fact, ...]


def brief(row: StrategyRow, model: str, cluster: str) -> Brief:
    """Build the summary of a stored strategy with its plan."""
    plan = upgrade_document(row.plan)
    said = tuple(findings(plan)[:3])
    return Brief(row.id, f"{model} on {cluster}", _figures(plan), said, time_stack(plan), _layout(plan))


def optimality(plan: Mapping[str, Any]) -> Figure:
    """What is proved about the step time."""
    gap, bound = plan.get("gap"), plan.get("lower_bound_s")
    if gap is None or bound is None:
        return Figure("Optimality", "no bound", why_no_bound(plan))
    if gap == 0:
        return Figure("Optimality", "proved", "no strategy in the search space is faster", tone="good")
    early = "; search ended early" if ended_early(plan) else ""
    return Figure("Optimality", f"≤ {above_optimum(gap)}", f"no strategy is faster than {seconds(bound)}{early}")


def _figures(plan: Mapping[str, Any]) -> tuple[Figure, ...]:
    step_s, strategy = plan["step_time_s"], plan["strategy"]
    used, limit = plan["memory_bytes_per_device"], plan["memory_limit_bytes"]
    feasible = [each for each in plan["baselines"].values() if each["feasible"]]
    best_s = min((each["step_time_s"] for each in feasible), default=None)
    return (
        Figure("Step", seconds(step_s), f"predicted, {number(strategy['global_batch'])} samples"),
        _throughput(plan),
        *([Figure("MFU", share(plan["mfu"]), "model FLOPs of the devices’ peaks")] if plan.get("mfu") else []),
        *_token_cost(plan),
        Figure("Memory", num_bytes(used), f"{share(used / limit)} of {num_bytes(limit)} per device", part=used / limit),
        Figure("Traffic", num_bytes(plan["comm_bytes_per_device"]), "sent per device and step"),
        Figure("Compared with baselines", ratio(best_s / step_s) if best_s else "–", "equal to the best baseline"),
        optimality(plan),
    )


def _throughput(plan: Mapping[str, Any]) -> Figure:
    tokens_per_s, samples_per_s = plan.get("tokens_per_s"), plan["strategy"]["global_batch"] / plan["step_time_s"]
    if tokens_per_s is None:
        return Figure("Throughput", f"{count(samples_per_s).strip()}/s", "samples")
    length = number(plan["sequence_length"])
    return Figure("Throughput", f"{count(tokens_per_s).strip()}/s", f"tokens, {length} a sample")


def _token_cost(plan: Mapping[str, Any]) -> list[Figure]:
    """Hours, and dollars where the cluster states a price, of a billion tokens."""
    hours, price = plan.get("hours_per_billion_tokens"), plan.get("price_per_billion_tokens")
    if hours is None:
        return []
    if price is None:
        return [Figure("Per 10⁹ tokens", f"{hours:.3g} h", "of the whole cluster")]
    return [Figure("Per 10⁹ tokens", f"${price:,.0f}", f"{hours:.3g} h of the whole cluster")]


def _memory(plan: Mapping[str, Any]) -> Stack:
    reserve = {f"reserved: {name}": size for name, size in plan.get("memory_reserve", {}).items()}
    parts = {**plan.get("memory_breakdown", {}), **reserve}
    limit = plan["memory_limit_bytes"] + sum(reserve.values())
    named = [
        (title(name), size, _MEMORY_TONES[at % len(_MEMORY_TONES)])
        for at, (name, size) in enumerate(sorted(parts.items(), key=lambda part: -part[1]))
    ]
    return stack("Peak memory per device", named, size_unit([limit]), limit, "Free")


def _layout(plan: Mapping[str, Any]) -> tuple[Fact, ...]:
    strategy = plan["strategy"]
    global_batch, micro = strategy["global_batch"], strategy["micro_batch"]
    facts = [
        Fact("Batch", f"{number(global_batch)} samples in {number(global_batch // micro)} × {number(micro)}"),
        Fact("Precision", plan.get("precision") or "of the graph as captured"),
        Fact("Parameter storage", _STORAGE.get(strategy.get("gather", "step"), strategy.get("gather", ""))),
    ]
    pipeline = strategy.get("pipeline")
    if pipeline:
        chunks = (len(pipeline["cuts"]) + 1) // pipeline["num_stages"]
        more = f", {chunks} chunks per stage" if chunks > 1 else ""
        if "weights_lag" in pipeline:
            more += f", weight gradients delayed by at most {pipeline['weights_lag']} passes"
        schedule = _SCHEDULES.get(pipeline["schedule"], pipeline["schedule"])
        facts.append(Fact("Pipeline", f"{pipeline['num_stages']} stages, {schedule}{more}"))
    else:
        facts.append(Fact("Pipeline", "none"))
    runs = strategy.get("recompute", [])
    facts.append(
        Fact("Recomputation", f"{number(len(runs))} segments of ops, recomputed in backward" if runs else "none")
    )
    facts.append(Fact("Gradient buckets", f"up to {num_bytes(strategy.get('bucket_bytes', BUCKET_BYTES))}"))
    fewer = plan.get("fewer_devices")
    if fewer:
        facts.append(Fact("Fewer devices", f"{fewer['num_devices']} take {seconds(fewer['step_time_s'])}"))
    return tuple(facts)


def _provenance(row: StrategyRow, plan: Mapping[str, Any]) -> tuple[Fact, ...]:
    source, options = plan["provenance"], plan["options"]
    known = row.calibration_id
    asked = [f"{one.term}: {one.value}" for one in option_facts(options)]
    return (
        Fact("Model", source.get("graph_hash", ""), f"/models/{row.model_id}"),
        Fact("Cluster", source.get("cluster_hash", ""), f"/clusters/{row.cluster_id}"),
        Fact("Costs", known or "the cluster’s data sheet", f"/calibrations/{known}" if known else ""),
        Fact("Searcher", f"{row.searcher}, seed {source.get('seed')}, {number(plan['evaluations'])} evaluations"),
        Fact("Requested", "; ".join(asked)),
        Fact("Release", str(source.get("version"))),
    )
