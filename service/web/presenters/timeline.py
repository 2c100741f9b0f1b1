"""When everything of a step runs, as spans on lanes: of a pipeline a lane for each stage, otherwise one for
computation and two for the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosbp.costmodel.pipeline import Span
from service.web.presenters.parts import Chart, Table
from service.web.text import Unit, seconds, share, time_unit

MOST_SPANS = 2400
_KINDS = (("forward", "Forward", "a"), ("backward", "Backward", "e"), ("weights", "Gradients of weights", "d"))
_LANES = ("Compute", "Network, waited for", "Network, beside")
_CATEGORIES = (("compute", "Computation", "a"), ("comm", "Communication", "b"), ("optimizer", "Optimizer", "d"))


def pipeline_chart(spans: Sequence[Span], num_stages: int) -> Chart:
    """Every pass of every microbatch; of long steps the first and the last of them."""
    end_s = max(span.end_s for span in spans)
    unit = time_unit([end_s])
    kinds = [kind for kind, _, _ in _KINDS]
    shown, cut = _ends(spans, num_stages)
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
    spoken = f"All passes take {seconds(end_s)}; stages wait for {share(idle)} of it.{cut}"
    names = tuple(f"{name} ({unit.name})" for _, name, _ in _KINDS)
    table = Table(("Stage", "Passes", *names, f"Waits ({unit.name})", "Busy"), rows)
    height = "large" if num_stages > 6 else "medium"
    return Chart("timeline", "gantt", "Passes of the stages", spoken, data, table, height)


def events_chart(events: Sequence[Mapping[str, Any]]) -> Chart:
    """Events of a trace; neighbours that would be too thin to see are one span."""
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
    spoken = f"{len(events):,} events in {seconds(end_s)}; the Perfetto trace has each with its layouts."
    table = Table(("Lane", "Events", f"Time ({unit.name})", "Of the step"), tuple(rows))
    return Chart("timeline", "gantt", "A step on one device", spoken, data, table, "small")


def _has(spans: Sequence[Span], kind: str) -> bool:
    return kind != "weights" or any(span.what.kind == kind for span in spans)


def _rounded(value_s: float, unit: Unit) -> float:
    return float(f"{value_s / unit.scale:.7g}")


def _ends(spans: Sequence[Span], num_stages: int) -> tuple[list[Span], str]:
    """All spans, or those of the first and the last microbatches that a picture can hold."""
    if len(spans) <= MOST_SPANS:
        return list(spans), ""
    num_micro = 1 + max(span.what.micro for span in spans)
    each = max(1, MOST_SPANS * num_micro // len(spans) // 2)
    kept = [span for span in spans if span.what.micro < each or span.what.micro >= num_micro - each]
    return kept, f" Shown are the first and the last {each} of {num_micro:,} microbatches on {num_stages} stages."


def _stage_row(spans: Sequence[Span], stage: int, end_s: float, unit: Unit) -> tuple[str, ...]:
    own = [span for span in spans if span.stage == stage]
    times = {kind: sum(span.end_s - span.start_s for span in own if span.what.kind == kind) for kind, _, _ in _KINDS}
    busy_s = sum(times.values())
    return (str(stage), f"{len(own):,}", *map(unit.of, times.values()), unit.of(end_s - busy_s), share(busy_s / end_s))


def _merged(events: Sequence[Mapping[str, Any]], end_s: float) -> list[tuple[int, float, float, str, str]]:
    """(lane, begin, end, category, words), in the order of their lanes and begins."""
    thin_s = end_s / MOST_SPANS * len(_LANES)
    found: list[tuple[int, float, float, str, str]] = []
    counts: list[int] = []
    for event in sorted(events, key=lambda one: (one["tid"], one["ts"])):
        lane, begin, kind = event["tid"] - 1, event["ts"] * 1e-6, event["cat"]
        end = begin + event["dur"] * 1e-6
        last = found[-1] if found else None
        if last and last[0] == lane and last[3] == kind and end - last[1] < thin_s:
            counts[-1] += 1
            found[-1] = (lane, last[1], end, kind, f"{counts[-1]} events to {event['name']}")
        else:
            counts.append(1)
            found.append((lane, begin, end, kind, f"{event['name']}, {event['args'].get('phase', kind)}"))
    return found
