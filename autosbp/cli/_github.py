"""Trial results in GitHub Actions: a job summary in Markdown, and annotations by workflow commands.

Sources: "Workflow commands for GitHub Actions" (docs.github.com); escaping follows ``@actions/core``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosbp.cli._exit_codes import note
from autosbp.errors import InputError
from autosbp.report.trial_gates import Gate
from autosbp.utils.formatting import num_bytes, seconds

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


def check_summary() -> None:
    """Raise ``InputError`` if this is not a job of GitHub Actions."""
    if not os.environ.get(SUMMARY_VARIABLE):
        raise InputError(
            "github", None, (f"--github requires GitHub Actions, which sets {SUMMARY_VARIABLE} to a file path")
        )


def show_gates(report: Mapping[str, Any], gates: Sequence[Gate]) -> None:
    """Append the trial to the job summary; annotate one error per failed gate, or one notice if all passed."""
    _append(summary(report, gates))
    failed = [gate for gate in gates if not gate.passed]
    for gate in failed:
        _annotate("error", f"autosbp: {gate.name} failed", gate.sentence)
    if not failed:
        told = "; ".join(gate.sentence for gate in gates if gate.name != "collectives_match")
        _annotate("notice", "autosbp: all gates passed", told or f"{seconds(report['step_time_s']['median'])} per step")


def show_error(error: Exception, plan: str) -> None:
    """Append a trial that failed to run to the job summary, and annotate its error."""
    head, _, rest = str(error).partition("\n")
    _append(f"### autosbp trial of `{_cell(plan)}` failed\n\n{_cell(head)}\n{_details(rest)}\n")
    _annotate("error", "autosbp: the trial failed", head)


def summary(report: Mapping[str, Any], gates: Sequence[Gate]) -> str:
    """Markdown summary: gates first, then predicted and measured values."""
    step, passed = report["step_time_s"], all(gate.passed for gate in gates)
    rows = (
        ("step time (median)", seconds(report["predicted_step_time_s"]), seconds(step["median"])),
        ("interquartile range", "", seconds(step["iqr"])),
        ("memory per device", num_bytes(report["predicted_memory_bytes"]), num_bytes(report["memory_bytes"])),
    )
    return "\n".join(
        [
            f"### autosbp trial of {_cell(report['model'])} on {_cell(report['cluster'])}: "
            f"{'passed' if passed else 'FAILED'}",
            "",
            "| gate | | measured |",
            "|---|---|---|",
            *(f"| `{gate.name}` | {_verdict(gate)} | {_cell(gate.sentence)} |" for gate in gates),
            "",
            "| | predicted | measured |",
            "|---|---:|---:|",
            *(f"| {name} | {predicted} | {measured} |" for name, predicted, measured in rows),
            "",
            *_baseline_line(report),
            f"`{report['plan_id']}` on {report['num_ranks']} ranks, {step['steps']} steps.",
            "",
            "",
        ]
    )


def _baseline_line(report: Mapping[str, Any]) -> list[str]:
    """The trial that the regression gate compared with, if any."""
    compared = report.get("compared_with")
    return (
        [] if not compared else [f"Compared with {seconds(compared['step_time_s'])}, {_cell(compared['source'])}.", ""]
    )


def _verdict(gate: Gate) -> str:
    if not gate.passed:
        return "**FAILED**"
    return "not evaluated" if gate.value is None else "passed"


def _details(text: str) -> str:
    """A log in a collapsed block, fenced with more backticks than it contains."""
    if not text:
        return ""
    fence = "`" * (max((len(run) for run in _backticks(text)), default=0) + 3)
    return f"\n<details><summary>log</summary>\n\n{fence}\n{text}\n{fence}\n\n</details>\n"


def _backticks(text: str) -> list[str]:
    return "".join(mark if mark == "`" else " " for mark in text).split()


def _cell(text: str) -> str:
    """Escape text for a table cell: no cell or row separator, no markup."""
    for mark in ("\\", "|", "<", "`", "*", "_", "["):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")


def _append(text: str) -> None:
    path = os.environ[SUMMARY_VARIABLE]
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(SUMMARY_VARIABLE, path, f"cannot be written ({error})") from None


def _annotate(level: str, title: str, message: str) -> None:
    """Print a workflow command on standard error, which the runner parses like standard output."""
    title = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    note(f"::{level} title={title}::{_escaped(message)}")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
