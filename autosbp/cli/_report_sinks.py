"""Outputs of a trial besides the terminal: ``--report``, ``--junit``, ``--github``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosbp.cli._files import check_output, write_json, write_text
from autosbp.cli._github import check_summary, show_error, show_gates
from autosbp.errors import AutosbpError
from autosbp.report.trial_gates import Gate


@dataclass(frozen=True, slots=True)
class ReportSinks:
    """The requested outputs; None and False disable one."""

    report: Path | None
    junit: Path | None
    github: bool

    @property
    def asked(self) -> bool:
        """Whether any output is requested."""
        return self.github or self.report is not None or self.junit is not None

    def check(self) -> None:
        """Raise ``InputError`` for outputs that cannot be written, before the trial runs."""
        for path in (self.report, self.junit):
            check_output(path)
        if self.github:
            check_summary()

    def judged(self, report: Mapping[str, Any], gates: Sequence[Gate], elapsed_s: float) -> None:
        """Write the outputs of a trial that ran, with its gates."""
        from autosbp.cli._junit import junit_of_gates

        if self.report is not None:
            write_json(self.report, report)
        if self.junit is not None:
            write_text(self.junit, junit_of_gates(report, gates, elapsed_s))
        if self.github:
            show_gates(report, gates)

    def failed(self, error: AutosbpError, plan: str, elapsed_s: float) -> None:
        """Write the outputs of a trial that failed to run; there is no measurement report."""
        from autosbp.cli._junit import junit_of_error

        if self.junit is not None:
            write_text(self.junit, junit_of_error(error, plan, elapsed_s))
        if self.github:
            show_error(error, plan)
