"""The database tables of the service, one file per resource."""

from autosbp.service.models._base import (
    DEFAULT_TENANT,
    ID_DIGITS,
    NO_TENANT,
    Base,
    bind_parameters,
    content_id,
    now,
    table_of,
)
from autosbp.service.models.access import AuditRow, EndedSessionRow, KeyRow, ReplayRow
from autosbp.service.models.analysis import AnalysisRow
from autosbp.service.models.artifact import ArtifactRow
from autosbp.service.models.calibration import CalibrationRow
from autosbp.service.models.cluster import ClusterRow
from autosbp.service.models.deleted_files import RemovedFilesRow
from autosbp.service.models.job import DEFAULT_EXPECTED_S, JobRow, ShareRow
from autosbp.service.models.model import ModelRow
from autosbp.service.models.search import SearchRow
from autosbp.service.models.strategy import StrategyRow
from autosbp.service.models.trial import TrialRow
from autosbp.service.models.worker import WorkerRow

__all__ = [
    "DEFAULT_EXPECTED_S",
    "DEFAULT_TENANT",
    "ID_DIGITS",
    "NO_TENANT",
    "AnalysisRow",
    "ArtifactRow",
    "AuditRow",
    "Base",
    "CalibrationRow",
    "ClusterRow",
    "EndedSessionRow",
    "JobRow",
    "KeyRow",
    "ModelRow",
    "RemovedFilesRow",
    "ReplayRow",
    "SearchRow",
    "ShareRow",
    "StrategyRow",
    "TrialRow",
    "WorkerRow",
    "bind_parameters",
    "content_id",
    "now",
    "table_of",
]
