"""What is stored, and what is asked for: every POST but those of jobs and keys.

Each takes the caller's ``idempotency_key``: the same request under the same key is done once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from autosbp.client import documents
from autosbp.client._base import Version, condition
from autosbp.client._bodies import model_body
from autosbp.client._connection import Document, Job
from autosbp.client._jobs import Jobs
from autosbp.cluster import Cluster
from autosbp.errors import ServiceError


class Submissions(Jobs):
    """Posts models, clusters and calibrations, and queues jobs."""

    def post_model(
        self,
        graph: Mapping[str, Any] | None = None,
        *,
        zoo: str | None = None,
        hf_config: Mapping[str, Any] | None = None,
        seq_len: int | None = None,
        image_size: int | None = None,
        onnx: bytes | Path | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Store a model given in one of four forms, waiting for its capture if one is needed; the model's id.

        ``onnx`` is a file or its content. Its model is called ``name``; by default as the file, or as its content says.
        ``TooLargeError`` where the service takes no file as large: capture it here, and post its graph. A capture that is no
        longer waited for, as after an interruption, is cancelled.
        """
        sizes = {"seq_len": seq_len, "image_size": image_size}
        body = model_body(graph, zoo, hf_config, onnx, sizes=sizes, name=name)
        answer = self._at.post("/v1/models", body, key=idempotency_key)
        if "kind" not in answer:
            return str(answer["id"])
        try:
            return self.wait(Job.from_dict(answer)).result["model_id"]
        except BaseException:
            with suppress(ServiceError):
                self.cancel(answer["id"])
            raise

    def post_cluster(self, cluster: Cluster | Mapping[str, Any] | str, *, idempotency_key: str | None = None) -> str:
        """Store a cluster, a document in the cluster file format, or a preset by its name; the cluster's id."""
        if isinstance(cluster, str):
            cluster = {"preset": cluster}
        body = cluster.to_dict() if isinstance(cluster, Cluster) else cluster
        return str(self._at.post("/v1/clusters", body, key=idempotency_key)["id"])

    def post_calibration(self, document: Mapping[str, Any], *, idempotency_key: str | None = None) -> str:
        """Store a calibration document, and its cluster; the calibration's id."""
        return str(self._at.post("/v1/calibrations", document, key=idempotency_key)["id"])

    def calibrate(
        self,
        cluster_id: str,
        model_ids: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        *,
        point_s: float = 0.25,
        op_s: float = 0.25,
        budget_s: float = 165.0,
        variants: bool = True,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue a calibration of a cluster and of the ops of some models; ``result["calibration_id"]``. ``point_s`` and
        ``op_s`` are the most seconds spent on one size of a collective and on one direction of an op, ``budget_s`` those
        of the whole measurement; ``variants`` are other placements of the same group shapes."""
        body = {
            "cluster_id": cluster_id,
            "model_ids": list(model_ids),
            "options": dict(options or {}),
            "point_s": point_s,
            "op_s": op_s,
            "budget_s": budget_s,
            "variants": variants,
        }
        return Job.from_dict(self._at.post("/v1/calibrations", body, key=idempotency_key))

    def search(
        self,
        model_id: str,
        cluster_id: str,
        calibration_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        num_points: int | None = None,
        start_id: str | None = None,
        fresh: bool = False,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue a search; ``result["strategy_id"]``. With ``num_points``, of the front of step time against memory, whose
        strategies ``get_search`` names; with ``start_id``, begun with a strategy that the service has, which is costed anew.
        An equal search that was answered before is answered at once, unless ``fresh``."""
        body: Document = {"model_id": model_id, "cluster_id": cluster_id, "options": dict(options or {})}
        if calibration_id is not None:
            body["calibration_id"] = calibration_id
        if num_points is not None:
            body["num_points"] = num_points
        if start_id is not None:
            body["start_id"] = start_id
        headers = {"cache-control": "no-cache"} if fresh else None
        return Job.from_dict(self._at.post("/v1/searches", body, headers, key=idempotency_key))

    def why(self, strategy_id: str, op: str, *, most: int = 12, idempotency_key: str | None = None) -> Job:
        """Ask what other layouts of an op would cost; ``result["analysis_id"]``."""
        path, body = f"/v1/strategies/{strategy_id}/why", {"op": op, "most": most}
        return Job.from_dict(self._at.post(path, body, key=idempotency_key))

    def what_if(self, strategy_id: str, *, factor: float = 2.0, idempotency_key: str | None = None) -> Job:
        """Ask what better hardware would buy; ``result["analysis_id"]``."""
        path, body = f"/v1/strategies/{strategy_id}/what-if", {"factor": factor}
        return Job.from_dict(self._at.post(path, body, key=idempotency_key))

    def trial(
        self,
        strategy_id: str,
        *,
        baseline: str | None = None,
        steps: int = 20,
        warmup: int = 3,
        seed: int = 0,
        label: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue a measured run of a strategy or of one of its baselines; ``result["trial_id"]``, and where the strategy was
        searched with a calibration, ``result["calibration_id"]``: the version of it that its trials have taught. ``label`` is
        what it is run for, such as a branch, by which trials are listed."""
        body: Document = {"strategy_id": strategy_id, "steps": steps, "warmup": warmup, "seed": seed}
        body.update({name: value for name, value in (("baseline", baseline), ("label", label)) if value is not None})
        return Job.from_dict(self._at.post("/v1/trials", body, key=idempotency_key))

    def judge(
        self,
        trial_id: str,
        gates: Sequence[Mapping[str, Any]],
        *,
        version: Version | None = None,
        idempotency_key: str | None = None,
    ) -> documents.Trial:
        """Store what came of a trial's gates: of each its name, limit, value, whether it passed, and a sentence.
        ``ConflictError`` where the trial has not succeeded, or was judged otherwise before."""
        path, body = f"/v1/trials/{trial_id}:judge", {"gates": list(gates)}
        return cast(documents.Trial, self._at.post(path, body, condition(version), key=idempotency_key))
