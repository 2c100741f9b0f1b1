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

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from autosbp.cluster import Cluster
from autosbp.errors import (
    AutosbpError,
    CalibrationError,
    InfeasibleError,
    InputError,
    ServiceError,
    TrialError,
    UnsupportedError,
)

Document = dict[str, Any]
_FINAL = ("succeeded", "failed", "cancelled")
_FIRST_POLL_S, _LONGEST_POLL_S = 0.05, 1.0
_PATIENCE_S = 30.0
_BY_DETAIL: Mapping[str, type[AutosbpError]] = {
    "unsupported": UnsupportedError,
    "calibration-failed": CalibrationError,
    "trial-failed": TrialError,
}


class UnreachableError(ServiceError):
    """The service did not answer at all."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the service as it was when it was asked for; the fields are those of ``/v1/jobs``."""

    id: str
    kind: str
    state: str
    resource: str | None
    progress: float | None
    message: str
    figures: Mapping[str, float]
    problem: Mapping[str, Any] | None
    result: Mapping[str, str]

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state in _FINAL

    @staticmethod
    def from_dict(data: Document) -> Job:
        """Read the service's answer, ignoring members that a newer service may add."""
        return Job(**{key: data[key] for key in Job.__slots__ if key != "result"}, result=data["result"] or {})


