"""Optuna's tree-structured Parzen estimator over the choices of the space (needs the extra ``tune``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosbp.errors import UnsupportedError
from autosbp.tuning.proposers._base import known_strategies
from autosbp.tuning.sampler import MAX_ATTEMPTS, Proposal, Sampler
from autosbp.tuning.strategy_space import Choices
from autosbp.tuning.trial_store import Trial

NUM_SEEDS = 16
"""Number of perturbation seeds to choose from; a strategy has at most one."""
NO_SEED = -1


class TpeProposer:
    """Proposes points by TPE. The Optuna study is rebuilt from the trials in each round, so that a search can resume.

    Raises:
        UnsupportedError: Optuna is not installed.
    """

    def __init__(self, sampler: Sampler, seed: int = 0) -> None:
        try:
            import optuna
        except ImportError:
            raise UnsupportedError("the proposer tpe needs Optuna: pip install 'autosbp[tune]'") from None
        self.sampler, self.seed = sampler, seed
        self._optuna: Any = optuna
        self._values: dict[str, tuple[Any, ...]] = {
            **sampler.space.domains, "perturbation": (NO_SEED, *range(NUM_SEEDS))
        }  # fmt: skip

    def propose(self, count: int, trials: Sequence[Trial]) -> list[Proposal]:
        optuna, known, found = self._optuna, known_strategies(trials), list[Proposal]()
        study = self._study(trials)
        for _ in range(MAX_ATTEMPTS * count):
            if len(found) == count:
                break
            asked = study.ask()
            at = {name: asked.suggest_categorical(name, range(len(values))) for name, values in self._values.items()}
            chosen = {name: self._values[name][index] for name, index in at.items()}
            seed = chosen.pop("perturbation")
            choices = Choices(**chosen, perturbations=() if seed == NO_SEED else (seed,))
            candidate = self.sampler.solve(choices)
            if candidate is None:
                study.tell(asked, state=optuna.trial.TrialState.PRUNED)
                continue
            proposal = Proposal("tpe", candidate, choices)
            if proposal.strategy_id not in known:  # Optuna counts it as running until the study is rebuilt
                known.add(proposal.strategy_id)
                found.append(proposal)
            else:
                study.tell(asked, _value(trials, proposal.strategy_id))
        return found

    def _study(self, trials: Sequence[Trial]) -> Any:
        optuna = self._optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=self.seed + len(trials), multivariate=True, constant_liar=True)
        study = optuna.create_study(sampler=sampler)
        spaces = {
            name: optuna.distributions.CategoricalDistribution(range(len(values)))
            for name, values in self._values.items()
        }
        for trial in trials:
            if trial.choices is None or trial.choices.perturbations not in self._perturbations:
                continue
            state = optuna.trial.TrialState.COMPLETE if trial.step_time_s else optuna.trial.TrialState.PRUNED
            study.add_trial(optuna.trial.create_trial(
                state=state, value=trial.step_time_s, params=self._params(trial.choices), distributions=spaces,
            ))  # fmt: skip
        return study

    @property
    def _perturbations(self) -> set[tuple[int, ...]]:
        return {(), *((seed,) for seed in range(NUM_SEEDS))}

    def _params(self, choices: Choices) -> dict[str, int]:
        seed = choices.perturbations[0] if choices.perturbations else NO_SEED
        chosen = {name: getattr(choices, name) for name in self.sampler.space.domains} | {"perturbation": seed}
        return {name: values.index(chosen[name]) for name, values in self._values.items()}


def _value(trials: Sequence[Trial], strategy: str) -> float:
    """Measured time of a known strategy; the slowest time of any trial if it failed or was not measured yet."""
    known = [trial.step_time_s for trial in trials if trial.strategy_id == strategy]
    worst = max((trial.step_time_s for trial in trials if trial.step_time_s), default=1.0)
    return (known[0] if known else None) or worst
