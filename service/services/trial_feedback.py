"""Feedback of trials: after every trial, a corrected version of the calibration that its strategy was searched with."""

from __future__ import annotations

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.calibration_correction import TrialResidual, fit_correction
from autosbp.service.models import CalibrationRow, StrategyRow, TrialRow
from autosbp.service.services import calibrations
from autosbp.service.services._queries import existing

MAX_TRIALS = 64
"""Number of the family's newest trials that a version is fitted to; older ones may not fit a changed cluster."""


def store_corrected_version(session: Session, calibration_id: str | None) -> CalibrationRow | None:
    """Fit a corrected version to the succeeded trials of the calibration's family and store it.

    A version is a function of the root and the trials, and its id a hash of its content, so repeating the call changes
    nothing. The root is locked, so that a version includes every trial stored before it.

    Returns:
        The version; None without a calibration or trials.
    """
    if calibration_id is None:
        return None
    root_id = existing(session, CalibrationRow, calibration_id).root_id
    root = existing(session, CalibrationRow, root_id, lock=True)
    experiences = _residuals(session, root_id)
    if not experiences:
        return None
    taught = fit_correction(Calibration.from_dict(root.document), experiences)
    return calibrations.store(session, taught, None, root_id)[0]


def _residuals(session: Session, root_id: str) -> list[TrialResidual]:
    """Residuals of the family's newest trials, oldest first."""
    document = TrialRow.result["experience"]
    query = (
        select(document)
        .join(StrategyRow, and_(StrategyRow.id == TrialRow.strategy_id, StrategyRow.tenant == TrialRow.tenant))
        .join(
            CalibrationRow,
            and_(CalibrationRow.id == StrategyRow.calibration_id, CalibrationRow.tenant == StrategyRow.tenant),
        )
        .where(CalibrationRow.root_id == root_id, document.as_string().is_not(None))
        .order_by(TrialRow.created_at.desc(), TrialRow.id.desc())
        .limit(MAX_TRIALS)
    )
    return [TrialResidual.from_dict(one) for one in reversed(session.scalars(query).all())]
