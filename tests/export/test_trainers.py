"""The trainers themselves read what is exported, and train with it on 4 Gloo ranks where they run on CPUs.

Their environments are made by ``python -m benchmarks.exports.environments``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, load_cluster, plan_for
from autosbp.errors import AutosbpError
from autosbp.export import export_plan
from autosbp.trainers import TRAINERS
from autosbp.zoo import zoo_graph
from benchmarks.exports.__main__ import PARSERS
from benchmarks.exports.environments import install

pytestmark = [pytest.mark.long, pytest.mark.integration]

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "exports"
DDP: dict[str, Any] = {"stages": 1, "data_parallel": 4, "storage": "as_used", "micro_batch": 16}
ASKED: dict[str, dict[str, Any]] = {
    "fastest": {},
    "ddp": DDP,
    "zero_once": {**DDP, "storage": "step"},
    "zero_use": {**DDP, "storage": "use", "micro_batch": 8},
    "tensor": {"stages": 1, "tensor_parallel": 2},
    "stages": {"stages": 2},
    "checkpointed": {"stages": 1, "recompute": 1},
}


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return zoo_graph("llama-demo")


def write(plan: Plan, graph: LogicalGraph, name: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for file, text in export_plan(name, plan, graph).items():
        (folder / file).write_text(text)
    (folder / "ranks").write_text(str(plan.cluster.num_devices))
    return folder


def plans(name: str, graph: LogicalGraph) -> dict[str, Plan]:
    """Plans for a trainer under each of ``ASKED`` that it can do."""
    found = {}
    for key, options in ASKED.items():
        asked = PlanOptions(**{"global_batch": 16, "baselines": (), "precision": "fp32", **options})
        try:
            found[key] = plan_for(name, graph, load_cluster("local:2x2"), None, asked)
        except AutosbpError:
            continue
    return found


def run(command: Sequence[str]) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true"}
    ended = subprocess.run(list(command), capture_output=True, text=True, env=env, timeout=170, check=False)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout


@pytest.mark.parametrize("name", TRAINERS)
def test_the_trainer_s_own_parser_accepts_every_kind_of_plan(name: str, graph: LogicalGraph, tmp_path: Path) -> None:
    folders = [str(write(plan, graph, name, tmp_path / key)) for key, plan in plans(name, graph).items()]
    assert len(folders) > 2
    for parser in PARSERS[name]:
        lines = run([str(install(parser)), str(SCRIPTS / "parsers.py"), parser, *folders]).strip().splitlines()
        assert json.loads(lines[-1]) == dict.fromkeys(folders, "")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("deepspeed", "ddp"),
        ("deepspeed", "zero_once"),
        ("deepspeed", "zero_use"),
        ("accelerate", "ddp"),
        ("accelerate", "zero_use"),
        ("torchtitan", "ddp"),
        ("torchtitan", "zero_use"),
        ("torchtitan", "tensor"),
    ],
)
def test_ranks_of_the_trainer_have_the_losses_of_one_device(
    name: str, key: str, graph: LogicalGraph, tmp_path: Path
) -> None:
    asked = PlanOptions(**{"global_batch": 16, "baselines": (), "precision": "fp32", **ASKED[key]})
    plan = plan_for(name, graph, load_cluster("local:4"), None, asked)
    folder = write(plan, graph, name, tmp_path / name)
    strategy = plan.strategy
    batch = {
        "global_batch": strategy.global_batch,
        "num_micro": strategy.num_micro,
        "replica_batch": strategy.micro_batch // 4,
    }
    sync = strategy.gather == "use" and strategy.num_micro > 1
    (folder / "batch").write_text(json.dumps({**batch, "sync_each_batch": sync}))
    python = str(install(name))
    start = [python, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", "29641"]
    if name == "accelerate" and key != "ddp":
        start = [python, "-m", "accelerate.commands.launch", "--config_file", str(folder / "accelerate.yaml")]
    run([*start, str(SCRIPTS / "ranks.py"), name, str(folder)])
    found = json.loads((folder / "losses").read_text())
    assert found["losses"] == pytest.approx(found["one_device"], rel=1e-3)
    assert found["losses"][-1] < found["losses"][0]
