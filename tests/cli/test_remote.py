"""``serve``, and the commands that let a service do the work."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest

from autosbp.cli._remote import id_of
from autosbp.client import Client, Job
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.report.trial_gates import GateLimits, check_gates
from tests.cli.conftest import Run
from tests.cli.processes import Started, autosbp
from tests.cli.test_trial import RESULT
from tests.earlier_plans import earlier_plan

pytestmark = pytest.mark.integration

_READY = re.compile(r"ready at (http://\S+)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of ``autosbp serve``, ended as users end it."""
    folder = tmp_path_factory.mktemp("serve")
    with Started("serve", "--port", 0, "--data-dir", folder / "data", cwd=folder) as service:
        line = service.wait_for(lambda line: _READY.search(line) is not None)
        found = _READY.search(line)
        assert found is not None
        yield found[1]
        code, out = service.end(signal.SIGINT)
    assert (code in (0, 130), out) == (True, "")
    assert (folder / "data" / "autosbp.db").exists()


def test_workers_end_at_a_signal_and_only_one_works_on_sqlite(run: Run, tmp_path: Path) -> None:
    options = ("--data-dir", tmp_path / "data")

    def health() -> tuple[int, str]:
        done = run("work", "--check", *options)
        return done.exit_code, done.stderr

    none = (1, f"no worker of {tmp_path / 'data'} is running on this machine\n")
    assert health() == none
    with Started("work", *options, cwd=tmp_path) as worker:
        worker.wait_for(lambda line: "worker is ready" in line)
        assert health() == (0, "")
        other = autosbp("work", *options)
        assert (other.returncode, "another service is using" in other.stderr) == (5, True), other.stderr
        assert worker.end(signal.SIGTERM) == (0, "")
    assert health() == none
    served = autosbp("serve", "--no-worker", "--port", 0, *options)
    assert (served.returncode, "SQLite supports only one process" in served.stderr) == (2, True), served.stderr


def test_a_terminated_service_reports_no_failure(tmp_path: Path) -> None:
    with Started("serve", "--port", 0, "--data-dir", tmp_path / "data", cwd=tmp_path) as service:
        service.wait_for(lambda line: _READY.search(line) is not None)
        assert service.end(signal.SIGTERM) == (143, "")
    assert not [line for line in service.lines if line.startswith("error")]


def test_a_plan_of_the_service_is_the_local_one(run: Run, folder: Path, server: str, tmp_path: Path) -> None:
    done = run(
        *("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64),
        *("--server", server, "-o", tmp_path / "plan.json", "--json"),
    )
    assert done.exit_code == 0, done.stderr
    wanted = json.loads((folder / "plan.json").read_text())
    assert json.loads((tmp_path / "plan.json").read_text()) == wanted
    assert json.loads(done.stdout)["plan_id"] == wanted["plan_id"]


def test_a_service_begins_with_a_plan_that_it_has_as_the_command_does_here(
    run: Run, folder: Path, server: str, tmp_path: Path
) -> None:
    ask = ("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch")
    first = json.loads(run(*ask, 64, "--server", server, "--json").stdout)["plan_id"]
    start = ("--start", folder / "plan.json")
    here, there, by_id = (
        run(*ask, 128, *more, "--json")
        for more in (start, (*start, "--server", server), ("--start", first, "--server", server))
    )
    assert [done.exit_code for done in (here, there, by_id)] == [0, 0, 0], there.stderr
    assert len({json.loads(done.stdout)["plan_id"] for done in (here, there, by_id)}) == 1
    unknown = run(*ask, 128, "--start", folder / "plan4.json", "--server", server)
    assert (unknown.exit_code, "start_id: 'plan-" in unknown.stderr) == (2, True), unknown.stderr


def test_a_service_has_the_plan_of_an_earlier_release_under_the_id_that_it_had_then(
    folder: Path, plan: dict[str, Any], tmp_path: Path
) -> None:
    document = earlier_plan(plan)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert id_of(str(tmp_path / "plan.json")) == document["plan_id"]
    assert id_of(str(folder / "plan.json")) == plan["plan_id"]


@pytest.mark.parametrize("model", ["zoo:mlp-small", "{graph}"])
def test_captured_models_are_kept_by_the_service(run: Run, folder: Path, server: str, model: str) -> None:
    source = model.format(graph=folder / "graph.json")
    model_id = json.loads(run("capture", source, "--server", server, "--json").stdout)["model_id"]
    assert run("capture", source, "--server", server).stdout == f"{model_id}\n"
    planned = run("plan", model_id, "--cluster", "local:2", "--global-batch", 64, "--server", server, "--json")
    assert json.loads(planned.stdout)["provenance"]["graph_hash"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("plan", "zoo:nope", "--cluster", "local:2"), 2, "nope"),
        (("plan", "{graph}", "--cluster", "local:2", "--memory-limit-bytes", "9"), 3, "memory_limit_bytes = 9"),
        (("trial", "plan-0123456789abcdef"), 2, "plan-0123456789abcdef"),
        (("calibrate", "--cluster", "local:2", "--op-s", "0"), 2, "op_s"),
    ],
)
def test_refusals_of_the_service_keep_their_exit_code(
    run: Run, folder: Path, server: str, arguments: tuple[str, ...], code: int, text: str
) -> None:
    filled = [argument.format(graph=folder / "graph.json") for argument in arguments]
    done = run(*filled, "--server", server, "--json")
    assert done.exit_code == code
    assert text in done.stderr
    assert json.loads(done.stdout)["error"]["exit_code"] == code


