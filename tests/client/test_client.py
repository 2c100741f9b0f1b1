"""The client against the real service on loopback, and against services that misbehave."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from autosbp.client import (
    KEY_VARIABLE,
    Client,
    ConflictError,
    Job,
    LostAnswerError,
    NotFoundError,
    NotModifiedError,
    UnreachableError,
    Version,
    error_of,
)
from autosbp.cluster.spec import load_cluster
from autosbp.errors import (
    AutosbpError,
    CalibrationError,
    InfeasibleError,
    InputError,
    ServiceError,
    TrialError,
    UnsupportedError,
)
from autosbp.service.problem_details import problem_of
from tests.service import documents, onnx_files
from tests.service.server import Server

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("service")) as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def test_a_model_a_cluster_and_a_calibration_become_a_strategy(client: Client) -> None:
    model = client.post_model(documents.graph())
    cluster = client.post_cluster("local:2x2")
    assert cluster == client.post_cluster(load_cluster("local:2x2")) == client.post_cluster(documents.cluster())
    calibration = client.post_calibration(documents.calibration())
    assert client.get_calibration(calibration) == documents.calibration()
    assert client.newest_calibration(calibration) == calibration
    assert [entry["id"] for entry in client.calibrations(root_id=calibration)] == [calibration]
    assert list(client.calibrations(cluster_id="clu-none")) == []

    seen: list[Job] = []
    job = client.search(model, cluster, calibration, documents.OPTIONS)
    done = client.wait(job, timeout_s=60, on_progress=seen.append)
    assert (done.state, done.is_final, seen[-1]) == ("succeeded", True, done)
    strategy = client.get_strategy(done.result["strategy_id"])
    assert strategy["provenance"] and strategy["baselines"]
    listed = list(client.strategies(model_id=model, cluster_id=cluster))
    assert [entry["id"] for entry in listed] == [strategy["plan_id"]]
    assert list(client.strategies(model_id="mod-none")) == []


def test_a_model_is_posted_as_a_name_of_the_zoo_or_as_a_configuration(client: Client) -> None:
    assert client.post_model(zoo=documents.ZOO).startswith("mod-")
    with pytest.raises(InputError, match="model_type"):
        client.post_model(hf_config={"model_type": "abacus"})


def test_an_onnx_file_is_posted_by_its_path_or_its_content(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "my perceptron.onnx"
    path.write_bytes(onnx_files.good())
    model = client.post_model(onnx=path)
    assert client.get_model(model)["name"] == "my-perceptron"
    assert model == client.post_model(onnx=onnx_files.good(), name="my-perceptron")
    assert client.get_model(client.post_model(onnx=onnx_files.good()))["name"] == "perceptron"
    for bad in onnx_files.refused():
        path.write_bytes(bad.content)
        with pytest.raises(InputError, match=re.escape(bad.words)) as refused:
            client.post_model(onnx=path)
        assert refused.value.field == bad.field, bad.name
    with pytest.raises(InputError, match="fixed sizes for all dims except the batch"):
        client.post_model(onnx=onnx_files.of_any_width())
    with pytest.raises(InputError, match="readable file"):
        client.post_model(onnx=tmp_path / "none.onnx")


def test_errors_come_back_as_the_library_raises_them(client: Client) -> None:
    with pytest.raises(InputError) as refused:
        client.post_cluster({**documents.cluster(), "levels": []})
    assert refused.value.field == "levels"
    model, cluster = client.post_model(documents.graph()), client.post_cluster("local:2x2")
    with pytest.raises(InfeasibleError) as infeasible:
        client.search(model, cluster, options={**documents.OPTIONS, "memory_limit_bytes": 1})
    assert infeasible.value.limit == 1
    limit = int(infeasible.value.needed or 0)  # the parameters fit, their activations do not
    job = client.search(model, cluster, options={**documents.OPTIONS, "memory_limit_bytes": limit})
    with pytest.raises(InfeasibleError) as infeasible:
        client.wait(job)
    assert infeasible.value.limit == limit
    with pytest.raises(InputError) as unknown:
        client.trial("plan-none")
    assert unknown.value.field == "strategy_id"
    with pytest.raises(ServiceError, match="404"):
        client.get_trial("tri-none")
    with pytest.raises(ServiceError, match="no job"):
        client.cancel("job-none")


def test_a_calibration_can_be_cancelled(client: Client) -> None:
    job = client.calibrate(client.post_cluster("local:2"))
    client.cancel(job.id)
    with pytest.raises(ServiceError, match="was cancelled"):
        client.wait(job, timeout_s=60)


def test_exactly_one_form_of_model_is_given(client: Client) -> None:
    with pytest.raises(InputError, match="exactly one"):
        client.post_model()
    with pytest.raises(InputError, match="exactly one"):
        client.post_model(documents.graph(), zoo="gpt2")
    with pytest.raises(InputError, match="name applies only to onnx"):
        client.post_model(zoo="gpt2", name="mine")


def test_a_number_that_json_cannot_hold_is_an_input_error(client: Client) -> None:
    with pytest.raises(InputError, match="finite"):
        client.post_cluster({"name": float("nan")})


@pytest.mark.parametrize(
    "error",
    [
        InputError("a.b", 3, "expected a string"),
        InfeasibleError("memory_limit_bytes", 1.0, 2.0),
        InfeasibleError("memory_limit_bytes", 1.0, None, "no assignment fits (proved)"),
        InfeasibleError("pins", "a=B, b=S0", None, "they must go together", ("pins.a=B", "pins.b=S0")),
        InfeasibleError("memory_limit_bytes", 1.0, 2.0, "", ("memory_limit_bytes=1",)),
        UnsupportedError("op x"),
        CalibrationError("rank 1"),
        TrialError("rank 2"),
    ],
)
def test_every_error_round_trips_through_problem_details(error: AutosbpError) -> None:
    back = error_of(problem_of(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1"])
def test_an_unreachable_service_raises_a_service_error(url: str) -> None:
    with Client(url) as client, pytest.raises(ServiceError, match="cannot reach the service"):
        client.post_cluster("local:2")


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://x:y"])
def test_a_bad_address_is_an_error_of_the_tree(url: str) -> None:
    with pytest.raises(AutosbpError), Client(url) as client:
        client.post_cluster("local:2")


def answering(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://test", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize("text", ["<html>", "[]", "", "3"])
@pytest.mark.parametrize("status", [200, 502])
def test_an_answer_that_is_no_json_object_is_a_service_error(text: str, status: int) -> None:
    with answering(lambda _: httpx.Response(status, text=text)) as client, pytest.raises(ServiceError):
        client.post_cluster("local:2")


def job(state: str) -> dict[str, Any]:
    names = ("resource", "progress", "problem", "result")
    return {"id": "job-1", "kind": "search", "state": state, "message": "", "figures": {}, **dict.fromkeys(names)}


def test_a_job_that_takes_too_long_is_a_service_error() -> None:
    with (
        answering(lambda _: httpx.Response(200, json=job("running"))) as client,
        pytest.raises(ServiceError, match="still running after 0.2 s"),
    ):
        client.wait(client.get_job("job-1"), timeout_s=0.2)


def test_waiting_outlasts_a_short_silence_of_the_service() -> None:
    answers = iter([None, None, job("running"), None, job("succeeded")])

    def answer(request: httpx.Request) -> httpx.Response:
        if (document := next(answers)) is None:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json=document)

    with answering(answer) as client:
        assert client.wait(Job.from_dict(job("queued"))).state == "succeeded"


def refusal(status: int, name: str, **headers: str) -> httpx.Response:
    document = {"type": f"urn:autosbp:problem:{name}", "title": "No", "status": status, "detail": "not now"}
    return httpx.Response(status, json=document, headers=headers)


NOT_NOW = {
    "429": lambda: refusal(429, "too-many-requests", **{"retry-after": "0"}),
    "502": lambda: httpx.Response(502, text="<html>Bad Gateway</html>", headers={"retry-after": "0"}),
    "503": lambda: refusal(503, "storage-full", **{"retry-after": "0"}),
    "504": lambda: httpx.Response(504, json={"message": "upstream"}, headers={"retry-after": "0"}),
    "500 of a proxy": lambda: httpx.Response(500, text="oops", headers={"retry-after": "0"}),
}


@pytest.mark.parametrize("name", NOT_NOW)
def test_waiting_continues_after_503_and_429(name: str) -> None:
    answers = iter([NOT_NOW[name](), httpx.Response(200, json=job("running")), NOT_NOW[name](), None])
    with answering(lambda _: next(answers) or httpx.Response(200, json=job("succeeded"))) as client:
        assert client.wait(Job.from_dict(job("queued"))).state == "succeeded"


@pytest.mark.parametrize("name", NOT_NOW)
def test_long_unavailability_ends_the_wait_and_failures_end_it_immediately(name: str) -> None:
    asked = []
    with answering(lambda request: asked.append(request) or NOT_NOW[name]()) as client:
        begun_s = time.monotonic()
        with pytest.raises(UnreachableError):
            client.wait(Job.from_dict(job("queued")), patience_s=0.3)
        assert time.monotonic() - begun_s >= 0.3 and len(asked) > 1
    with answering(lambda _: refusal(500, "internal")) as client, pytest.raises(ServiceError) as failed:
        client.wait(Job.from_dict(job("queued")))
    assert not isinstance(failed.value, UnreachableError)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_wait_honors_retry_after(form: str) -> None:
    asked_s: list[float] = []

    def answer(_: httpx.Request) -> httpx.Response:
        asked_s.append(time.monotonic())
        if len(asked_s) > 1:
            return httpx.Response(200, json=job("succeeded"))
        moment = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        return refusal(429, "too-many-requests", **{"retry-after": "1" if form == "seconds" else moment})

    with answering(answer) as client:
        client.wait(Job.from_dict(job("queued")))
    assert 0.9 < asked_s[1] - asked_s[0] < 3.0


def test_a_submission_that_a_gateway_answers_for_is_sent_again_under_the_callers_key() -> None:
    keys: list[str] = []
    answers = iter([NOT_NOW["502"], NOT_NOW["429"], lambda: httpx.Response(202, json=job("queued"))])

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        return next(answers)()

    with answering(answer) as client:
        assert client.trial("plan-1", idempotency_key="mine").state == "queued"
    assert keys == ["mine"] * 3
    with answering(lambda _: NOT_NOW["502"]()) as client, pytest.raises(LostAnswerError):
        client.trial("plan-1")


def test_a_resource_is_read_again_only_if_it_has_changed(client: Client) -> None:
    model, version = client.post_model(documents.graph()), Version()
    assert client.get_model(model, version=version)["id"] == model and version.etag
    for read in (client.get_model, client.get_graph):
        seen = Version()
        read(model, version=seen)
        with pytest.raises(NotModifiedError):
            read(model, version=seen)


def test_changes_apply_only_to_the_given_etag(client: Client) -> None:
    job, version = client.calibrate(client.post_cluster("local:2")), Version()
    client.get_job(job.id, version=version)
    with pytest.raises(ServiceError, match="412"):
        client.cancel(job.id, version=Version('"job-1.0"'))
    client.cancel(job.id)
    with pytest.raises(ServiceError, match="412|409"):
        client.cancel(job.id, version=version)
    model, version = client.post_model({**documents.graph(), "name": "brief"}), Version()
    client.get_model(model, version=version)
    with pytest.raises(ServiceError, match="412"):
        client.delete_model(model, version=Version('"mod-other"'))
    client.delete_model(model, version=version)


def test_filters_of_lists_are_those_of_the_interface(url: str) -> None:
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    for path, methods in paths.items():
        name = {"keys": "api_keys"}.get(path.removeprefix("/v1/"), path.removeprefix("/v1/"))
        if "limit" in {each["name"] for each in methods.get("get", {}).get("parameters", ())}:
            there = {each["name"] for each in methods["get"]["parameters"]} - {"cursor"}
            assert set(inspect.signature(getattr(Client, name)).parameters) - {"self"} == there, path


def test_every_route_of_the_service_has_a_method(url: str) -> None:
    seen: set[tuple[str, str]] = set()

    class Recording(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            seen.add((request.method, request.url.path))
            return super().handle_request(request)

    with Client(url, transport=Recording()) as client:
        model, cluster = client.post_model(documents.graph()), client.post_cluster("local:2x2")
        calibration = client.post_calibration(documents.calibration())
        client.cancel(client.calibrate(client.post_cluster("local:3")).id)
        with pytest.raises(InputError, match="model_type"):
            client.post_model(hf_config={"model_type": "abacus"})
        job = client.search(model, cluster, calibration, documents.OPTIONS, num_points=2)
        *_, done = client.follow(job.id)
        assert done == client.get_job(job.id) and done.state == "succeeded"
        search = client.get_search(done.result["search_id"])
        strategy, other = search["front"][0], search["front"][-1]
        begun = client.wait(client.search(model, cluster, calibration, documents.OPTIONS, start_id=other))
        assert client.get_search(begun.result["search_id"])["start_id"] == other
        for read in (client.get_tuning, client.tuning_charts):  # tests/service/test_tuning.py tunes
            with pytest.raises(NotFoundError, match="no search by trials"):
                read(begun.result["search_id"])
        assert client.get_cluster(cluster)["name"] == "local:2x2" and client.get_model(model)["name"] == "mlp"
        assert client.get_graph(model)["name"] == "mlp" and client.get_calibration(calibration)
        assert client.diff(strategy, other)["a"] == client.get_strategy(strategy)["plan_id"]
        assert client.export(strategy, "dtensor")
        why = client.wait(client.why(strategy, "*", most=2))
        assert client.get_analysis(why.result["analysis_id"])["result"]["ops"]
        asked = client.cancel(client.what_if(strategy).id)
        trial = client.trial(strategy)
        client.cancel(trial.id)
        trial_id = str(trial.resource).rpartition("/")[2]
        assert client.get_trial(trial_id)["id"] == trial_id and client.trial_log(trial_id) == ""
        with pytest.raises(ConflictError, match="can be evaluated"):
            client.judge(trial_id, max_step_time_s=1.0)
        assert list(client.artifacts(job_id=trial.id)) == []
        for ask in (client.get_artifact, client.artifact_content, client.delete_artifact):
            with pytest.raises(NotFoundError, match="no artifact"):
                ask("art-none")
        lonely = client.post_model({**documents.graph(), "name": "lonely"})
        client.delete_model(lonely)
        assert lonely not in [each["id"] for each in client.models(name="lonely")]
        for listing in (client.clusters, client.calibrations, client.searches, client.strategies, client.analyses):
            assert list(listing(limit=1)), listing
        assert list(client.trials(strategy_id=strategy)) and list(client.jobs(kind="trial"))
        assert client.health()["status"] == client.ready()["status"] == "ok" and client.metrics()
        assert [[*client.follow(each.id)][-1].state for each in (asked, trial)] == ["cancelled", "cancelled"]
        client.delete_trial(trial_id)
        client.delete_analysis(why.result["analysis_id"])
        client.delete_job(begun.id, cascade=True)
        client.delete_search(done.result["search_id"])
        client.delete_strategy(strategy, cascade=True)
        client.delete_calibration(calibration, cascade=True)
        client.delete_cluster(cluster, cascade=True)
        key = client.make_key("test", ["admin"])
        with Client(url, key=key["secret"], transport=Recording()) as keyed, pytest.raises(ServiceError, match="401"):
            assert [each["id"] for each in keyed.api_keys()] == [key["id"]] and list(keyed.audit())
            newer = keyed.rotate_key(key["id"])
            keyed.revoke_key(newer["id"])
            keyed.revoke_key(key["id"])
            keyed.health()
            list(keyed.api_keys())
    shapes = {
        (method.upper(), re.sub(r"{\w+}", "[^/:]+", path))
        for path, methods in httpx.get(f"{url}/openapi.json").json()["paths"].items()
        for method in methods
    }
    unused = {shape for shape in shapes if not any(shape[0] == m and re.fullmatch(shape[1], p) for m, p in seen)}
    assert unused == set()


def test_a_post_whose_answer_was_lost_is_sent_again_under_the_same_key() -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx.ReadError("reset", request=request)
        if len(keys) == 2:
            document = {"type": "urn:autosbp:problem:idempotency-in-progress", "status": 409, "detail": "wait"}
            return httpx.Response(409, json=document, headers={"retry-after": "0"})
        return httpx.Response(202, json=job("queued"))

    with answering(answer) as client:
        assert client.search("mod-1", "clu-1").state == "queued"
        assert len(keys) == 3 and len(set(keys)) == 1
        client.search("mod-1", "clu-1")
        assert keys[3] != keys[0]


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "asbp_x")
    with answering(lambda request: httpx.Response(200, json=dict(request.headers))) as client:
        assert client.health()["authorization"] == "Bearer asbp_x"


def test_the_client_needs_neither_the_service_nor_torch() -> None:
    check = "import sys, autosbp.client; assert not {'torch', 'service', 'fastapi'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)
