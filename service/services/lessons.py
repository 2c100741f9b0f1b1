"""What trials teach the calibrations that their strategies were searched with: a new version after every trial."""

from __future__ import annotations

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.learning import Experience, learn
from service.models import CalibrationRow, StrategyRow, TrialRow
from service.services import calibrations
from service.services._store import existing

MAX_TRIALS = 64
"""A version learns from so many of its family's newest trials: clusters change."""


def teach(session: Session, calibration_id: str | None) -> CalibrationRow | None:
    """Store the version that all succeeded trials of the calibration's family teach its root; None if there is none.

    A version is a function of the root and the trials, and its id of its contents: to teach again changes nothing. The
    root is locked, so that a version knows every trial that was stored before it.
    """
    if calibration_id is None:
        return None
    root_id = existing(session, CalibrationRow, calibration_id).root_id
    root = existing(session, CalibrationRow, root_id, lock=True)
    experiences = _experiences(session, root_id)
    if not experiences:
        return None
    taught = learn(Calibration.from_dict(root.document), experiences)
    return calibrations.store(session, taught, None, root_id)[0]


def _experiences(session: Session, root_id: str) -> list[Experience]:
    """Of the family's newest trials, oldest first."""
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
    return [Experience.from_dict(one) for one in reversed(session.scalars(query).all())]
