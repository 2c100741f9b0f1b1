"""Gates of a trial: limits on its measurements, and whether each passed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosbp.errors import InputError
from autosbp.utils.formatting import seconds

_CHANCE = 4
"""Tolerance of losses with random ops, in standard deviations of one device's loss over seeds."""
_NOTCH = 1.57
_PERCENT = re.compile(r"(\d+(?:\.\d+)?|\.\d+) ?%")


@dataclass(frozen=True, slots=True)
class GateLimits:
    """Limits that a trial must meet; None means no limit.

    Args:
        step_time_s: limit of the median step time.
        loss_difference: limit of the relative difference from one device's losses, to which a tolerance for random ops
            is added; None for the rounding error of the plan's precision (``loss_bound`` of the result).
        regression: limit of the increase of the median step time over an earlier trial's, as a fraction of the earlier
            one; a faster step counts as negative.
        prediction_error: limit of the difference between median and predicted step time, as a fraction of the median.

    A limit on times is exceeded if the median exceeds it by more than the median's uncertainty, which is computed from
    the spread of the steps (``median_uncertainty_s``).
    """

    step_time_s: float | None = None
    loss_difference: float | None = None
    regression: float | None = None
    prediction_error: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            limit = getattr(self, name)
            if limit is not None and not 0 <= limit < math.inf:
                raise InputError(f"max_{name.removesuffix('_s')}", str(limit), "expected a number of at least 0")

    @property
    def asked(self) -> bool:
        """Whether any limit is set."""
        return any(getattr(self, name) is not None for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class ReferenceTrial:
    """Reference of a regression: a median step time, its origin in words, and the ids of its trials."""

    step_time_s: float
    source: str
    trials: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The reference as a report holds it."""
        return {"step_time_s": self.step_time_s, "source": self.source, "trials": list(self.trials)}


@dataclass(frozen=True, slots=True)
class NoReference:
    """The reason why there is no reference of a regression."""

    sentence: str = "no earlier trial to compare with"


@dataclass(frozen=True, slots=True)
class Gate:
    """Result of one gate.

    ``value`` is None if there was nothing to compare with. The gate then passes, except that of losses with a limit.
    """

    name: str
    limit: float
    value: float | None
    passed: bool
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """The gate without its name, which is its key in a report."""
        return {"limit": self.limit, "value": self.value, "passed": self.passed, "sentence": self.sentence}


_NOTHING = NoReference()
_NOT_COMPARED = "the losses were not compared with one device"


def fraction(text: str | None, field: str) -> float | None:
    """Convert ``5%`` to 0.05; the sign is required, because 5 and 0.05 without it would be ambiguous."""
    if text is None:
        return None
    found = _PERCENT.fullmatch(text.strip())
    if found is None:
        raise InputError(field, text, "expected a percentage such as 5%")
    return float(found[1]) / 100


def check_gates(
    result: Mapping[str, Any], limits: GateLimits, earlier: ReferenceTrial | NoReference = _NOTHING
) -> tuple[Gate, ...]:
    """Check a trial's result: always its collectives, and each limit that is set.

    Args:
        result: the trial's result.
        limits: the limits.
        earlier: reference of the regression.
    """
    median_s, uncertain_s = result["step_time_s"]["median"], median_uncertainty_s(result["step_time_s"])
    match = bool(result["collectives_match"])
    said = "issued as predicted" if match else "issued collectives differ from the predicted ones"
    gates = [Gate("collectives_match", 1, int(match), match, said)]
    if limits.step_time_s is not None:
        words = f"{seconds(median_s)} ± {seconds(uncertain_s)} per step, limit {seconds(limits.step_time_s)}"
        gates.append(_at_most("max_step_time_s", limits.step_time_s, median_s, words, uncertain_s))
    if (loss := loss_gate(result, limits.loss_difference)) is not None:
        gates.append(loss)
    if limits.regression is not None:
        gates.append(_regression(limits.regression, median_s, uncertain_s, earlier))
    if limits.prediction_error is not None:
        predicted_s = result["predicted_step_time_s"]
        error, uncertain = abs(median_s - predicted_s) / median_s, uncertain_s / median_s
        words = f"{seconds(predicted_s)} predicted, {seconds(median_s)} measured: error {_percent(error)}"
        words += f" ± {_percent(uncertain)}, limit {_percent(limits.prediction_error)}"
        gates.append(_at_most("max_prediction_error", limits.prediction_error, error, words, uncertain))
    return tuple(gates)


def median_uncertainty_s(times: Mapping[str, Any]) -> float:
    """Half of the 95 % confidence interval of a median: 1.57 IQR / sqrt(n) (McGill, Tukey and Larsen, 1978).

    Args:
        times: ``iqr`` and ``steps`` of a result's ``step_time_s``.
    """
    return _NOTCH * float(times.get("iqr", 0.0)) / math.sqrt(max(int(times.get("steps", 1)), 1))


def loss_gate(result: Mapping[str, Any], limit: float | None = None) -> Gate | None:
    """The gate of the losses; without ``limit``, only rounding and random ops are tolerated. None if nothing applies."""
    difference, bound = result.get("loss_difference"), result.get("loss_bound")
    if limit is None and (bound is None or difference is None):
        return None
    source = "limit" if limit is not None else "the rounding of this precision explains at most"
    limit = float(bound or 0.0) if limit is None else limit
    if difference is None:
        return Gate(
            "max_loss_difference", limit, None, False, next(iter(result.get("differs_as") or ()), _NOT_COMPARED)
        )
    chance = _CHANCE * result.get("loss_spread", 0.0)
    words = f"losses differ from single-device losses by {difference:.2g}, {source} {limit:.2g}"
    words += f" and {chance:.2g} by chance, {_CHANCE} standard deviations over seeds of dropout" if chance else ""
    return _at_most("max_loss_difference", limit, difference, words, chance)


def all_passed(gates: Sequence[Gate]) -> bool:
    """Whether no gate failed."""
    return all(gate.passed for gate in gates)


def _regression(limit: float, median_s: float, uncertain_s: float, earlier: ReferenceTrial | NoReference) -> Gate:
    if isinstance(earlier, NoReference):
        return Gate("max_regression", limit, None, True, earlier.sentence)
    change, uncertain = median_s / earlier.step_time_s - 1, uncertain_s / earlier.step_time_s
    sign = "slower" if change > 0 else "faster"
    spread = f" ± {_percent(uncertain)}" if uncertain else ""
    words = f"{_percent(abs(change))}{spread} {sign} than {seconds(earlier.step_time_s)} of {earlier.source}"
    return _at_most("max_regression", limit, change, f"{words}, limit {_percent(limit)} slower", uncertain)


def _at_most(name: str, limit: float, value: float, words: str, uncertain: float) -> Gate:
    """A gate that passes up to the limit, and above it within the value's uncertainty."""
    if limit < value <= limit + uncertain:
        words += "; the difference is within the spread"
    return Gate(name, limit, value, value <= limit + uncertain, words)


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"
