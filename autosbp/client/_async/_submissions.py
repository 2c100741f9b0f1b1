"""Store resources and queue jobs: every POST except those of jobs and keys.

Each takes an ``idempotency_key``: the service executes a request once per key, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from autosbp.client import documents
from autosbp.client._async._jobs import Jobs
from autosbp.client._bodies import model_body
from autosbp.client._conditional_requests import Version, condition
from autosbp.client._http_messages import Document, Job
from autosbp.errors import ServiceError

if TYPE_CHECKING:
    from autosbp.cluster.spec import Cluster


class Submissions(Jobs):
    """Stores models, clusters and calibrations, and queues jobs."""

    async def post_model(
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
        """Store a model given in one of four forms and return its id, waiting for its capture if it needs one.

        If the wait ends early, for example by an interruption, the capture is cancelled.

        Args:
            graph: graph document.
            zoo: name of a built-in model.
            hf_config: Hugging Face config; ``seq_len`` and ``image_size`` override its sizes.
            onnx: ONNX file or its content.
            name: name of the ONNX model; by default the file's name, or what its content says.

        Raises:
            TooLargeError: the file exceeds the service's limit; capture it locally and post its graph.
        """
        sizes = {"seq_len": seq_len, "image_size": image_size}
        body = model_body(graph, zoo, hf_config, onnx, sizes=sizes, name=name)
        if graph is not None or zoo is not None:
            return str((await self._at.post("/v1/models", body, key=idempotency_key))["id"])
        answer = await self._at.post("/v1/models:capture", body, key=idempotency_key)
        try:
            return (await self.wait(Job.from_dict(answer))).result["model_id"]
        except BaseException:
            with suppress(ServiceError):
                await self.cancel(answer["id"])
            raise

    async def capture(
        self,
        *,
        hf_config: Mapping[str, Any] | None = None,
        seq_len: int | None = None,
        image_size: int | None = None,
        onnx: bytes | Path | None = None,
        name: str | None = None,
        search: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue the capture of a Hugging Face config or an ONNX file; ``result["model_id"]`` is its outcome.

        Args:
            hf_config: Hugging Face config; ``seq_len`` and ``image_size`` override its sizes.
            onnx: ONNX file or its content.
            name: name of the ONNX model.
            search: body of a search without ``model_id``, which the service queues when it stores the model. The result
                then has its ``search_id`` and ``search_job_id``, or ``search_problem`` if the search is refused.
        """
        sizes = {"seq_len": seq_len, "image_size": image_size}
        body = {**model_body(None, None, hf_config, onnx, sizes=sizes, name=name)}
        if search is not None:
            body["search"] = dict(search)
        return Job.from_dict(await self._at.post("/v1/models:capture", body, key=idempotency_key))

    async def post_cluster(
        self, cluster: Cluster | Mapping[str, Any] | str, *, idempotency_key: str | None = None
    ) -> str:
        """Store a cluster and return its id; ``cluster`` may be a cluster file's document or the name of a preset."""
        if isinstance(cluster, str):
            cluster = {"preset": cluster}
        body = cluster if isinstance(cluster, Mapping) else cluster.to_dict()
        return str((await self._at.post("/v1/clusters", body, key=idempotency_key))["id"])

    async def post_calibration(self, document: Mapping[str, Any], *, idempotency_key: str | None = None) -> str:
        """Store a calibration document and its cluster; returns the calibration's id."""
        return str((await self._at.post("/v1/calibrations", document, key=idempotency_key))["id"])

    async def calibrate(
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
        """Queue a calibration of a cluster and of some models' ops; ``result["calibration_id"]`` is its outcome.

        Args:
            point_s: maximum seconds for one message size of one collective.
            op_s: maximum seconds for one direction (forward or backward) of one op.
            budget_s: maximum seconds for the whole measurement.
            variants: also measure other placements of the same group shapes.
        """
        body = {
            "cluster_id": cluster_id,
            "model_ids": list(model_ids),
            "options": dict(options or {}),
            "point_s": point_s,
            "op_s": op_s,
            "budget_s": budget_s,
            "variants": variants,
        }
        return Job.from_dict(await self._at.post("/v1/calibrations:measure", body, key=idempotency_key))

    async def search(
        self,
        model_id: str,
        cluster_id: str,
        calibration_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        num_points: int | None = None,
        start_id: str | None = None,
        fresh: bool = False,
        tuning: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue a search; ``result["strategy_id"]`` is its outcome.

        Args:
            num_points: search the Pareto front of step time and memory; ``get_search`` lists its strategies.
            start_id: a stored strategy to start from, with its cost recomputed.
            fresh: search anew even if the service has the answer to an equal search, which it otherwise returns at
                once.
            tuning: budgets of a search by trials on real ranks, such as ``{"trials": 100}``; ``get_tuning`` reads what
                they show, also meanwhile.
        """
        body: Document = {"model_id": model_id, "cluster_id": cluster_id, "options": dict(options or {})}
        if calibration_id is not None:
            body["calibration_id"] = calibration_id
        if num_points is not None:
            body["num_points"] = num_points
        if start_id is not None:
            body["start_id"] = start_id
        if tuning is not None:
            body |= {"mode": "tune", "tuning": dict(tuning)}
        headers = {"cache-control": "no-cache"} if fresh else None
        return Job.from_dict(await self._at.post("/v1/searches", body, headers, key=idempotency_key))

    async def why(self, strategy_id: str, op: str, *, most: int = 12, idempotency_key: str | None = None) -> Job:
        """Ask what other layouts of an op would cost; ``result["analysis_id"]`` is the answer's id."""
        path, body = f"/v1/strategies/{strategy_id}/why", {"op": op, "most": most}
        return Job.from_dict(await self._at.post(path, body, key=idempotency_key))

    async def what_if(self, strategy_id: str, *, factor: float = 2.0, idempotency_key: str | None = None) -> Job:
        """Ask what better hardware would save; ``result["analysis_id"]`` is the answer's id."""
        path, body = f"/v1/strategies/{strategy_id}/what-if", {"factor": factor}
        return Job.from_dict(await self._at.post(path, body, key=idempotency_key))

    async def trial(
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
        """Queue a measured run of a strategy or one of its baselines; ``result["trial_id"]`` is its outcome.

        If the strategy was searched with a calibration, ``result["calibration_id"]`` is the version of it corrected by
        its trials. ``label`` says what the trial is for, such as a branch; trials can be listed by it.
        """
        body: Document = {"strategy_id": strategy_id, "steps": steps, "warmup": warmup, "seed": seed}
        body.update({name: value for name, value in (("baseline", baseline), ("label", label)) if value is not None})
        return Job.from_dict(await self._at.post("/v1/trials", body, key=idempotency_key))

    async def judge(
        self,
        trial_id: str,
        *,
        max_step_time_s: float | None = None,
        max_loss_difference: float | None = None,
        max_regression: float | None = None,
        max_prediction_error: float | None = None,
        baseline_label: str | None = None,
        version: Version | None = None,
        idempotency_key: str | None = None,
    ) -> documents.Trial:
        """Have the service check a trial against limits; the trial's ``passed`` and ``gates`` hold the outcome.

        A regression is measured against trials with ``baseline_label`` that passed.

        Raises:
            ConflictError: the trial has not succeeded, or was already judged with other limits.
        """
        limits = {
            "max_step_time_s": max_step_time_s,
            "max_loss_difference": max_loss_difference,
            "max_regression": max_regression,
            "max_prediction_error": max_prediction_error,
            "baseline_label": baseline_label,
        }
        path, body = f"/v1/trials/{trial_id}:judge", {name: each for name, each in limits.items() if each is not None}
        return cast(documents.Trial, await self._at.post(path, body, condition(version), key=idempotency_key))