class Service:
    """A client of a service that has done every job at once; keeps what it was asked."""

    calls: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, url: str) -> None:
        self.calls.append(("url", url))

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "post_cluster": "clu-1",
            "post_model": "mod-1",
            "get_calibration": Calibration(load_cluster("local:2"), "gloo", "relative", ()).to_dict(),
            "get_strategy": {"plan_id": "plan-1", "model": "tiny", "cluster": {"name": "local:2"}},
            "trial": Job("job-1", "trial", "queued", "/v1/trials/tri-1", None, "", {}, None, {}),
            "trial_log": "lowered",
            "wait": type("Job", (), {"result": {"calibration_id": "cal-1", "trial_id": "tri-1"}}),
        }

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, arguments, named))
            if name == "judge":
                gates = check_gates(RESULT, GateLimits(named["max_step_time_s"]))
                return {"result": RESULT, "gates": [{"name": gate.name, **gate.to_dict()} for gate in gates]}
            return answers.get(name)

        return call

    @classmethod
    def asked(cls, name: str) -> tuple[Any, ...]:
        """Arguments of the one call of ``name``."""
        (found,) = [call[1:] for call in cls.calls if call[0] == name]
        return found


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> type[Service]:
    monkeypatch.setattr(Service, "calls", [])
    monkeypatch.setattr("autosbp.client.Client", Service)
    return Service


def test_a_calibration_by_the_service_is_written(run: Run, tmp_path: Path, service: type[Service]) -> None:
    done = run(
        *("calibrate", "--cluster", "local:2", "--model", "zoo:mlp", "--global-batch", 8, "--op-s", 0.1),
        *("--server", "http://there", "-o", tmp_path / "c.json"),
    )
    assert done.exit_code == 0, done.stderr
    assert service.asked("url") == ("http://there",)
    assert service.asked("post_model") == ((), {"zoo": "mlp"})
    (cluster_id, model_ids, options), effort = service.asked("calibrate")
    assert effort.pop("idempotency_key")
    assert (cluster_id, model_ids, options["global_batch"]) == ("clu-1", ["mod-1"], 8)
    assert effort == {"point_s": 1.0, "op_s": 0.1, "budget_s": 165.0, "variants": True}
    assert Calibration.from_dict(json.loads((tmp_path / "c.json").read_text())).backend == "gloo"


@pytest.mark.parametrize(("limit", "code"), [("0.3", 0), ("0.1", 1)])
def test_a_trial_by_the_service_is_of_the_plans_id_and_gated(
    run: Run, folder: Path, service: type[Service], plan: dict[str, Any], limit: str, code: int
) -> None:
    done = run(
        *("trial", folder / "plan.json", "--server", "http://there", "--baseline", "megatron", "--steps", 5),
        *("--max-step-time", limit, "--json", "--label", "main"),
    )
    assert done.exit_code == code, done.stderr
    (strategy_id,), effort = service.asked("trial")
    assert strategy_id == plan["plan_id"] and effort.pop("idempotency_key")
    assert effort == {"baseline": "megatron", "label": "main", "steps": 5, "warmup": 3, "seed": 0}
    (trial_id,), limits = service.asked("judge")
    assert (trial_id, limits["max_step_time_s"], limits["baseline_label"]) == ("tri-1", float(limit), "main")
    assert json.loads(done.stdout)["gates"]["max_step_time_s"]["passed"] == (code == 0)
    assert "lowered" in done.stderr


