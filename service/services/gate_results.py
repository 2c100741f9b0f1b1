"""Gates of trials, evaluated in the service from the trial's measurements and stored trials."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session, undefer

from autosbp.errors import InputError
from autosbp.report.trial_gates import Gate, GateLimits, NoReference, ReferenceTrial, check_gates
from autosbp.service.models import ClusterRow, ModelRow, StrategyRow, TrialRow
from autosbp.service.problem_details import conflict
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.schemas.trials import JudgeRequest
from autosbp.service.services._queries import existing, require

NUM_COMPARED = 5
"""Number of earlier trials whose median is the reference; one trial could be fast or slow by chance."""
_LOAD_DEFERRED = (undefer(TrialRow.result), undefer(TrialRow.gates))


def judge(state: AppState, trial_id: str, request: JudgeRequest, check: Callable[[TrialRow], None]) -> TrialRow:
    """Judge a successful trial by limits; ``check`` may refuse by raising.

    A trial is judged once, so that a failed one cannot be made to pass: repeating the same limits returns the stored
    verdict, other limits raise ``ProblemError`` 409.
    """
    limits = request.limits()
    with state.database.write() as session:
        row = require(session, TrialRow, trial_id, "trial", *_LOAD_DEFERRED)
        check(row)
        if row.job.state != "succeeded" or row.result is None:
            raise conflict(f"trial {trial_id} is {row.job.state}; only succeeded trials can be evaluated")
        if row.passed is None:
            found = _gates(session, row, limits, request.baseline_label)
            passed = all(gate["passed"] for gate in found)
            unjudged = update(TrialRow).where(TrialRow.id == trial_id, TrialRow.passed.is_(None))
            session.execute(
                unjudged.values(passed=passed, gates=found), execution_options={"synchronize_session": False}
            )
            session.refresh(row)
        if not _has_limits(row, limits):
            raise conflict(f"trial {trial_id} was already evaluated with other limits; run another trial")
        return row


def _gates(session: Session, row: TrialRow, limits: GateLimits, label: str | None) -> list[Document]:
    """Results of all gates as documents: name, limit, value, passed, sentence, and the reference of a regression gate."""
    earlier: ReferenceTrial | NoReference = NoReference()
    if limits.regression is not None:
        earlier = _reference_trial(session, row, label)
    try:
        gates = check_gates(row.result or {}, limits, earlier)
    except KeyError as error:
        raise InputError("limits", str(error), f"trial {row.id} did not measure this") from None
    return [_document(gate, earlier) for gate in gates]


def _document(gate: Gate, earlier: ReferenceTrial | NoReference) -> Document:
    found: Document = {"name": gate.name, **gate.to_dict()}
    if gate.name == "max_regression" and isinstance(earlier, ReferenceTrial):
        found["compared_with"] = earlier.to_dict()
    return found


def _has_limits(row: TrialRow, limits: GateLimits) -> bool:
    """Whether these limits gave the stored verdict; without a limit of their own, losses were judged by rounding."""
    stored = _limits_of(row.gates or ())
    if limits.loss_difference is None and stored.loss_difference == (row.result or {}).get("loss_bound"):
        stored = replace(stored, loss_difference=None)
    return stored == limits


def _limits_of(gates: Sequence[Document]) -> GateLimits:
    """The limits of a stored verdict."""
    limit = {gate["name"]: gate["limit"] for gate in gates}
    return GateLimits(
        limit.get("max_step_time_s"),
        limit.get("max_loss_difference"),
        limit.get("max_regression"),
        limit.get("max_prediction_error"),
    )


def _reference_trial(session: Session, trial: TrialRow, label: str | None) -> ReferenceTrial | NoReference:
    """Median of the newest passed trials before this one, with this label if one is given.

    These are trials of the same strategy, or else of a model with the same name on the same cluster, as a changed model
    has other strategies. Their baseline must be the same too. Trials that failed a gate or were not judged are ignored.
    """
    strategy = existing(session, StrategyRow, trial.strategy_id)
    name = existing(session, ModelRow, strategy.model_id).name
    cluster = existing(session, ClusterRow, strategy.cluster_id).name
    labelled = "" if label is None else f" labelled {label}"
    if found := _newest_passed_trials(session, trial, label, TrialRow.strategy_id == strategy.id):
        return _median(found, f"{labelled} of this strategy")
    alike = select(StrategyRow.id).join(
        ModelRow, (ModelRow.id == StrategyRow.model_id) & (ModelRow.tenant == StrategyRow.tenant)
    )
    alike = alike.where(ModelRow.name == name, StrategyRow.cluster_id == strategy.cluster_id)
    if found := _newest_passed_trials(session, trial, label, TrialRow.strategy_id.in_(alike)):
        return _median(found, f"{labelled} of {name} on {cluster} (none of this strategy)")
    return NoReference(f"no earlier trial{labelled} of {name} on {cluster} passed its gates; nothing to compare with")


def _newest_passed_trials(
    session: Session, trial: TrialRow, label: str | None, of: ColumnElement[bool]
) -> Sequence[TrialRow]:
    query = select(TrialRow).where(
        of,
        TrialRow.passed.is_(True),
        TrialRow.created_at < trial.created_at,
        TrialRow.baseline == trial.baseline if trial.baseline is not None else TrialRow.baseline.is_(None),
        *(() if label is None else (TrialRow.label == label,)),
    )
    newest = query.order_by(TrialRow.created_at.desc(), TrialRow.id.desc()).limit(NUM_COMPARED)
    return session.scalars(newest).all()


def _median(found: Sequence[TrialRow], which: str) -> ReferenceTrial:
    ids = tuple(other.id for other in found)
    what = (
        f"the last passed trial{which}" if len(ids) == 1 else f"the median of the last {len(ids)} passed trials{which}"
    )
    step_time_s = statistics.median(other.measured_step_time_s or 0.0 for other in found)
    return ReferenceTrial(step_time_s, f"{what}: {', '.join(ids)}", ids)
