"""Answers to why and what-if questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.service.web.number_format import number, seconds, share, signed_share, time_unit
from autosbp.service.web.presenters.page_parts import Chart, Table
from autosbp.utils.formatting import num_bytes

_MOST_CHANGES = 12


@dataclass(frozen=True, slots=True)
class AlternativeLine:
    """One signature of an op, with the costs of a step that uses it."""

    signature: str
    chosen: bool
    step: str
    difference: str
    traffic: str
    memory: str
    reason: str
    changes: tuple[tuple[str, str, str], ...]
    num_changes: int


@dataclass(frozen=True, slots=True)
class OpAnswer:
    """All signatures of one op that were costed."""

    op: str
    num_signatures: str
    lines: tuple[AlternativeLine, ...]


def why_answers(result: Mapping[str, Any]) -> tuple[OpAnswer, ...]:
    """Tables from ``autosbp.report.analysis_json.why_document``."""
    step_s = result["step_time_s"]
    return tuple(
        OpAnswer(
            each["op"],
            number(each["num_signatures"]),
            tuple(_line(one, step_s) for one in each["alternatives"]),
        )
        for each in result["ops"]
    )


def _line(one: Mapping[str, Any], step_s: float) -> AlternativeLine:
    step, changes = one["step_time_s"], one["changes"]
    shown = [(name, pair["plan"], pair["instead"]) for name, pair in list(changes.items())[:_MOST_CHANGES]]
    return AlternativeLine(
        one["signature"],
        one["chosen"],
        seconds(step) if step is not None else "–",
        signed_share((step - step_s) / step_s) if step is not None else "–",
        num_bytes(one["comm_bytes_per_device"]) if step is not None else "–",
        num_bytes(one["memory_bytes_per_device"]) if step is not None else "–",
        one["reason"],
        tuple(shown),
        len(changes),
    )


def what_if_chart(result: Mapping[str, Any]) -> Chart:
    """Chart from ``autosbp.report.analysis_json.what_if_document``."""
    step_s, changes = result["step_time_s"], result["changes"]
    unit = time_unit([step_s])
    data = {
        "unit": unit.name,
        "names": ["Current", *(each["change"] for each in changes)],
        "series": [
            {
                "name": "Same strategy",
                "values": [step_s / unit.scale, *(each["same_strategy_step_time_s"] / unit.scale for each in changes)],
            },
            {
                "name": "New plan",
                "values": [step_s / unit.scale, *(each["step_time_s"] / unit.scale for each in changes)],
            },
        ],
    }
    rows = tuple(
        (
            each["change"],
            f"{each['factor']:g} ×",
            unit.of(each["same_strategy_step_time_s"]),
            unit.of(each["step_time_s"]),
            share(each["saves"]),
            num_bytes(each["memory_bytes_per_device"]),
            number(each["stages"]),
            " × ".join(f"{name} {size}" for name, size in each["mesh"]),
        )
        for each in changes
    )
    columns = (
        "Change",
        "Factor",
        f"Same strategy ({unit.name})",
        f"New plan ({unit.name})",
        "Saves",
        "Memory",
        "Stages",
        "Mesh",
    )
    best = max(changes, key=lambda each: float(each["saves"]), default=None)
    spoken = f"{best['change']} saves most: {share(best['saves'])} of the step." if best else ""
    return Chart("what-if", "bars", "Gain from better hardware", spoken, data, Table(columns, rows))
