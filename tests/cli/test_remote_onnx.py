"""``onnx:FILE`` with ``--server``: the service parses and captures the file, and finds the plan that is found here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autosbp.client import Client
from tests.cli.conftest import Run
from tests.service import onnx_files
from tests.service.server import Server

pytestmark = pytest.mark.integration

LIMIT = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that takes small bodies only."""
    with Server(tmp_path_factory.mktemp("service"), max_body_bytes=LIMIT) as server:
        yield server.url


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "my perceptron.onnx"
    path.write_bytes(onnx_files.good())
    return path


def plan(run: Run, model: object, *more: object) -> dict[str, Any]:
    asked = ("plan", f"onnx:{model}", "--cluster", "local:2", "--global-batch", 64, "--time-limit", 5, "--json")
    done = run(*asked, *more)
    assert done.exit_code == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_the_service_captures_the_file_and_finds_the_plan_that_is_found_here(
    run: Run, server: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = plan(run, model)
    monkeypatch.setattr("autosbp.cli._remote.read_model", lambda *_: pytest.fail("captured at the client"))
    there = plan(run, model, "--server", server)
    assert (there["plan_id"], there["model"]) == (here["plan_id"], "my-perceptron")
    done = run("capture", f"onnx:{model}", "--server", server, "--json")
    model_id = json.loads(done.stdout)["model_id"]
    with Client(server) as client:
        assert [each["id"] for each in client.models(graph_hash=here["provenance"]["graph_hash"])] == [model_id]
        assert client.get_model(model_id)["source"] == "onnx"


@pytest.mark.parametrize("bad", onnx_files.refused(), ids=lambda bad: bad.name)
def test_a_bad_file_is_refused_by_the_service_with_the_field_and_exit_2(
    run: Run, server: str, tmp_path: Path, bad: onnx_files.Refused
) -> None:
    path = tmp_path / bad.name
    path.write_bytes(bad.content)
    done = run("plan", f"onnx:{path}", "--cluster", "local:2", "--server", server, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["field"]) == (2, bad.field), done.stderr
    assert bad.words in error["limit"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("capture", "onnx:none.onnx"), "model"),
        (("capture", "onnx:{model}", "--seq-len", 8), "seq_len"),
        (("calibrate", "--cluster", "local:2", "--model", "onnx:none.onnx", "--json"), "model"),
    ],
)
def test_files_that_cannot_be_read_and_sizes_are_refused_before_anything_is_sent(
    run: Run, server: str, model: Path, arguments: tuple[object, ...], field: str
) -> None:
    done = run(*(str(each).format(model=model) for each in arguments), "--server", server)
    assert (done.exit_code, f"error: {field}: " in done.stderr) == (2, True), done.stderr


def test_a_file_that_is_too_large_for_the_service_is_captured_here(
    run: Run, server: str, model: Path, tmp_path: Path
) -> None:
    from onnx import ModelProto

    large = ModelProto.FromString(onnx_files.good())
    large.doc_string = "a long story " * LIMIT
    path = tmp_path / "my perceptron.onnx"
    path.write_bytes(large.SerializeToString())
    done = run("capture", f"onnx:{path}", "--server", server, "--json")
    assert done.exit_code == 0, done.stderr
    assert f"larger than {LIMIT} bytes" in done.stderr and f"{path} is captured on this machine" in done.stderr
    with Client(server) as client:
        assert client.get_model(json.loads(done.stdout)["model_id"])["name"] == "my-perceptron"
