"""``docs/pictures/schedules.svg``: the passes of every schedule that runs, in the order that ``autosbp.schedules`` gives."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import RUNNABLE, SCHEDULES, Schedule
from autosbp.schedules.passes import Pass, stage_passes

STAGES, MICROBATCHES = 4, 8
LEFT, WIDTH, ROW, HEIGHT = 70, 810, 21, 120
INK, GREY = "#0f172a", "#475569"
COLOURS = {"forward": "#bfdbfe", "backward": "#bbf7d0", "weights": "#fed7aa", "bubble": "#f1f5f9"}
SECOND_CHUNK = {"forward": "#93c5fd", "backward": "#86efac"}
LEGEND = (
    *((COLOURS["forward"], "forward", 100), (SECOND_CHUNK["forward"], "forward of the second chunk", 220)),
    *((COLOURS["backward"], "backward", 110), (COLOURS["weights"], "weight gradients", 150)),
    (COLOURS["bubble"], "bubble", 80),
)


@dataclass(frozen=True, slots=True)
class Span:
    """One pass on one stage, from when to when; the forward pass of a whole stage takes 1."""

    stage: int
    one: Pass
    begin: float
    end: float


def schedules_picture() -> str:
    """The whole picture."""
    found = [(name, spans_of(SCHEDULES[name])) for name in RUNNABLE]
    longest = max(span.end for _, spans in found for span in spans)
    height = 24 + len(found) * HEIGHT + 36
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" width="900" height="{height}" role="img">',
        f"<title>Pipeline schedules on {STAGES} stages and {MICROBATCHES} microbatches</title>",
        f'<rect width="900" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for at, (name, spans) in enumerate(found):
        parts += _drawn(name, spans, 24 + at * HEIGHT, WIDTH / longest)
    x, y = LEFT, 24 + len(found) * HEIGHT
    for colour, text, width in LEGEND:
        parts += [_rect(x, y, 16, 14, colour), _text(x + 22, y + 12, text, 12, "start")]
        x += width
    return "\n".join([*parts, "</svg>\n"])


def spans_of(schedule: Schedule) -> list[Span]:
    """When each pass runs: as soon as the pass before it on its stage has ended, and its input has come."""
    virtual = schedule.fewest_chunks
    pipeline = Pipeline(STAGES, tuple(f"cut{at}" for at in range(STAGES * virtual - 1)), schedule)
    pipeline.check(MICROBATCHES)
    ahead = [list(stage_passes(pipeline, stage, MICROBATCHES)) for stage in range(STAGES)]
    seconds = {"forward": 1.0, "backward": 1.0 if schedule.splits_backward else 2.0, "weights": 1.0}
    ends: dict[tuple[str, int, int], float] = {}
    free, found = [0.0] * STAGES, list[Span]()
    while any(ahead):
        for stage, passes in enumerate(ahead):
            while passes and (before := _needs(passes[0], pipeline.num_chunks)) in {None, *ends}:
                one = passes.pop(0)
                begin = max(free[stage], 0.0 if before is None else ends[before])
                free[stage] = ends[one.kind, one.chunk, one.micro] = begin + seconds[one.kind] / virtual
                found.append(Span(stage, one, begin, free[stage]))
    return found


def _needs(one: Pass, num_chunks: int) -> tuple[str, int, int] | None:
    """The pass whose result a pass reads."""
    if one.kind == "forward":
        return ("forward", one.chunk - 1, one.micro) if one.chunk else None
    if one.kind == "weights":
        return "backward", one.chunk, one.micro
    last = one.chunk == num_chunks - 1
    return ("forward", one.chunk, one.micro) if last else ("backward", one.chunk + 1, one.micro)


def _drawn(name: str, spans: list[Span], top: float, unit: float) -> list[str]:
    end = max(span.end for span in spans)
    chunks = 1 + max(span.one.chunk for span in spans) // STAGES
    shown = name if chunks == 1 else f"{name} ({chunks} chunks per stage)"
    parts = [
        _text(LEFT, top, shown, 13, "start", weight=600),
        _text(LEFT + WIDTH, top, f"step {end:g} units", 12, "end", GREY),
    ]
    for stage in range(STAGES):
        parts.append(_text(LEFT - 8, top + 24 + stage * ROW, f"stage {stage}", 11, "end"))
        parts.append(_rect(LEFT, top + 8 + stage * ROW, end * unit, ROW - 1, COLOURS["bubble"], "none"))
    for span in spans:
        colours = COLOURS if span.one.chunk < STAGES else {**COLOURS, **SECOND_CHUNK}
        x, width, y = LEFT + span.begin * unit, (span.end - span.begin) * unit, top + 8 + span.stage * ROW
        parts.append(_rect(x, y, width, ROW - 1, colours[span.one.kind]))
        parts.append(_text(x + width / 2, y + 14, str(span.one.micro), 9 if width < 14 else 10, "middle"))
    return parts


def _rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "#64748b") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}" stroke="{stroke}" stroke-width="0.6"/>'


def _text(x: float, y: float, text: str, size: int, anchor: str, fill: str = INK, weight: int = 400) -> str:
    style = f'font-size="{size}" font-weight="{weight}" font-family="system-ui, sans-serif"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" {style}>{text}</text>'
