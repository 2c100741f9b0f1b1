"""``serve``, and the commands that let a service do the work."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autosbp.cluster import load_cluster
from autosbp.costmodel.calibration import Calibration
from tests.cli.conftest import Run
from tests.cli.processes import Started
from tests.cli.test_trial import RESULT

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


def test_a_plan_of_the_service_is_the_local_one(run: Run, folder: Path, server: str, tmp_path: Path) -> None:
    done = run(
        *("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64),
        *("--server", server, "-o", tmp_path / "plan.json", "--json"),
    )
    assert done.exit_code == 0, done.stderr
    wanted = json.loads((folder / "plan.json").read_text())
    assert json.loads((tmp_path / "plan.json").read_text()) == wanted
    assert json.loads(done.stdout)["plan_id"] == wanted["plan_id"]


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
            "get_trial": {"result": RESULT},
            "wait": type("Job", (), {"result": {"calibration_id": "cal-1", "trial_id": "tri-1"}}),
        }

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, arguments, named))
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
    assert (cluster_id, model_ids, options["global_batch"]) == ("clu-1", ["mod-1"], 8)
    assert effort == {"point_s": 1.0, "op_s": 0.1, "budget_s": 130.0, "variants": True}
    assert Calibration.from_dict(json.loads((tmp_path / "c.json").read_text())).backend == "gloo"


@pytest.mark.parametrize(("limit", "code"), [("0.3", 0), ("0.1", 1)])
def test_a_trial_by_the_service_is_of_the_plans_id_and_gated(
    run: Run, folder: Path, service: type[Service], plan: dict[str, Any], limit: str, code: int
) -> None:
    done = run(
        *("trial", folder / "plan.json", "--server", "http://there", "--baseline", "megatron", "--steps", 5),
        *("--max-step-time", limit, "--json"),
    )
    assert done.exit_code == code, done.stderr
    assert service.asked("trial") == (
        (plan["plan_id"],),
        {"baseline": "megatron", "steps": 5, "warmup": 3, "seed": 0},
    )
    assert json.loads(done.stdout)["gates"]["max_step_time_s"]["passed"] == (code == 0)
