"""Bad input ends in one ``error:`` line, its exit code, and an object under ``--json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosbp.plan.plan import plan_id_of
from tests.cli.conftest import Run

pytestmark = pytest.mark.integration

PLAN = ("plan", "{graph}", "--cluster", "local:2", "--global-batch", "8")
CASES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "unknown zoo model": (("plan", "zoo:nope", "--cluster", "local:2"), 2, "zoo: 'nope'"),
    "model of no form": (("plan", "what is this", "--cluster", "local:2"), 2, "package.module:factory"),
    "missing model file": (("plan", "missing.json", "--cluster", "local:2"), 2, "missing.json"),
    "graph that is a folder": (("estimate", "{folder}"), 2, "model:"),
    "graph that is a plan": (("estimate", "{plan}"), 2, "schema: 'autosbp.plan/2'"),
    "unknown cluster": (("plan", "{graph}", "--cluster", "mars:2"), 2, "dgx-a100-80g"),
    "cluster of no devices": (("plan", "{graph}", "--cluster", "local:0"), 2, "cluster.nodes: 0"),
    "missing cluster file": (("plan", "{graph}", "--cluster", "missing.yaml"), 2, "missing.yaml"),
    "microbatch that does not divide": ((*PLAN, "--micro-batch", "3"), 2, "divisor of the global batch 8"),
    "batch of zero": (("plan", "{graph}", "--cluster", "local:2", "--global-batch", "0"), 2, "global_batch: 0"),
    "unknown searcher": ((*PLAN, "--searcher", "luck"), 2, "searcher: 'luck'"),
    "unknown baseline": ((*PLAN, "--baselines", "megatron,zero4"), 2, "baselines: 'zero4'"),
    "unknown optimizer": ((*PLAN, "--optimizer", "lion"), 2, "adamw or sgd"),
    "time limit that is no number": ((*PLAN, "--time-limit", "nan"), 2, "time_limit_s: nan"),
    "calibration that is a graph": ((*PLAN, "--calibration", "{graph}"), 2, "schema: 'autosbp.graph/1'"),
    "time limit of nothing": ((*PLAN, "--time-limit", "0"), 3, "time_limit_s = 0"),
    "constraints that exclude each other": (
        (*PLAN, "--pin", "layers.0.weight=S0", "--pin", "linear_0=S0"),
        3,
        "pins.layers.0.weight=S0 and pins.linear_0=S0 exclude each other",
    ),
    "model that cannot fit": ((*PLAN, "--memory-limit-bytes", "1000"), 3, "memory_limit_bytes = 1000"),
    "output in no folder": ((*PLAN, "-o", "/nowhere/plan.json"), 2, "output: '/nowhere/plan.json'"),
    "output that is a folder": ((*PLAN, "-o", "{folder}"), 2, "got a folder"),
    "service out of reach": ((*PLAN, "--server", "http://127.0.0.1:9"), 5, "cannot reach the service"),
    "address of no service": ((*PLAN, "--server", "ftp://x"), 5, "ftp"),
    "capture without output": (("capture", "{graph}"), 2, "required: -o FILE"),
    "capture to a name of no graph": (("capture", "{graph}", "-o", "graph.txt"), 2, "ending in .json or .json.gz"),
    "capture to file and service": (
        ("capture", "{graph}", "-o", "x.json", "--server", "http://x"),
        2,
        "use either -o or --server",
    ),
    "sequence length of a graph": (("estimate", "{graph}", "--seq-len", "8"), 2, "only hf: models"),
    "missing plan": (("explain", "missing.json"), 2, "missing.json"),
    "plan that is a graph": (("explain", "{graph}"), 2, "autosbp.plan/2"),
    "program without the graph": (("explain", "{plan}", "--program"), 2, "--graph FILE or --model MODEL"),
    "program of no rank": (("explain", "{plan}", "--program", "--rank", "2", "--graph", "{graph}"), 2, "0 to 1"),
    "why of no op": (("explain", "{plan}", "--graph", "{graph}", "--why", "linaer_1"), 2, "such as linear_1"),
    "why without the graph": (("explain", "{plan}", "--why", "linear_1"), 2, "--graph FILE or --model MODEL"),
    "why and program": (("explain", "{plan}", "--why", "linear_1", "--program"), 2, "exclude each other"),
    "front of one plan": ((*PLAN, "--pareto", "1"), 2, "pareto: 1"),
    "front by no service": ((*PLAN, "--pareto", "3", "--server", "http://127.0.0.1:9"), 5, "cannot reach the service"),
    "what-if of no factor": (("explain", "{plan}", "--graph", "{graph}", "--what-if", "--factor", "1"), 2, "factor: 1"),
    "graph of another plan": (("explain", "{plan}", "--model", "zoo:mlp-small"), 2, "the plan's graph"),
    "graph and model": (("explain", "{plan}", "--model", "zoo:mlp", "--graph", "{graph}"), 2, "not both"),
    "trial without the graph": (("trial", "{plan}"), 2, "a trial requires the plan's graph"),
    "trial of no launcher": (("trial", "{plan}", "--launcher", "rocket"), 2, "launcher: 'rocket'"),
    "trial of no baseline": (("trial", "{plan}", "--graph", "{graph}", "--baseline", "x"), 2, "feasible baselines"),
    "trial of no steps": (("trial", "{plan}", "--graph", "{graph}", "--steps", "0"), 2, "steps: 0"),
    "trial without time": (("trial", "{plan}", "--graph", "{graph}", "--timeout", "nan"), 2, "timeout: 'nan'"),
    "gate below zero": (("trial", "{plan}", "--graph", "{graph}", "--max-step-time", "-1"), 2, "max_step_time"),
    "lessons of no trial": (("learn", "{plan}", "-o", "{folder}/c.json"), 2, "either --trial DIR or --undo"),
    "lessons for a plan": (("learn", "{plan}", "--undo", "-o", "{folder}/c.json"), 2, "schema: 'autosbp.plan/2'"),
    "lessons to a folder": (("learn", "{plan}", "--undo", "-o", "{folder}"), 2, "got a folder"),
    "export to no tool": (("export", "{plan}", "--to", "horovod"), 2, "torchtitan"),
    "export without the graph": (("export", "{plan}", "--to", "megatron"), 2, "graph: None"),
    "calibration of sizes": (("calibrate", "--cluster", "local:2", "--sizes", "1,x"), 2, "sizes: '1,x'"),
    "calibration of few sizes": (("calibrate", "--cluster", "local:2", "--sizes", "1,2"), 2, "at least 3"),
    "calibration of many ranks": (("calibrate", "--cluster", "dgx-h100:128"), 2, "can start on one machine"),
    "calibration of no launcher": (("calibrate", "--cluster", "local:2", "--launcher", "boat"), 2, "launcher: 'boat'"),
    "calibration of no interface": (("calibrate", "--cluster", "local:2", "--interface", "x9"), 2, "interface: 'x9'"),
    "calibration of no time": (("calibrate", "--cluster", "local:2", "--budget", "0"), 2, "budget_s: 0.0"),
    "log of no shape": (("calibrate", "--cluster", "dgx-h100:2", "--nccl-log", "log.txt"), 2, "SHAPE=FILE"),
    "log of another shape": (("calibrate", "--cluster", "dgx-h100:2", "--nccl-log", "3x8=x"), 2, "group_shape"),
}


def filled(arguments: tuple[str, ...], folder: Path) -> list[str]:
    names = {"graph": folder / "graph.json", "plan": folder / "plan.json", "folder": folder}
    return [argument.format(**names) for argument in arguments]


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named_in_one_line(run: Run, folder: Path, name: str) -> None:
    arguments, code, text = CASES[name]
    plain = ["-o", str(folder / "out.json")] if arguments[0] == "calibrate" else []
    done = run(*filled(arguments, folder), *plain)
    assert done.exit_code == code, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and text in lines[0]
    assert done.stderr.splitlines()[-1] == lines[0]


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_an_object_under_json(run: Run, folder: Path, name: str) -> None:
    arguments, code, text = CASES[name]
    done = run(*filled(arguments, folder), "--json")
    error = json.loads(done.stdout)["error"]
    assert done.exit_code == code == error["exit_code"]
    assert text in error["message"]
    assert error["type"] not in ("InputError", "GraphError") or {"field", "value", "limit"} <= error.keys()
    assert error["type"] != "InfeasibleError" or {"constraint", "limit", "needed"} <= error.keys()


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("plan", "zoo:mlp"),
        ("plan", "zoo:mlp", "--cluster", "local:2", "--global-batch", "many"),
        ("plan", "zoo:mlp", "--cluster", "local:2", "--no-such-option"),
        ("export", "plan.json"),
        ("nonsense",),
        ("serve", "--port", "70000"),
    ],
)
def test_wrong_use_exits_with_2_and_prints_nothing_on_standard_output(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""


def changed(plan: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {**plan, **members}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "autosbp.plan/3"}, "this release reads version 'autosbp.plan/2'"),
        ({"schema": "autosbp.plan/1"}, "the hash of this plan is"),
        ({"step_time_s": 1e-9}, "the hash of this plan is"),
        ({"plan_id": "plan-0000000000000000"}, "the hash of this plan is"),
        ({"strategy": {}}, "strategy.mesh"),
        ({"cluster": []}, "expected a mapping"),
        ({"provenance": None}, "provenance: None is invalid"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "diff", "trial", "export"])
def test_a_tampered_plan_is_refused(
    run: Run, plan: dict[str, Any], tmp_path: Path, command: str, change: dict[str, Any], text: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(changed(plan, **change)))
    more = {"diff": [path], "export": ["--to", "dtensor"]}.get(command, [])
    done = run(command, path, *more)
    assert done.exit_code == 2
    assert text in done.stderr


@pytest.mark.parametrize("command", ["explain", "diff"])
@pytest.mark.parametrize("member", ["step_time_s", "breakdown", "memory_limit_bytes", "model", "baselines"])
def test_a_plan_without_its_costs_is_refused(
    run: Run, plan: dict[str, Any], tmp_path: Path, command: str, member: str
) -> None:
    """Its id may be right: a document can be cut before it is hashed."""
    cut = {name: value for name, value in plan.items() if name != member}
    cut["plan_id"] = plan_id_of(cut)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(cut))
    done = run(command, path, *([path] if command == "diff" else []))
    assert done.exit_code == 2
    assert f"error: {member}" in done.stderr


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_comm_s": -1.0}, "breakdown.hidden_comm_s"),
        ({"exposed_comm_by_purpose_s": 3}, "breakdown.exposed_comm_by_purpose_s"),
        ({"exposed_comm_by_purpose_s": {"loss": "long"}}, "breakdown.exposed_comm_by_purpose_s.loss"),
        ({"idle_s": 1.0}, "breakdown.idle_s"),
    ],
)
def test_a_breakdown_that_is_none_is_refused(
    run: Run, plan: dict[str, Any], tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    document = {**plan, "breakdown": {**plan["breakdown"], **changes}}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**document, "plan_id": plan_id_of(document)}))
    done = run("explain", path)
    assert (done.exit_code, f"error: {field}: " in done.stderr) == (2, True), done.stderr


def test_a_failed_write_leaves_the_old_file(run: Run, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    done = run("plan", folder / "graph.json", "--cluster", "local:2", "--memory-limit-bytes", 1, "-o", path)
    assert done.exit_code == 3
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
