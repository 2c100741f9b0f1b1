"""A plan for an emulated cluster is run on it: two nodes of one rank, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import graph_document
from tests.cli.processes import autosbp

pytestmark = pytest.mark.clock


def test_a_trial_runs_on_the_nodes_that_its_plan_is_for(can_emulate: None, tmp_path: Path) -> None:
    graph, plan = tmp_path / "graph.json", tmp_path / "plan.json"
    graph.write_text(json.dumps(graph_document()))
    done = autosbp("plan", graph, "--cluster", "emulated:2x1", "--global-batch", 64, "-o", plan)
    assert done.returncode == 0, done.stderr
    options = ("--launcher", "emulated", "--baseline", "data_parallel", "--steps", 4, "--warmup", 1)
    done = autosbp("trial", plan, "--graph", graph, *options, "--workdir", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["num_ranks"] == 2 and result["collectives_match"]
    # 2.6 MB of gradients cross a link of 200 Mbit/s in 0.1 s; over the loopback interface they take a few ms.
    assert result["step_time_s"]["median"] > 0.5 * 2.6e6 / (200e6 / 8)
    assert (tmp_path / "ranks.node1.log").exists()
