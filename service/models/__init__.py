"""The tables of the service, one file each."""

from service.models._base import Base, now
from service.models.calibration import CalibrationRow
from service.models.cluster import ClusterRow
from service.models.job import JobRow
from service.models.model import ModelRow
from service.models.search import SearchRow
from service.models.strategy import StrategyRow
from service.models.trial import TrialRow

__all__ = [
    "Base",
    "CalibrationRow",
    "ClusterRow",
    "JobRow",
    "ModelRow",
    "SearchRow",
    "StrategyRow",
    "TrialRow",
    "now",
]