def test_no_wait_prints_the_trial_id(run: Run, service: type[Service]) -> None:
    done = run("trial", "plan-0123456789abcdef", "--server", "http://there", "--no-wait", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {"job_id": "job-1", "trial_id": "tri-1", "state": "queued"}


@pytest.mark.parametrize(
    "arguments",
    [("--no-wait",), ("--no-wait", "--server", "http://there", "--max-regression", "5%")],
)
def test_gates_need_the_end_of_a_trial(run: Run, service: type[Service], arguments: tuple[str, ...]) -> None:
    done = run("trial", "plan-0123456789abcdef", *arguments)
    assert (done.exit_code, "error: wait: " in done.stderr) == (2, True)


def test_the_service_remembers_what_a_regression_is_measured_against(
    run: Run, folder: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that the service has not made is searched again there; real ranks run it, twice."""
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    asked = (
        "trial",
        folder / "plan.json",
        "--server",
        server,
        "--steps",
        2,
        "--warmup",
        1,
        "--max-regression",
        "1000%",
    )
    done = run(*asked, "--graph", folder / "graph.json", "--report", tmp_path / "first.json", "--json")
    assert done.exit_code == 0, done.stderr
    first = json.loads(done.stdout)
    assert first == json.loads((tmp_path / "first.json").read_text())
    assert (first["compared_with"], first["gates"]["max_regression"]["value"]) == (None, None)
    assert "lowered: " in done.stderr
    again = run(*asked, "--max-step-time", 1e-9, "--github", "--junit", tmp_path / "out.xml")
    assert again.exit_code == 1, again.stderr
    assert f"of the last passed trial labelled main of this strategy: {first['trial_id']}" in again.stdout
    assert f"the last passed trial labelled main of this strategy: {first['trial_id']}." in summary.read_text()
    assert "::error title=autosbp%3A max_step_time_s failed::" in again.stderr
    assert "| `max_step_time_s` | **FAILED** |" in summary.read_text()
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()  # noqa: S314  # our own file
    assert (suite.get("tests"), suite.get("failures")) == ("4", "1")
    (source,) = (each for each in suite.iter("property") if each.get("name") == "compared_with")
    assert first["trial_id"] in str(source.get("value"))
    with Client(server) as client:
        stored = list(client.trials(strategy_id=first["plan_id"], label="main"))
        assert [each["passed"] for each in stored] == [False, True]
        gates = client.get_trial(stored[0]["id"])["gates"] or []
        assert {gate["name"]: gate["passed"] for gate in gates}["max_step_time_s"] is False
    third = run(*asked, "--json")  # the one that failed is none to compare with, so a re-run does not pass by it
    assert json.loads(third.stdout)["compared_with"]["trials"] == [first["trial_id"]]
    other = run(*asked, "--json", "--baseline-label", "v1", "--label", "v1")
    assert "no earlier trial labelled v1 of tiny on local:2 passed" in other.stdout


@pytest.fixture(scope="module")
def strategy(run: Run, folder: Path, server: str) -> str:
    """The id of the strategy that the service finds for the question of ``plan.json``."""
    done = run(
        *("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64, "--server", server, "--json")
    )
    return str(json.loads(done.stdout)["plan_id"])


@pytest.mark.parametrize(
    "asked",
    [
        ("explain", "{plan}"),
        ("explain", "{plan}", "--why", "linear_0", "--most", 3),
        ("explain", "{plan}", "--what-if", "--factor", 3),
        ("explain", "{plan}", "--program", "--rank", 1),
        ("export", "{plan}", "--to", "deepspeed", "--baseline", "data_parallel"),
        ("export", "{plan}", "--to", "perfetto"),
    ],
)
def test_a_stored_strategy_is_explained_and_exported_as_its_file_is(
    run: Run, folder: Path, server: str, strategy: str, asked: tuple[object, ...]
) -> None:
    def ask(plan: object, *where: object) -> dict[str, Any]:
        filled = [str(argument).format(plan=plan) for argument in asked]
        done = run(*filled, *where, "--json")
        assert done.exit_code == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    here = ask(folder / "plan.json", "--graph", folder / "graph.json")
    there = ask(strategy, "--server", server)
    if "--baseline" in asked:
        assert there["plan_id"] == strategy
        here["plan_id"] = there["plan_id"]  # a service names the strategy whose baseline it is
    assert there == here
    assert run(*(str(each).format(plan=strategy) for each in asked), "--server", server).exit_code == 0


def test_stored_strategies_are_compared_with_each_other_and_with_files(
    run: Run, folder: Path, server: str, strategy: str
) -> None:
    here = json.loads(run("diff", folder / "plan.json", folder / "plan4.json", "--json").stdout)
    asked = ("plan", folder / "graph.json", "--cluster", "local:4", "--global-batch", 64, "--server", server, "--json")
    other = json.loads(run(*asked).stdout)["plan_id"]
    for pair in ((strategy, other), (strategy, folder / "plan4.json"), (folder / "plan.json", other)):
        done = run("diff", *pair, "--server", server, "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (0, here), pair


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (("explain", "{id}", "--why", "nope"), "why"),
        (("explain", "{id}", "--why", "linear_0", "--what-if"), "what-if"),
        (("explain", "{id}", "--calibration", "c.json"), "calibration"),
        (("explain", "{id}", "--report", "r.html"), "report"),
        (("explain", "plan-0123456789abcdef"), "plan"),
        (("export", "{id}", "--to", "deepspeed", "--baseline", "nope"), "baseline"),
        (("export", "{id}", "--to", "deepspeed", "--calibration", "c.json"), "calibration"),
        (("export", "plan-0123456789abcdef", "--to", "dtensor"), "plan"),
        (("diff", "{id}", "no-such-file.json"), "file"),
    ],
)
def test_requests_the_service_cannot_answer_are_refused_by_name(
    run: Run, server: str, strategy: str, asked: tuple[str, ...], field: str
) -> None:
    done = run(*(each.format(id=strategy) for each in asked), "--server", server)
    assert (done.exit_code, f"error: {field}: " in done.stderr) == (2, True), done.stderr
