"""A trial as JUnit XML: one test case per gate, or a single one with the error that ended the trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from autosbp.report.trial_gates import Gate

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SUITE = "autosbp trial"
_PROPERTIES = (
    *("plan_id", "model", "cluster", "trial_id", "num_ranks", "predicted_step_time_s", "memory_bytes"),
    *("predicted_memory_bytes", "torch"),
)
"""Report fields that become properties of the test suite if present."""


def junit_of_gates(report: Mapping[str, Any], gates: Sequence[Gate], elapsed_s: float) -> str:
    """JUnit document of a trial that ran; a gate without a value to compare with is skipped."""
    skipped = sum(gate.value is None and gate.passed for gate in gates)
    failed = sum(not gate.passed for gate in gates)
    root, suite = _suite(len(gates), failures=failed, errors=0, skipped=skipped, elapsed_s=elapsed_s)
    about = {name: report[name] for name in _PROPERTIES if report.get(name) is not None}
    compared = report.get("compared_with")
    about |= {"compared_with": compared["source"]} if compared else {}
    step = {f"step_time_s.{name}": report["step_time_s"][name] for name in ("median", "iqr", "steps")}
    _properties(suite, {**about, **step})
    for gate in gates:
        case = ET.SubElement(suite, "testcase", classname=_classname(report), name=gate.name, time="0")
        _properties(case, {"limit": gate.limit, **({} if gate.value is None else {"value": gate.value})})
        if not gate.passed:
            ET.SubElement(case, "failure", type=gate.name, message=_text(gate.sentence))
        elif gate.value is None:
            ET.SubElement(case, "skipped", message=_text(gate.sentence))
        ET.SubElement(case, "system-out").text = _text(gate.sentence)
    return _document(root)


def junit_of_error(error: Exception, plan: str, elapsed_s: float) -> str:
    """JUnit document of a trial that failed to run; the error's further lines, such as a log's end, are its text."""
    root, suite = _suite(1, failures=0, errors=1, skipped=0, elapsed_s=elapsed_s)
    case = ET.SubElement(suite, "testcase", classname=_text(f"autosbp.{plan}"), name="trial", time="0")
    head, _, rest = str(error).partition("\n")
    ET.SubElement(case, "error", type=type(error).__name__, message=_text(head)).text = _text(rest)
    return _document(root)


def _suite(
    tests: int, *, failures: int, errors: int, skipped: int, elapsed_s: float
) -> tuple[ET.Element[str], ET.Element[str]]:
    counts = {"tests": tests, "failures": failures, "errors": errors, "skipped": skipped}
    attributes = {"name": _SUITE, **{name: str(count) for name, count in counts.items()}, "time": f"{elapsed_s:.3f}"}
    root = ET.Element("testsuites", attributes)
    return root, ET.SubElement(root, "testsuite", attributes)


def _properties(parent: ET.Element[str], members: Mapping[str, Any]) -> None:
    under = ET.SubElement(parent, "properties")
    for name, value in members.items():
        ET.SubElement(under, "property", name=name, value=_text(str(value)))


def _classname(report: Mapping[str, Any]) -> str:
    """Class name of the test cases. JUnit viewers group by it, so it must stay the same from one commit to the next."""
    return _text(f"autosbp.{report['model']}.{report['cluster']}")


def _text(text: str) -> str:
    """Replace the characters that XML 1.0 cannot contain."""
    return _NOT_XML.sub("?", text)


def _document(root: ET.Element[str]) -> str:
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'
