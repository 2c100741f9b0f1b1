"""The tables of the service, one file each."""

from service.models._base import DEFAULT_TENANT, NO_TENANT, Base, bound, now, table_of
from service.models.access import AuditRow, EndedSessionRow, KeyRow, ReplayRow
from service.models.analysis import AnalysisRow
from service.models.artifact import ArtifactRow
from service.models.calibration import CalibrationRow
from service.models.cluster import ClusterRow
from service.models.job import JobRow
from service.models.model import ModelRow
from service.models.search import SearchRow
from service.models.strategy import StrategyRow
from service.models.trial import TrialRow
from service.models.worker import WorkerRow

__all__ = [
    "DEFAULT_TENANT",
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
    "ReplayRow",
    "SearchRow",
    "StrategyRow",
    "TrialRow",
    "WorkerRow",
    "bound",
    "now",
    "table_of",
]