class Client:
    """A connection to one service. May be used by several threads; close it or use it as a context manager.

    Args:
        url: address of the service.
        timeout_s: longest wait for one answer.
        transport: another way to send requests, such as an ASGI application's.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        timeout_s: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = url
        try:
            self._http = httpx.Client(base_url=url, timeout=httpx.Timeout(timeout_s, connect=5.0), transport=transport)
        except (httpx.InvalidURL, ValueError) as error:
            raise InputError("url", url, f"an http:// or https:// address is expected ({error})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def post_model(
        self,
        graph: Mapping[str, Any] | None = None,
        *,
        zoo: str | None = None,
        hf_config: Mapping[str, Any] | None = None,
        seq_len: int | None = None,
        image_size: int | None = None,
    ) -> str:
        """Store a model given in one of three forms, waiting for its capture if one is needed; the model's id."""
        given = [form for form in (graph, zoo, hf_config) if form is not None]
        if len(given) != 1:
            raise InputError("model", len(given), "exactly one of graph, zoo and hf_config is expected")
        body: Mapping[str, Any] = graph or {"zoo": zoo}
        if hf_config is not None:
            sizes = {"seq_len": seq_len, "image_size": image_size}
            body = {"hf_config": hf_config, **{key: size for key, size in sizes.items() if size is not None}}
        answer = self._post("/v1/models", body)
        if "kind" not in answer:
            return str(answer["id"])
        return self.wait(Job.from_dict(answer)).result["model_id"]

    def post_cluster(self, cluster: Cluster | Mapping[str, Any] | str) -> str:
        """Store a cluster, a document in the cluster file format, or a preset by its name; the cluster's id."""
        if isinstance(cluster, str):
            cluster = {"preset": cluster}
        body = cluster.to_dict() if isinstance(cluster, Cluster) else cluster
        return str(self._post("/v1/clusters", body)["id"])

    def post_calibration(self, document: Mapping[str, Any]) -> str:
        """Store a calibration document, and its cluster; the calibration's id."""
        return str(self._post("/v1/calibrations", document)["id"])

    def calibrate(
        self,
        cluster_id: str,
        model_ids: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        *,
        point_s: float = 0.25,
        op_s: float = 0.25,
        budget_s: float = 130.0,
        variants: bool = True,
    ) -> Job:
        """Queue a calibration of a cluster and of the ops of some models; ``result["calibration_id"]``. ``point_s`` and
        ``op_s`` are the seconds spent on one size of a collective and on one direction of an op, ``budget_s`` those of all
        collectives; ``variants`` are other placements of the same group shapes."""
        body = {
            "cluster_id": cluster_id,
            "model_ids": list(model_ids),
            "options": dict(options or {}),
            "point_s": point_s,
            "op_s": op_s,
            "budget_s": budget_s,
            "variants": variants,
        }
        return Job.from_dict(self._post("/v1/calibrations", body))

    def search(
        self,
        model_id: str,
        cluster_id: str,
        calibration_id: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Job:
        """Queue a search; ``result["strategy_id"]``."""
        body: Document = {"model_id": model_id, "cluster_id": cluster_id, "options": dict(options or {})}
        if calibration_id is not None:
            body["calibration_id"] = calibration_id
        return Job.from_dict(self._post("/v1/searches", body))

    def trial(
        self, strategy_id: str, *, baseline: str | None = None, steps: int = 20, warmup: int = 3, seed: int = 0
    ) -> Job:
        """Queue a measured run of a strategy or of one of its baselines; ``result["trial_id"]``, and where the strategy was
        searched with a calibration, ``result["calibration_id"]``: the version of it that its trials have taught."""
        body: Document = {"strategy_id": strategy_id, "steps": steps, "warmup": warmup, "seed": seed}
        if baseline is not None:
            body["baseline"] = baseline
        return Job.from_dict(self._post("/v1/trials", body))

    def wait(self, job: Job, timeout_s: float | None = None, on_progress: Callable[[Job], None] | None = None) -> Job:
        """Wait until a job has succeeded; a restart of the service on the way is waited for, too.

        Raises the error that failed the job, or ``ServiceError`` if it was cancelled or ``timeout_s`` has passed.
        """
        begun_s = answered_s = time.monotonic()
        poll_s = _FIRST_POLL_S
        while not job.is_final:
            if timeout_s is not None and time.monotonic() - begun_s > timeout_s:
                raise ServiceError(f"job {job.id} is still {job.state} after {timeout_s:g} s")
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

    def cancel(self, job_id: str) -> Job:
        """Ask for the end of a job."""
        return Job.from_dict(self._post(f"/v1/jobs/{job_id}:cancel", None))

    def get_job(self, job_id: str) -> Job:
        """A job as it is now."""
        return Job.from_dict(self._get(f"/v1/jobs/{job_id}"))

    def get_strategy(self, strategy_id: str) -> Document:
        """A whole plan document, with its provenance and baselines; ``Plan.from_dict`` reads it."""
        return self._get(f"/v1/strategies/{strategy_id}")

    def get_calibration(self, calibration_id: str) -> Document:
        """A calibration document; ``Calibration.from_dict`` reads it."""
        document: Document = self._get(f"/v1/calibrations/{calibration_id}")["document"]
        return document

    def get_trial(self, trial_id: str) -> Document:
        """A trial: predicted and measured."""
        return self._get(f"/v1/trials/{trial_id}")

    def trial_log(self, trial_id: str) -> str:
        """The log of a trial's ranks."""
        return self._send("GET", f"/v1/trials/{trial_id}/logs").text

    def strategies(self, *, model_id: str | None = None, cluster_id: str | None = None) -> Iterator[Document]:
        """Every stored strategy in brief, newest first."""
        yield from self._pages("/v1/strategies", model_id=model_id, cluster_id=cluster_id)

    def calibrations(self, *, cluster_id: str | None = None, root_id: str | None = None) -> Iterator[Document]:
        """Every stored calibration in brief, newest first: of a cluster, or the versions of one that trials taught."""
        yield from self._pages("/v1/calibrations", cluster_id=cluster_id, root_id=root_id)

    def newest_calibration(self, calibration_id: str) -> str:
        """The id of the last version of a calibration's family; searches use it only where they ask for it."""
        return str(self._get(f"/v1/calibrations/{calibration_id}")["newest_id"])

    def _pages(self, path: str, **filters: str | None) -> Iterator[Document]:
        query = {key: value for key, value in filters.items() if value is not None}
        while True:
            answer = self._get(path, query)
            yield from answer["items"]
            if answer["next_cursor"] is None:
                return
            query["cursor"] = answer["next_cursor"]

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        return _document(self._send("GET", path, query=query))

    def _post(self, path: str, body: object) -> Document:
        return _document(self._send("POST", path, body=body))

    def _send(
        self, method: str, path: str, *, body: object = None, query: Mapping[str, str] | None = None
    ) -> httpx.Response:
        try:
            response = self._http.request(method, path, json=body, params=query)
        except httpx.TransportError as error:
            raise UnreachableError(f"the service at {self._url} cannot be reached: {error}") from None
        except httpx.HTTPError as error:
            raise ServiceError(f"the service at {self._url}: {error}") from None
        except ValueError as error:
            raise InputError("body", type(body).__name__, f"finite JSON is expected ({error})") from None
        if response.is_error:
            raise error_of(_document(response))
        return response


def error_of(problem: Mapping[str, Any]) -> AutosbpError:
    """The error that a problem document stands for."""
    name = str(problem.get("type", "")).rpartition(":")[2]
    detail = str(problem.get("detail") or problem.get("title") or "the service failed")
    if name == "invalid-input":
        return InputError(str(problem.get("field")), problem.get("value"), str(problem.get("limit")))
    if name == "infeasible":
        return _infeasible(problem, detail)
    if name in _BY_DETAIL:
        return _BY_DETAIL[name](detail)
    return ServiceError(f"{problem.get('title')} ({problem.get('status')}): {detail}")


def _infeasible(problem: Mapping[str, Any], detail: str) -> InfeasibleError:
    constraint, limit, needed = str(problem.get("constraint")), problem.get("limit"), problem.get("needed")
    bound = float("inf") if limit is None else limit if isinstance(limit, str) else float(limit)
    least = None if needed is None else float(needed)
    conflict = tuple(map(str, problem.get("conflict") or ()))
    plain = str(InfeasibleError(constraint, bound, least))
    behind = str(InfeasibleError("", "", None, "", conflict)).removeprefix(str(InfeasibleError("", "", None)))
    own = detail.removeprefix(plain).removesuffix(behind).removeprefix(". ")
    return InfeasibleError(constraint, bound, least, own, conflict)


def _document(response: httpx.Response) -> Document:
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        where = f"{response.request.method} {response.request.url}"
        raise ServiceError(f"{where} was answered with {response.status_code} and no JSON object")
    return document
