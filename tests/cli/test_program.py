"""The program as users start it: what it imports, what it prints where, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autosbp import __version__
from tests.cli.processes import Started, autosbp, environment

pytestmark = pytest.mark.integration

COMMANDS = (
    "capture",
    "estimate",
    "plan",
    "clusters",
    "calibrate",
    "explain",
    "diff",
    "trial",
    "export",
    "serve",
    "work",
    "demo",
)
CHECK = """
import sys
sys.argv = ["autosbp", *sys.argv[2:]]
forbidden = set({forbidden})
from autosbp.cli import main
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
found = forbidden & sys.modules.keys()
sys.exit(f"imported: {{found}}" if found else 0)
"""


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (["--help"], ["torch", "numpy", "scipy", "autosbp.service", "autosbp.calibration", "httpx", "pydantic"]),
        (["--version"], ["torch", "numpy", "rich"]),
        (["plan", "--help"], ["torch", "numpy"]),
        (
            ["plan", "zoo:mlp-small", "--cluster", "local:2", "--global-batch", "16"],
            ["torch", "autosbp.service", "httpx"],
        ),
        (["estimate", "zoo:gpt2-demo", "--cluster", "local:2"], ["torch", "autosbp.service"]),
        (["explain", "{plan}", "--graph", "{graph}"], ["torch", "autosbp.service"]),
        (["diff", "{plan}", "{plan4}"], ["torch", "autosbp.service"]),
        (["capture", "{graph}", "-o", os.devnull], ["torch", "autosbp.service"]),
        (["export", "{plan}", "--to", "dtensor", "--graph", "{graph}"], ["torch", "autosbp.service"]),
        (["export", "{plan}", "--to", "perfetto", "--graph", "{graph}"], ["torch", "autosbp.service"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_commands_import_only_what_they_need(folder: Path, arguments: list[str], forbidden: list[str]) -> None:
    names = {name: folder / f"{name}.json" for name in ("plan", "plan4", "graph")}
    filled = [argument.format(**names) for argument in arguments]
    if os.devnull in filled:
        filled[-1] = str(folder / "captured.json")
    done = subprocess.run(
        [sys.executable, "-c", CHECK.format(forbidden=forbidden), "-", *filled],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_packages() -> None:
    assert autosbp("--version").stdout == f"autosbp {__version__}\n"


def test_verbose_logs_to_standard_error_and_the_library_is_quiet_without_it() -> None:
    command = ("plan", "zoo:mlp-small", "--cluster", "local:2", "--global-batch", "16", "--json")
    quiet, verbose = autosbp(*command), autosbp("-v", *command)
    assert "INFO autosbp.search.planner: planned mlp-small on local:2: step" in verbose.stderr
    assert "INFO" not in quiet.stderr
    assert json.loads(verbose.stdout)["plan_id"] == json.loads(quiet.stdout)["plan_id"]


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "zoo:nope", "--cluster", "local:2", "--json"], ["nope"]])
def test_the_package_is_the_command(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "autosbp", *arguments]
    module, script = subprocess.run(command, capture_output=True, text=True, env=environment()), autosbp(*arguments)
    assert (module.returncode, module.stdout, module.stderr) == (script.returncode, script.stdout, script.stderr)
    assert "python -m" not in module.stdout + module.stderr


def test_help_lists_every_command_of_the_design() -> None:
    done = autosbp("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "{graph}", "--cluster", "local:2", "--global-batch", "64", "--json"], 0),
        (["estimate", "{graph}", "--json"], 0),
        (["explain", "{plan}", "--json"], 0),
        (["diff", "{plan}", "{plan4}", "--json"], 0),
        (["export", "{plan}", "--to", "dtensor", "--json"], 0),
        (["plan", "zoo:nope", "--cluster", "local:2", "--json"], 2),
        (["plan", "{graph}", "--cluster", "local:2", "--memory-limit-bytes", "9", "--json"], 3),
        (["plan", "{graph}", "--cluster", "local:2", "--server", "http://127.0.0.1:9", "--json"], 5),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else str(value),
)
def test_json_is_one_object_and_nothing_else_on_standard_output(folder: Path, arguments: list[str], code: int) -> None:
    names = {name: folder / f"{name}.json" for name in ("plan", "plan4", "graph")}
    done = autosbp(*(argument.format(**names) for argument in arguments))
    assert done.returncode == code, done.stderr
    assert done.stdout.count("\n") == 1
    document = json.loads(done.stdout)
    assert ("error" in document) == bool(code)


def test_an_interrupted_search_exits_with_130(tmp_path: Path) -> None:
    arguments = ("plan", "zoo:gpt3-175b", "--cluster", "dgx-a100-80g:64", "-o", tmp_path / "plan.json")
    with Started(*arguments, cwd=tmp_path) as search:
        search.wait_for(lambda line: "searching" in line)
        time.sleep(0.3)
        code, out = search.end(signal.SIGINT)
    assert (code, out) == (130, "")
    assert search.lines[-1] == "interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_a_trial_ended_by_sigterm_leaves_no_ranks(folder: Path, tmp_path: Path) -> None:
    arguments = ("trial", folder / "plan.json", "--graph", folder / "graph.json", "--steps", 100_000)
    with Started(*arguments, cwd=tmp_path) as trial:
        trial.wait_for(lambda line: "step 0" in line)
        started = trial.descendants
        assert len(started) >= 3  # what starts the ranks, and two of them
        ended = trial.end(signal.SIGTERM)
    assert ended == (128 + signal.SIGTERM, "")
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s and (left := {pid for pid in started if Path(f"/proc/{pid}").exists()}):
        time.sleep(0.1)
    assert not left
