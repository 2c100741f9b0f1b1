"""Proposers: choose the strategies to measure next. Importing this package imports neither torch nor Optuna."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autosbp.tuning.proposers._base import Proposer, known_strategies, measured_s
from autosbp.tuning.proposers._random import RandomProposer
from autosbp.tuning.sampler import Sampler


def _ranked(sampler: Sampler, seed: int) -> Proposer:
    from autosbp.tuning.proposers._ranked import RankedProposer

    return RankedProposer(sampler, seed)


def _tpe(sampler: Sampler, seed: int) -> Proposer:
    from autosbp.tuning.proposers._tpe import TpeProposer

    return TpeProposer(sampler, seed)


PROPOSERS: Mapping[str, Callable[[Sampler, int], Proposer]] = {"ranked": _ranked, "random": RandomProposer, "tpe": _tpe}
"""Proposers by name: the guided sampler with the ranking model, the guided sampler alone, and Optuna's TPE."""
DEFAULT_PROPOSER = "ranked"

__all__ = ["DEFAULT_PROPOSER", "PROPOSERS", "Proposer", "known_strategies", "measured_s"]
