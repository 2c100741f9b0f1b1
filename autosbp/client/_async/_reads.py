"""Reads: every GET of one resource. With ``version``, raises ``NotModifiedError`` if the resource has not changed."""

from __future__ import annotations

from autosbp.client import documents
from autosbp.client._async._base import Part
from autosbp.client._conditional_requests import Version
from autosbp.client._http_messages import Document
from autosbp.client._types import Target


class Reads(Part):
    """Resources by id; ``NotFoundError`` if the service lacks one."""

    async def get_model(self, model_id: str, *, version: Version | None = None) -> documents.Model:
        """A model in brief."""
        found: documents.Model = await self._read(f"/v1/models/{model_id}", version)
        return found

    async def get_graph(self, model_id: str, *, version: Version | None = None) -> Document:
        """A model's graph document; read it with ``api.load_graph``."""
        found: Document = await self._read(f"/v1/models/{model_id}/graph", version)
        return found

    async def get_cluster(self, cluster_id: str, *, version: Version | None = None) -> Document:
        """A cluster document; read it with ``Cluster.from_dict``."""
        found: Document = (await self._read(f"/v1/clusters/{cluster_id}", version))["document"]
        return found

    async def get_calibration(self, calibration_id: str, *, version: Version | None = None) -> Document:
        """A calibration document; read it with ``Calibration.from_dict``."""
        found: Document = (await self._read(f"/v1/calibrations/{calibration_id}", version))["document"]
        return found

    async def newest_calibration(self, calibration_id: str) -> str:
        """The id of the newest version of a calibration; a search uses it only if given this id."""
        return str((await self._at.get(f"/v1/calibrations/{calibration_id}"))["newest_id"])

    async def get_search(self, search_id: str, *, version: Version | None = None) -> documents.Search:
        """A search: its inputs, and the strategies that it found."""
        found: documents.Search = await self._read(f"/v1/searches/{search_id}", version)
        return found

    async def get_tuning(self, search_id: str, *, version: Version | None = None) -> Document:
        """What the trials of a search show: best so far, hit rate, ranking accuracy, and every trial."""
        found: Document = await self._read(f"/v1/searches/{search_id}/tuning", version)
        return found

    async def tuning_charts(self, search_id: str) -> str:
        """Pictures of what the trials of a search show, as one SVG."""
        return (await self._at.send("GET", f"/v1/searches/{search_id}/tuning/charts")).text

    async def get_strategy(self, strategy_id: str, *, version: Version | None = None) -> Document:
        """A complete plan document with its provenance and baselines; read it with ``Plan.from_dict``."""
        found: Document = await self._read(f"/v1/strategies/{strategy_id}", version)
        return found

    async def diff(self, strategy_id: str, other_id: str, *, version: Version | None = None) -> Document:
        """Differences of the second strategy from the first."""
        found: Document = await self._read(f"/v1/strategies/{strategy_id}/diff/{other_id}", version)
        return found

    async def export(
        self,
        strategy_id: str,
        target: Target,
        *,
        baseline: str | None = None,
        version: Version | None = None,
    ) -> dict[str, str]:
        """A strategy exported for another tool: file contents by name."""
        path = f"/v1/strategies/{strategy_id}/exports/{target}"
        found: documents.Export = await self._read(path, version, {"baseline": baseline})
        return found["files"]

    async def get_analysis(self, analysis_id: str, *, version: Version | None = None) -> documents.Analysis:
        """A question about a strategy, with its answer in ``result``."""
        found: documents.Analysis = await self._read(f"/v1/analyses/{analysis_id}", version)
        return found

    async def get_trial(self, trial_id: str, *, version: Version | None = None) -> documents.Trial:
        """A trial: predictions and measurements."""
        found: documents.Trial = await self._read(f"/v1/trials/{trial_id}", version)
        return found

    async def trial_log(self, trial_id: str) -> str:
        """The log of a trial's ranks."""
        return (await self._at.send("GET", f"/v1/trials/{trial_id}/logs")).text

    async def get_artifact(self, artifact_id: str, *, version: Version | None = None) -> documents.Artifact:
        """A file that a trial or calibration stored: its name, size and checksum."""
        found: documents.Artifact = await self._read(f"/v1/artifacts/{artifact_id}", version)
        return found

    async def artifact_content(self, artifact_id: str) -> bytes:
        """The content of an artifact."""
        return (await self._at.send("GET", f"/v1/artifacts/{artifact_id}/content")).content
