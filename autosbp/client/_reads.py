"""Reads: every GET of one resource. With ``version``, ``NotModifiedError`` where the caller has what the service has."""

from __future__ import annotations

from typing import Literal

from autosbp.client import documents
from autosbp.client._base import Part, Version, condition
from autosbp.client._connection import Document

Target = Literal["deepspeed", "dtensor", "megatron", "perfetto", "torchtitan"]


class Reads(Part):
    """Resources by their ids; ``NotFoundError`` where there is none."""

    def get_model(self, model_id: str, *, version: Version | None = None) -> documents.Model:
        """A model in brief."""
        found: documents.Model = self._read(f"/v1/models/{model_id}", version)
        return found

    def get_graph(self, model_id: str, *, version: Version | None = None) -> Document:
        """A model's graph document; ``api.load_graph`` reads it."""
        found: Document = self._read(f"/v1/models/{model_id}/graph", version)
        return found

    def delete_model(self, model_id: str, *, version: Version | None = None) -> None:
        """Remove a model that nothing refers to; with ``version``, only if it is still so."""
        self._at.send("DELETE", f"/v1/models/{model_id}", headers=condition(version))

    def get_cluster(self, cluster_id: str, *, version: Version | None = None) -> Document:
        """A cluster document; ``Cluster.from_dict`` reads it."""
        found: Document = self._read(f"/v1/clusters/{cluster_id}", version)["document"]
        return found

    def get_calibration(self, calibration_id: str, *, version: Version | None = None) -> Document:
        """A calibration document; ``Calibration.from_dict`` reads it."""
        found: Document = self._read(f"/v1/calibrations/{calibration_id}", version)["document"]
        return found

    def newest_calibration(self, calibration_id: str) -> str:
        """The id of the last version of a calibration's family; searches use it only where they ask for it."""
        return str(self._at.get(f"/v1/calibrations/{calibration_id}")["newest_id"])

    def get_search(self, search_id: str, *, version: Version | None = None) -> documents.Search:
        """What was asked, and the strategies that were found."""
        found: documents.Search = self._read(f"/v1/searches/{search_id}", version)
        return found

    def get_strategy(self, strategy_id: str, *, version: Version | None = None) -> Document:
        """A whole plan document, with its provenance and baselines; ``Plan.from_dict`` reads it."""
        found: Document = self._read(f"/v1/strategies/{strategy_id}", version)
        return found

    def diff(self, strategy_id: str, other_id: str, *, version: Version | None = None) -> Document:
        """What the second strategy does otherwise."""
        found: Document = self._read(f"/v1/strategies/{strategy_id}/diff/{other_id}", version)
        return found

    def export(
        self,
        strategy_id: str,
        target: Target,
        *,
        baseline: str | None = None,
        version: Version | None = None,
    ) -> dict[str, str]:
        """A strategy as the files of another tool."""
        path = f"/v1/strategies/{strategy_id}/exports/{target}"
        found: documents.Export = self._read(path, version, {"baseline": baseline})
        return found["files"]

    def get_analysis(self, analysis_id: str, *, version: Version | None = None) -> documents.Analysis:
        """A question about a strategy, with its answer in ``result``."""
        found: documents.Analysis = self._read(f"/v1/analyses/{analysis_id}", version)
        return found

    def get_trial(self, trial_id: str, *, version: Version | None = None) -> documents.Trial:
        """A trial: predicted and measured."""
        found: documents.Trial = self._read(f"/v1/trials/{trial_id}", version)
        return found

    def trial_log(self, trial_id: str) -> str:
        """The log of a trial's ranks."""
        return self._at.send("GET", f"/v1/trials/{trial_id}/logs").text

    def get_artifact(self, artifact_id: str, *, version: Version | None = None) -> documents.Artifact:
        """A file that a trial or calibration has left: its name, size and checksum."""
        found: documents.Artifact = self._read(f"/v1/artifacts/{artifact_id}", version)
        return found

    def artifact_content(self, artifact_id: str) -> bytes:
        """What such a file holds."""
        return self._at.send("GET", f"/v1/artifacts/{artifact_id}/content").content
