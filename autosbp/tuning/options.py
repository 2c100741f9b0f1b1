"""Options of tuning, validated on construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autosbp.errors import InputError
from autosbp.tuning.proposers import DEFAULT_PROPOSER, PROPOSERS
from autosbp.tuning.trial_pool import TrialEffort
from autosbp.utils.json_io import Fields, check_integer

MAX_TRIALS = 100_000
MAX_MINUTES = 7 * 24 * 60.0


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Options of tuning.

    Args:
        trials: maximum number of trials; includes failed ones, and those that confirm the fastest strategies at the
            end.
        minutes: maximum duration of this and earlier runs together; None for no limit.
        proposer: a key of ``proposers.PROPOSERS``.
        seed: seed of the proposer, of parameters and of batches.
        effort: steps and time limits of each trial.
    """

    trials: int = 200
    minutes: float | None = None
    proposer: str = DEFAULT_PROPOSER
    seed: int = 0
    effort: TrialEffort = field(default_factory=TrialEffort)

    def __post_init__(self) -> None:
        check_integer("trials", self.trials, 1, MAX_TRIALS)
        check_integer("seed", self.seed, 0, 2**53)
        if self.minutes is not None and not 0 < self.minutes <= MAX_MINUTES:
            raise InputError("minutes", self.minutes, f"expected more than 0 and at most {MAX_MINUTES:g}")
        if self.proposer not in PROPOSERS:
            raise InputError("proposer", self.proposer, f"expected one of {', '.join(PROPOSERS)}")

    def to_dict(self) -> dict[str, Any]:
        return {"trials": self.trials, "minutes": self.minutes, **self.resumable()}

    def resumable(self) -> dict[str, Any]:
        """The options without the budgets; a run resumes another one only if these are equal."""
        return {"proposer": self.proposer, "seed": self.seed, "effort": self.effort.to_dict()}

    @staticmethod
    def from_dict(data: object, path: str = "tuning") -> TuneOptions:
        read = Fields(data, path, tuple(TuneOptions.__slots__))
        effort = Fields(read.mapping("effort"), read.at("effort"), tuple(TrialEffort.__slots__))
        return TuneOptions(
            read.integer("trials"), read.raw("minutes"), read.text("proposer"), read.integer("seed"),
            TrialEffort(**effort.data),
        )  # fmt: skip
