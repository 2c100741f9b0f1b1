"""A client of the service, for programs and for the command line.

    with Client("http://127.0.0.1:8000") as client:
        model = client.post_model(zoo="gpt2")
        cluster = client.post_cluster("local:2x2")
        job = client.wait(client.search(model, cluster, options={"global_batch": 64}))
        plan = client.get_strategy(job.result["strategy_id"])

Every method raises ``ServiceError`` when the service cannot be reached or refuses; a refusal that names a value comes
back as the same ``InputError`` or ``InfeasibleError`` that the library would have raised here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from autosbp.bodies import model_body
from autosbp.cluster import Cluster
from autosbp.connection import (
    KEY_VARIABLE,
    Connection,
    Document,
    Job,
    NotFoundError,
    TooLargeError,
    UnreachableError,
    error_of,
)
from autosbp.errors import ServiceError

__all__ = [
    "KEY_VARIABLE",
    "Client",
    "Document",
    "Job",
    "NotFoundError",
    "StillRunningError",
    "TooLargeError",
    "UnreachableError",
    "error_of",
]

_FIRST_POLL_S, _LONGEST_POLL_S = 0.05, 1.0
_PATIENCE_S = 30.0


class StillRunningError(ServiceError):
    """A job has not ended in the time that the caller would wait; it goes on."""


class Client:
    """A connection to one service. May be used by several threads; close it or use it as a context manager.

    Args:
        url: address of the service.
        key: API key; by default that in the environment variable AUTOSBP_API_KEY, or none.
        timeout_s: longest wait for one answer.
        transport: another way to send requests, such as an ASGI application's.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        timeout_s: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._at = Connection(url, key, timeout_s, transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._at.close()

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
    ) -> str:
        """Store a model given in one of four forms, waiting for its capture if one is needed; the model's id.

        ``onnx`` is a file or its content. Its model is called ``name``; by default as the file, or as its content says.
        ``TooLargeError`` where the service takes no file as large: capture it here, and post its graph.
        """
        sizes = {"seq_len": seq_len, "image_size": image_size}
        body = model_body(graph, zoo, hf_config, onnx, sizes=sizes, name=name)
        answer = self._at.post("/v1/models", body)
        if "kind" not in answer:
            return str(answer["id"])
        return self.wait(Job.from_dict(answer)).result["model_id"]

    def post_cluster(self, cluster: Cluster | Mapping[str, Any] | str) -> str:
        """Store a cluster, a document in the cluster file format, or a preset by its name; the cluster's id."""
        if isinstance(cluster, str):
            cluster = {"preset": cluster}
        body = cluster.to_dict() if isinstance(cluster, Cluster) else cluster
        return str(self._at.post("/v1/clusters", body)["id"])

    def post_calibration(self, document: Mapping[str, Any]) -> str:
        """Store a calibration document, and its cluster; the calibration's id."""
        return str(self._at.post("/v1/calibrations", document)["id"])

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
        return Job.from_dict(self._at.post("/v1/calibrations", body))

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
        return Job.from_dict(self._at.post("/v1/searches", body, headers))

    def why(self, strategy_id: str, op: str, *, most: int = 12) -> Job:
        """Ask what other layouts of an op would cost; ``result["analysis_id"]``."""
        return Job.from_dict(self._at.post(f"/v1/strategies/{strategy_id}/why", {"op": op, "most": most}))

    def what_if(self, strategy_id: str, *, factor: float = 2.0) -> Job:
        """Ask what better hardware would buy; ``result["analysis_id"]``."""
        return Job.from_dict(self._at.post(f"/v1/strategies/{strategy_id}/what-if", {"factor": factor}))

    def trial(
        self, strategy_id: str, *, baseline: str | None = None, steps: int = 20, warmup: int = 3, seed: int = 0
    ) -> Job:
        """Queue a measured run of a strategy or of one of its baselines; ``result["trial_id"]``, and where the strategy was
        searched with a calibration, ``result["calibration_id"]``: the version of it that its trials have taught."""
        body: Document = {"strategy_id": strategy_id, "steps": steps, "warmup": warmup, "seed": seed}
        if baseline is not None:
            body["baseline"] = baseline
        return Job.from_dict(self._at.post("/v1/trials", body))

    def wait(self, job: Job, timeout_s: float | None = None, on_progress: Callable[[Job], None] | None = None) -> Job:
        """Wait until a job has succeeded; a restart of the service on the way is waited for, too.

        Raises the error that failed the job, ``ServiceError`` if it was cancelled, or ``StillRunningError`` if
        ``timeout_s`` has passed.
        """
        begun_s = answered_s = time.monotonic()
        poll_s = _FIRST_POLL_S
        while not job.is_final:
            if timeout_s is not None and time.monotonic() - begun_s > timeout_s:
                raise StillRunningError(f"job {job.id} is still {job.state} after {timeout_s:g} s")
            time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, _LONGEST_POLL_S)
            try:
                seen, answered_s = self.get_job(job.id), time.monotonic()
            except UnreachableError:
                if time.monotonic() - answered_s > _PATIENCE_S:
                    raise
                continue
            if seen != job and on_progress is not None:
                on_progress(seen)
            job = seen
        if job.problem is not None:
            raise error_of(job.problem)
        if job.state == "cancelled":
            raise ServiceError(f"job {job.id} was cancelled")
        return job

    def follow(self, job_id: str, after: int = 0) -> Iterator[Job]:
        """A job at each of its changes, until it has ended; a connection that breaks is taken up where it broke."""
        answered_s = time.monotonic()
        while True:
            try:
                for revision, job in self._events(job_id, after):
                    after, answered_s = revision, time.monotonic()
                    yield job
                    if job.is_final:
                        return
                if self.get_job(job_id).is_final:
                    return
            except UnreachableError:
                if time.monotonic() - answered_s > _PATIENCE_S:
                    raise
            time.sleep(_FIRST_POLL_S)

    def _events(self, job_id: str, after: int) -> Iterator[tuple[int, Job]]:
        revision = after
        with self._at.stream(f"/v1/jobs/{job_id}/events", {"last-event-id": str(after)}) as response:
            for line in response.iter_lines():
                name, _, text = line.partition(": ")
                if name == "id":
                    revision = int(text)
                elif name == "data":
                    yield revision, Job.from_dict(json.loads(text))

    def cancel(self, job_id: str) -> Job:
        """Ask for the end of a job."""
        return Job.from_dict(self._at.post(f"/v1/jobs/{job_id}:cancel"))

    def get_job(self, job_id: str) -> Job:
        """A job as it is now."""
        return Job.from_dict(self._at.get(f"/v1/jobs/{job_id}"))

    def get_model(self, model_id: str) -> Document:
        """A model in brief."""
        return self._at.get(f"/v1/models/{model_id}")

    def get_graph(self, model_id: str) -> Document:
        """A model's graph document; ``api.load_graph`` reads it."""
        return self._at.get(f"/v1/models/{model_id}/graph")

    def delete_model(self, model_id: str) -> None:
        """Remove a model that nothing refers to."""
        self._at.send("DELETE", f"/v1/models/{model_id}")

    def get_cluster(self, cluster_id: str) -> Document:
        """A cluster document; ``Cluster.from_dict`` reads it."""
        document: Document = self._at.get(f"/v1/clusters/{cluster_id}")["document"]
        return document

    def get_calibration(self, calibration_id: str) -> Document:
        """A calibration document; ``Calibration.from_dict`` reads it."""
        document: Document = self._at.get(f"/v1/calibrations/{calibration_id}")["document"]
        return document

    def newest_calibration(self, calibration_id: str) -> str:
        """The id of the last version of a calibration's family; searches use it only where they ask for it."""
        return str(self._at.get(f"/v1/calibrations/{calibration_id}")["newest_id"])

    def get_search(self, search_id: str) -> Document:
        """What was asked, and the strategies that were found."""
        return self._at.get(f"/v1/searches/{search_id}")

    def get_strategy(self, strategy_id: str) -> Document:
        """A whole plan document, with its provenance and baselines; ``Plan.from_dict`` reads it."""
        return self._at.get(f"/v1/strategies/{strategy_id}")

    def diff(self, strategy_id: str, other_id: str) -> Document:
        """What the second strategy does otherwise."""
        return self._at.get(f"/v1/strategies/{strategy_id}/diff/{other_id}")

    def export(self, strategy_id: str, target: str, *, baseline: str | None = None) -> dict[str, str]:
        """A strategy as the files of another tool."""
        files: dict[str, str] = self._at.get(f"/v1/strategies/{strategy_id}/exports/{target}", {"baseline": baseline})[
            "files"
        ]
        return files

    def get_analysis(self, analysis_id: str) -> Document:
        """A question about a strategy, with its answer in ``result``."""
        return self._at.get(f"/v1/analyses/{analysis_id}")

    def get_trial(self, trial_id: str) -> Document:
        """A trial: predicted and measured."""
        return self._at.get(f"/v1/trials/{trial_id}")

    def trial_log(self, trial_id: str) -> str:
        """The log of a trial's ranks."""
        return self._at.send("GET", f"/v1/trials/{trial_id}/logs").text

    def get_artifact(self, artifact_id: str) -> Document:
        """A file that a trial or calibration has left: its name, size and checksum."""
        return self._at.get(f"/v1/artifacts/{artifact_id}")

    def artifact_content(self, artifact_id: str) -> bytes:
        """What such a file holds."""
        return self._at.send("GET", f"/v1/artifacts/{artifact_id}/content").content

    def models(self, **filters: Any) -> Iterator[Document]:
        """Every stored model in brief, newest first; filters are the query parameters of ``/v1/models``."""
        yield from self._at.pages("/v1/models", filters)

    def clusters(self, **filters: Any) -> Iterator[Document]:
        """Every stored cluster, newest first."""
        yield from self._at.pages("/v1/clusters", filters)

    def calibrations(self, **filters: Any) -> Iterator[Document]:
        """Every stored calibration in brief, newest first: such as those of a ``cluster_id``, or with ``root_id`` the
        versions of one that trials taught."""
        yield from self._at.pages("/v1/calibrations", filters)

    def searches(self, **filters: Any) -> Iterator[Document]:
        """Every search, newest first."""
        yield from self._at.pages("/v1/searches", filters)

    def strategies(self, **filters: Any) -> Iterator[Document]:
        """Every stored strategy in brief, newest first: such as those of a ``model_id`` and a ``cluster_id``."""
        yield from self._at.pages("/v1/strategies", filters)

    def analyses(self, **filters: Any) -> Iterator[Document]:
        """Every analysis in brief, newest first."""
        yield from self._at.pages("/v1/analyses", filters)

    def trials(self, **filters: Any) -> Iterator[Document]:
        """Every trial in brief, newest first."""
        yield from self._at.pages("/v1/trials", filters)

    def artifacts(self, **filters: Any) -> Iterator[Document]:
        """Every file that trials and calibrations have left, newest first: such as those of a ``job_id``."""
        yield from self._at.pages("/v1/artifacts", filters)

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """Every job, newest first: such as those of a ``state`` and a ``kind``."""
        yield from map(Job.from_dict, self._at.pages("/v1/jobs", filters))

    def make_key(self, name: str, scopes: Sequence[str], lifetime_s: float | None = 90 * 86_400.0) -> Document:
        """Make an API key; its text is ``["secret"]``, and is shown this once."""
        return self._at.post("/v1/keys", {"name": name, "scopes": list(scopes), "lifetime_s": lifetime_s})

    def rotate_key(self, key_id: str, grace_s: float = 3600.0) -> Document:
        """Replace an API key; the old one works on for ``grace_s``."""
        return self._at.post(f"/v1/keys/{key_id}:rotate", {"grace_s": grace_s})

    def revoke_key(self, key_id: str) -> Document:
        """End an API key at once."""
        found: Document = self._at.send("DELETE", f"/v1/keys/{key_id}").json()
        return found

    def api_keys(self) -> Iterator[Document]:
        """Every API key of the tenant, without its text."""
        yield from self._at.pages("/v1/keys", {})

    def audit(self, **filters: Any) -> Iterator[Document]:
        """The tenant's audit log, newest first."""
        yield from self._at.pages("/v1/audit", filters)

    def health(self) -> Document:
        """Whether the service's process answers, and its version."""
        return self._at.get("/healthz")

    def ready(self) -> Document:
        """Whether the service can work; ``UnreachableError`` where it cannot."""
        return self._at.get("/readyz")

    def metrics(self) -> str:
        """Numbers in Prometheus' text format."""
        return self._at.send("GET", "/metrics").text
