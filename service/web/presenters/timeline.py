"""Timelines of a step, as spans on lanes.

A pipeline has a lane per stage; otherwise there is one for computation and two for the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosbp.costmodel.pipeline_timing import PassSpan
from autosbp.service.web.number_format import Unit, seconds, share, time_unit
from autosbp.service.web.presenters.page_parts import Chart, Table

MOST_SPANS = 2400
_KINDS = (("forward", "Forward", "a"), ("backward", "Backward", "e"), ("weights", "Weight gradients", "d"))
_LANES = ("Compute", "Network, exposed", "Network, overlapped")
_CATEGORIES = (("compute", "Computation", "a"), ("comm", "Communication", "b"), ("optimizer", "Optimizer", "d"))


def pipeline_chart(spans: Sequence[PassSpan], num_stages: int) -> Chart:
    """Chart of every pass of every microbatch; long steps show only the first and last microbatches."""
    end_s = max(span.end_s for span in spans)
    unit = time_unit([end_s])
    kinds = [kind for kind, _, _ in _KINDS]
    shown, cut = _first_and_last_microbatches(spans, num_stages)
    data = {
        "lanes": [f"Stage {stage}" for stage in range(num_stages)],
        "unit": unit.name,
        "end": _rounded(end_s, unit),
        "tones": [{"name": name, "tone": tone} for _, name, tone in _KINDS if _has(spans, _)],
        "spans": [
            [
                span.stage,
                _rounded(span.start_s, unit),
                _rounded(span.end_s, unit),
                kinds.index(span.what.kind),
                str(span.what.micro),
                f"Stage {span.stage}, {span.what.kind} of microbatch {span.what.micro}, chunk {span.what.chunk}",
            ]
            for span in shown
        ],
    }
    rows = tuple(_stage_row(spans, stage, end_s, unit) for stage in range(num_stages))
    idle = 1 - sum(span.end_s - span.start_s for span in spans) / (num_stages * end_s)
    spoken = f"All passes take {seconds(end_s)}; stages are idle for {share(idle)} of it.{cut}"
    names = tuple(f"{name} ({unit.name})" for _, name, _ in _KINDS)
    table = Table(("Stage", "Passes", *names, f"Idle ({unit.name})", "Busy"), rows)
    height = "large" if num_stages > 6 else "medium"
    return Chart("timeline", "gantt", "Stage timeline", spoken, data, table, height)


def events_chart(events: Sequence[Mapping[str, Any]]) -> Chart:
    """Chart of trace events; neighbouring events that are too thin to see are merged."""
    ends = [(event["ts"] + event["dur"]) * 1e-6 for event in events]
    end_s = max(ends, default=0.0)
    unit = time_unit([end_s])
    kinds = [kind for kind, _, _ in _CATEGORIES]
    data = {
        "lanes": list(_LANES),
        "unit": unit.name,
        "end": _rounded(end_s, unit),
        "tones": [{"name": name, "tone": tone} for _, name, tone in _CATEGORIES],
        "spans": [
            [lane, _rounded(begin, unit), _rounded(end, unit), kinds.index(kind), "", text]
            for lane, begin, end, kind, text in _merged(events, end_s)
        ],
    }
    rows = []
    for kind, name, _ in _CATEGORIES:
        own = [event["dur"] * 1e-6 for event in events if event["cat"] == kind]
        rows.append((name, f"{len(own):,}", unit.of(sum(own)), share(sum(own) / end_s if end_s else 0.0)))
    spoken = f"{len(events):,} events in {seconds(end_s)}; the Perfetto trace shows each with its layouts."
    table = Table(("Lane", "Events", f"Time ({unit.name})", "Share of step"), tuple(rows))
    return Chart("timeline", "gantt", "One step on one device", spoken, data, table, "small")


def _has(spans: Sequence[PassSpan], kind: str) -> bool:
    return kind != "weights" or any(span.what.kind == kind for span in spans)


def _rounded(value_s: float, unit: Unit) -> float:
    return float(f"{value_s / unit.scale:.7g}")


def _first_and_last_microbatches(spans: Sequence[PassSpan], num_stages: int) -> tuple[list[PassSpan], str]:
    """All spans, or those of as many first and last microbatches as the chart can hold, and a note about that."""
    if len(spans) <= MOST_SPANS:
        return list(spans), ""
    num_micro = 1 + max(span.what.micro for span in spans)
    each = max(1, MOST_SPANS * num_micro // len(spans) // 2)
    kept = [span for span in spans if span.what.micro < each or span.what.micro >= num_micro - each]
    return kept, f" Showing the first and last {each} of {num_micro:,} microbatches on {num_stages} stages."


def _stage_row(spans: Sequence[PassSpan], stage: int, end_s: float, unit: Unit) -> tuple[str, ...]:
    own = [span for span in spans if span.stage == stage]
    times = {kind: sum(span.end_s - span.start_s for span in own if span.what.kind == kind) for kind, _, _ in _KINDS}
    busy_s = sum(times.values())
    return (str(stage), f"{len(own):,}", *map(unit.of, times.values()), unit.of(end_s - busy_s), share(busy_s / end_s))


def _merged(events: Sequence[Mapping[str, Any]], end_s: float) -> list[tuple[int, float, float, str, str]]:
    """Merged events as (lane, begin, end, category, text), ordered by lane and begin."""
    thin_s = end_s / MOST_SPANS * len(_LANES)
    found: list[tuple[int, float, float, str, str]] = []
    counts: list[int] = []
    for event in sorted(events, key=lambda one: (one["tid"], one["ts"])):
        lane, begin, kind = event["tid"] - 1, event["ts"] * 1e-6, event["cat"]
        end = begin + event["dur"] * 1e-6
        last = found[-1] if found else None
        if last and last[0] == lane and last[3] == kind and end - last[1] < thin_s:
            counts[-1] += 1
            found[-1] = (lane, last[1], end, kind, f"{counts[-1]} events, the last one {event['name']}")
        else:
            counts.append(1)
            found.append((lane, begin, end, kind, f"{event['name']}, {event['args'].get('phase', kind)}"))
    return found
