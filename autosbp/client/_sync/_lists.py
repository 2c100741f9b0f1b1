"""Lists: every GET of a collection. ``limit`` is the page size; iteration always covers all items."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, cast

from autosbp.client import documents
from autosbp.client._conditional_requests import window
from autosbp.client._sync._base import Part
from autosbp.client._types import JobState


class Lists(Part):
    """Each method takes the query parameters of its route; those that are None do not filter."""

    def models(
        self,
        *,
        name: str | None = None,
        source: str | None = None,
        graph_hash: str | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.Model]:
        """Every stored model in brief, newest first; ``graph_hash`` is the one in a plan's provenance."""
        query = {"name": name, "source": source, "graph_hash": graph_hash}
        return cast(
            Iterator[documents.Model],
            self._at.pages("/v1/models", {**query, **window(limit, created_after, created_before)}),
        )

    def clusters(
        self,
        *,
        name: str | None = None,
        num_devices: int | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.Cluster]:
        """Every stored cluster, newest first."""
        query = {"name": name, "num_devices": num_devices}
        return cast(
            Iterator[documents.Cluster],
            self._at.pages("/v1/clusters", {**query, **window(limit, created_after, created_before)}),
        )

    def calibrations(
        self,
        *,
        cluster_id: str | None = None,
        root_id: str | None = None,
        backend: Literal["gloo", "nccl"] | None = None,
        complete: bool | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.Calibration]:
        """Every stored calibration in brief, newest first.

        ``root_id`` selects a calibration together with its versions corrected by trials.
        """
        query = {"cluster_id": cluster_id, "root_id": root_id, "backend": backend, "complete": complete}
        return cast(
            Iterator[documents.Calibration],
            self._at.pages("/v1/calibrations", {**query, **window(limit, created_after, created_before)}),
        )

    def searches(
        self,
        *,
        model_id: str | None = None,
        cluster_id: str | None = None,
        calibration_id: str | None = None,
        strategy_id: str | None = None,
        state: JobState | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.Search]:
        """Every search, newest first."""
        query = {
            "model_id": model_id,
            "cluster_id": cluster_id,
            "calibration_id": calibration_id,
            "strategy_id": strategy_id,
            "state": state,
        }
        return cast(
            Iterator[documents.Search],
            self._at.pages("/v1/searches", {**query, **window(limit, created_after, created_before)}),
        )

    def strategies(
        self,
        *,
        model_id: str | None = None,
        cluster_id: str | None = None,
        calibration_id: str | None = None,
        searcher: str | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.Strategy]:
        """Every stored strategy in brief, newest first."""
        query = {"model_id": model_id, "cluster_id": cluster_id, "calibration_id": calibration_id, "searcher": searcher}
        return cast(
            Iterator[documents.Strategy],
            self._at.pages("/v1/strategies", {**query, **window(limit, created_after, created_before)}),
        )

    def analyses(
        self,
        *,
        strategy_id: str | None = None,
        kind: Literal["why", "what-if"] | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.AnalysisBrief]:
        """Every analysis in brief, newest first."""
        query = {"strategy_id": strategy_id, "kind": kind}
        return cast(
            Iterator[documents.AnalysisBrief],
            self._at.pages("/v1/analyses", {**query, **window(limit, created_after, created_before)}),
        )

    def trials(
        self,
        *,
        strategy_id: str | None = None,
        baseline: str | None = None,
        state: JobState | None = None,
        label: str | None = None,
        passed: bool | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.TrialBrief]:
        """Every trial in brief, newest first."""
        query = {"strategy_id": strategy_id, "baseline": baseline, "state": state, "label": label, "passed": passed}
        return cast(
            Iterator[documents.TrialBrief],
            self._at.pages("/v1/trials", {**query, **window(limit, created_after, created_before)}),
        )

    def artifacts(
        self,
        *,
        job_id: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[documents.Artifact]:
        """Every file that trials and calibrations have stored, newest first."""
        query = {"job_id": job_id, "name": name}
        return cast(
            Iterator[documents.Artifact],
            self._at.pages("/v1/artifacts", {**query, **window(limit, created_after, created_before)}),
        )
