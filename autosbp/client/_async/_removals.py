"""Deletions: every DELETE of a resource.

With ``cascade``, dependent resources are deleted too; without it, dependents cause a ``ConflictError`` that names them.
With ``version``, the resource is deleted only if it is still at that version. An unfinished job that uses any of the
resources also causes a ``ConflictError``.
"""

from __future__ import annotations

from autosbp.client._async._base import Part
from autosbp.client._conditional_requests import Version, condition


class Removals(Part):
    """Resources by id; ``NotFoundError`` if the service lacks one."""

    async def delete_model(self, model_id: str, *, cascade: bool = False, version: Version | None = None) -> None:
        """Delete a model."""
        await self._delete(f"/v1/models/{model_id}", cascade, version)

    async def delete_cluster(self, cluster_id: str, *, cascade: bool = False, version: Version | None = None) -> None:
        """Delete a cluster."""
        await self._delete(f"/v1/clusters/{cluster_id}", cascade, version)

    async def delete_calibration(
        self, calibration_id: str, *, cascade: bool = False, version: Version | None = None
    ) -> None:
        """Delete a calibration and the job that measured it."""
        await self._delete(f"/v1/calibrations/{calibration_id}", cascade, version)

    async def delete_search(self, search_id: str, *, cascade: bool = False, version: Version | None = None) -> None:
        """Delete a search with its job; the strategies that it found stay."""
        await self._delete(f"/v1/searches/{search_id}", cascade, version)

    async def delete_strategy(self, strategy_id: str, *, cascade: bool = False, version: Version | None = None) -> None:
        """Delete a strategy."""
        await self._delete(f"/v1/strategies/{strategy_id}", cascade, version)

    async def delete_analysis(self, analysis_id: str, *, cascade: bool = False, version: Version | None = None) -> None:
        """Delete an analysis with its job."""
        await self._delete(f"/v1/analyses/{analysis_id}", cascade, version)

    async def delete_trial(self, trial_id: str, *, cascade: bool = False, version: Version | None = None) -> None:
        """Delete a trial with its job and files; corrections that it made to a calibration stay."""
        await self._delete(f"/v1/trials/{trial_id}", cascade, version)

    async def delete_artifact(self, artifact_id: str, *, version: Version | None = None) -> None:
        """Delete a file that a trial or calibration stored."""
        await self._delete(f"/v1/artifacts/{artifact_id}", False, version)

    async def delete_job(self, job_id: str, *, cascade: bool = False, version: Version | None = None) -> None:
        """Delete a job that has ended."""
        await self._delete(f"/v1/jobs/{job_id}", cascade, version)

    async def _delete(self, path: str, cascade: bool, version: Version | None) -> None:
        await self._at.send("DELETE", path, query={"cascade": "true"} if cascade else None, headers=condition(version))
