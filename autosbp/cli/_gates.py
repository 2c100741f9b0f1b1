"""The gates of a trial: limits on what was measured, and what came of each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosbp.errors import InputError
from autosbp.units import seconds

_PERCENT = re.compile(r"(\d+(?:\.\d+)?|\.\d+) ?%")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a trial must keep; None asks nothing.

    Args:
        step_time_s: of the median step.
        loss_difference: relative, to one device's losses.
        regression: of the median step over an earlier one's, as a fraction of that; a faster step is below 0.
        prediction_error: difference of the median step to the predicted one, as a fraction of what was measured.
    """

    step_time_s: float | None = None
    loss_difference: float | None = None
    regression: float | None = None
    prediction_error: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            limit = getattr(self, name)
            if limit is not None and not 0 <= limit < math.inf:
                raise InputError(f"max_{name.removesuffix('_s')}", str(limit), "a number of at least 0 is expected")

    @property
    def asked(self) -> bool:
        """Whether there is any limit."""
        return any(getattr(self, name) is not None for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a regression is measured against: a median step, whose it is in words, and the ids of these trials."""

    step_time_s: float
    source: str
    trials: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a report has it."""
        return {"step_time_s": self.step_time_s, "source": self.source, "trials": list(self.trials)}


@dataclass(frozen=True, slots=True)
class Nothing:
    """Why there is nothing to measure a regression against."""

    sentence: str = "there is no earlier trial to compare with"


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate. ``value`` is None where there was nothing to compare with, which passes."""

    name: str
    limit: float
    value: float | None
    passed: bool
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Without the name, under which a report has it."""
        return {"limit": self.limit, "value": self.value, "passed": self.passed, "sentence": self.sentence}


_NOTHING = Nothing()


def fraction(text: str | None, field: str) -> float | None:
    """``5%`` as 0.05. The sign is asked for, because 5 and 0.05 without it might mean either."""
    if text is None:
        return None
    found = _PERCENT.fullmatch(text.strip())
    if found is None:
        raise InputError(field, text, "a percentage such as 5% is expected")
    return float(found[1]) / 100


def check_gates(result: Mapping[str, Any], limits: Limits, earlier: Earlier | Nothing = _NOTHING) -> tuple[Gate, ...]:
    """The gates of a trial's result: the collectives always, and one for each limit. ``earlier`` is for the regression."""
    median_s = result["step_time_s"]["median"]
    match = bool(result["collectives_match"])
    said = "issued as charged" if match else "other collectives were issued than the plan was charged for"
    gates = [Gate("collectives_match", 1, int(match), match, said)]
    if limits.step_time_s is not None:
        words = f"{seconds(median_s)} a step, at most {seconds(limits.step_time_s)}"
        gates.append(_at_most("max_step_time_s", limits.step_time_s, median_s, words))
    if limits.loss_difference is not None:
        difference = result["loss_difference"]
        words = f"losses differ from one device's by {difference:.2g}, at most {limits.loss_difference:.2g}"
        gates.append(_at_most("max_loss_difference", limits.loss_difference, difference, words))
    if limits.regression is not None:
        gates.append(_regression(limits.regression, median_s, earlier))
    if limits.prediction_error is not None:
        predicted_s = result["predicted_step_time_s"]
        error = abs(median_s - predicted_s) / median_s
        words = f"{seconds(predicted_s)} was predicted, {seconds(median_s)} measured: {_percent(error)} off"
        words += f", at most {_percent(limits.prediction_error)}"
        gates.append(_at_most("max_prediction_error", limits.prediction_error, error, words))
    return tuple(gates)


def all_passed(gates: Sequence[Gate]) -> bool:
    """Whether no gate failed."""
    return all(gate.passed for gate in gates)


def _regression(limit: float, median_s: float, earlier: Earlier | Nothing) -> Gate:
    if isinstance(earlier, Nothing):
        return Gate("max_regression", limit, None, True, earlier.sentence)
    change = median_s / earlier.step_time_s - 1
    sign = "slower" if change > 0 else "faster"
    words = f"{_percent(abs(change))} {sign} than {seconds(earlier.step_time_s)} of {earlier.source}"
    return _at_most("max_regression", limit, change, f"{words}, at most {_percent(limit)} slower")


def _at_most(name: str, limit: float, value: float, words: str) -> Gate:
    return Gate(name, limit, value, value <= limit, words)


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"
