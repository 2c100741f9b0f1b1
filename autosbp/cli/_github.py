"""A trial in GitHub Actions: a job summary in markdown, and annotations by workflow commands.

Sources: "Workflow commands for GitHub Actions" (docs.github.com); the escapes are those of ``@actions/core``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosbp.cli._gates import Gate
from autosbp.cli._run import note
from autosbp.errors import InputError
from autosbp.units import num_bytes, seconds

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


def check_summary() -> None:
    """Raise ``InputError`` where this is no job of GitHub Actions."""
    if not os.environ.get(SUMMARY_VARIABLE):
        raise InputError("github", None, f"--github is for GitHub Actions, which sets {SUMMARY_VARIABLE} to a file")


def show_gates(report: Mapping[str, Any], gates: Sequence[Gate]) -> None:
    """Add the trial to the job's summary, with an error for each gate that failed and else one notice."""
    _append(summary(report, gates))
    failed = [gate for gate in gates if not gate.passed]
    for gate in failed:
        _annotate("error", f"autosbp: {gate.name} failed", gate.sentence)
    if not failed:
        told = "; ".join(gate.sentence for gate in gates if gate.name != "collectives_match")
        _annotate("notice", "autosbp: all gates passed", told or f"{seconds(report['step_time_s']['median'])} a step")


def show_error(error: Exception, plan: str) -> None:
    """The same for a trial that could not be judged."""
    head, _, rest = str(error).partition("\n")
    _append(f"### autosbp trial of `{_cell(plan)}` failed\n\n{_cell(head)}\n{_details(rest)}\n")
    _annotate("error", "autosbp: the trial failed", head)


def summary(report: Mapping[str, Any], gates: Sequence[Gate]) -> str:
    """Gates first, then what was measured beside what was predicted."""
    step, passed = report["step_time_s"], all(gate.passed for gate in gates)
    rows = (
        ("step time (median)", seconds(report["predicted_step_time_s"]), seconds(step["median"])),
        ("interquartile range", "", seconds(step["iqr"])),
        ("memory of a device", num_bytes(report["predicted_memory_bytes"]), num_bytes(report["memory_bytes"])),
    )
    return "\n".join(
        [
            f"### autosbp trial of {_cell(report['model'])} on {_cell(report['cluster'])}: "
            f"{'passed' if passed else 'FAILED'}",
            "",
            "| gate | | found |",
            "|---|---|---|",
            *(f"| `{gate.name}` | {_mark(gate)} | {_cell(gate.sentence)} |" for gate in gates),
            "",
            "| | predicted | measured |",
            "|---|---:|---:|",
            *(f"| {name} | {predicted} | {measured} |" for name, predicted, measured in rows),
            "",
            *_compared(report),
            f"`{report['plan_id']}` on {report['num_ranks']} ranks, {step['steps']} steps.",
            "",
            "",
        ]
    )


def _compared(report: Mapping[str, Any]) -> list[str]:
    """What the regression was measured against, where it was."""
    compared = report.get("compared_with")
    return (
        [] if not compared else [f"Compared with {seconds(compared['step_time_s'])}, {_cell(compared['source'])}.", ""]
    )


def _mark(gate: Gate) -> str:
    if gate.value is None:
        return "not judged"
    return "passed" if gate.passed else "**FAILED**"


def _details(text: str) -> str:
    """A log, folded; it ends no fence of its own."""
    if not text:
        return ""
    fence = "`" * (max((len(run) for run in _backticks(text)), default=0) + 3)
    return f"\n<details><summary>log</summary>\n\n{fence}\n{text}\n{fence}\n\n</details>\n"


def _backticks(text: str) -> list[str]:
    return "".join(mark if mark == "`" else " " for mark in text).split()


def _cell(text: str) -> str:
    """Text in a table's cell: no row or column ends in it, no markup begins."""
    for mark in ("\\", "|", "<", "`", "*", "_", "["):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")


def _append(text: str) -> None:
    path = os.environ[SUMMARY_VARIABLE]
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(SUMMARY_VARIABLE, path, f"a file that can be written is expected ({error})") from None


def _annotate(level: str, title: str, message: str) -> None:
    """A workflow command on standard error, which the runner reads as it does standard output."""
    title = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    note(f"::{level} title={title}::{_escaped(message)}")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
