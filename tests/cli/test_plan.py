"""``plan``, ``explain``, ``diff``, ``estimate`` and ``capture``: what they print and write."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from autosbp.cli._pareto import stale_front_files
from autosbp.plan.plan import OLDER_OBJECTIVE_WARNING, SCHEMA, Plan, plan_id_of
from autosbp.utils.formatting import seconds
from tests.cli.conftest import Run
from tests.earlier_plans import earlier_plan

pytestmark = pytest.mark.integration

CONTRACT = {
    "plan_id",
    "step_time_s",
    "breakdown",
    "comm_bytes_per_device",
    "memory_bytes_per_device",
    "memory_limit_bytes",
    "lower_bound_s",
    "gap",
    "searcher",
    "evaluations",
    "search_s",
    "baselines",
}


def test_plan_json_holds_the_contract(run: Run, folder: Path) -> None:
    done = run("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64, "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert document.keys() >= CONTRACT
    added = {"compute_s", "exposed_comm_s", "bubble_s", "optimizer_s"}
    assert document["breakdown"].keys() == {*added, "exposed_comm_by_purpose_s", "hidden_comm_s"}
    for costs in (document, *(each for each in document["baselines"].values() if each["feasible"])):
        assert sum(costs["breakdown"][name] for name in added) == pytest.approx(costs["step_time_s"])
        by_purpose = costs["breakdown"]["exposed_comm_by_purpose_s"]
        assert sum(by_purpose.values()) == pytest.approx(costs["breakdown"]["exposed_comm_s"])
    assert "simulated_step_time_s" not in document
    for entry in document["baselines"].values():
        assert entry.keys() >= {"step_time_s", "comm_bytes_per_device", "memory_bytes_per_device", "feasible"}


def test_the_same_input_gives_the_same_plan_file(run: Run, folder: Path, tmp_path: Path) -> None:
    done = run(
        "plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64, "-o", tmp_path / "plan.json"
    )
    assert done.exit_code == 0
    assert (tmp_path / "plan.json").read_bytes() == (folder / "plan.json").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_plan_shows_the_winner_and_the_baselines(run: Run, folder: Path) -> None:
    shown = run("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64).stdout
    for text in (
        "this plan",
        "data_parallel",
        "megatron_lm",
        "step time",
        "traffic",
        "feasible",
        "search:",
        "data sheet",
    ):
        assert text in shown
    assert "exposed" in shown and "hidden" in shown and "simulated" not in shown
    assert "precision fp32" in shown and "samples/s" in shown and "MFU" in shown


def test_a_plan_of_a_baseline_that_does_not_fit_says_so(run: Run, folder: Path) -> None:
    limit = 9_000_000  # the whole training state is 10,485,760 bytes
    done = run(
        *("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64, "--json"),
        *("--memory-limit-bytes", limit),
    )
    document = json.loads(done.stdout)
    assert not document["baselines"]["data_parallel"]["feasible"]
    shown = run(
        *("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64, "--memory-limit-bytes", limit)
    ).stdout
    assert "data_parallel does not run: infeasible: memory_limit_bytes" in shown


def test_a_baseline_not_reached_in_time_is_unknown(run: Run, folder: Path) -> None:
    asked = ("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64, "--time-limit", 1e-6)
    entry = json.loads(run(*asked, "--json").stdout)["baselines"]["megatron_lm"]
    assert entry["feasible"] is None and entry["step_time_s"] is None
    shown = run(*asked).stdout
    assert re.search(r"megatron_lm .* unknown", shown)
    assert "megatron_lm is unknown: the time limit of 1e-06 s was reached before it was found." in shown


def test_explain_names_splits_costs_and_the_certificate(run: Run, folder: Path) -> None:
    done = run("explain", folder / "plan.json", "--graph", folder / "graph.json")
    assert done.exit_code == 0
    for text in ("layers.*.weight", "split dim", "step time", "memory per device", "linear", "collectives"):
        assert text in done.stdout


def test_explain_shows_exposed_and_hidden_communication(run: Run, folder: Path, tmp_path: Path) -> None:
    parts = {"compute_s": 4.0, "exposed_comm_s": 3.0, "bubble_s": 2.0, "optimizer_s": 1.0, "hidden_comm_s": 5.0}
    by_purpose = {"gradient_sync": 2.0, "loss": 1.0, "tensor_parallel": 0.0}
    document = json.loads((folder / "plan.json").read_text())
    document |= {"step_time_s": 10.0, "breakdown": {**parts, "exposed_comm_by_purpose_s": by_purpose}}
    (tmp_path / "plan.json").write_text(json.dumps({**document, "plan_id": plan_id_of(document)}))
    shown = run("explain", tmp_path / "plan.json").stdout
    for line in (
        *(r"compute +4 s +40.0 %", r"exposed communication +3 s +30.0 %", r"  gradient sync +2 s +20.0 %"),
        *(r"loss reduction +1 s +10.0 %", r"bubble +2 s +20.0 %", r"optimizer +1 s +10.0 %"),
        r"overlapped with the step: hidden communication +5 s +50.0 %",
    ):
        assert re.search(f"^ *{line} *$", shown, re.MULTILINE), (line, shown)
    assert "tensor parallelism" not in shown
    found = json.loads(run("explain", tmp_path / "plan.json", "--json").stdout)
    assert found["breakdown"] == document["breakdown"] and "simulated_step_time_s" not in found


def test_explain_json_counts_the_charged_collectives(run: Run, folder: Path, plan: dict[str, Any]) -> None:
    found = json.loads(run("explain", folder / "plan.json", "--graph", folder / "graph.json", "--json").stdout)
    sent = sum(entry["bytes_per_device"] for entry in found["collectives"])
    assert sent == pytest.approx(plan["comm_bytes_per_device"], abs=len(found["collectives"]))
    assert {entry["name"] for entry in found["parameters"]} == {"layers.*.weight"}
    assert found["plan_id"] == plan["plan_id"]
    parts = plan["breakdown"]
    assert sum(found["links"].values()) == pytest.approx(parts["exposed_comm_s"] + parts["hidden_comm_s"], rel=1e-9)
    assert any("is on links of level g" in sentence for sentence in found["findings"])


@pytest.mark.parametrize("rank", [0, 1])
def test_explain_prints_the_program_of_a_rank(run: Run, folder: Path, rank: int) -> None:
    options = ("--program", "--rank", rank, "--graph", folder / "graph.json")
    done = run("explain", folder / "plan.json", *options)
    assert done.exit_code == 0
    assert "torch.ops.aten.linear.default" in done.stdout
    assert json.loads(run("explain", folder / "plan.json", *options, "--json").stdout)["rank"] == rank


def test_explain_why_tells_what_other_layouts_of_an_op_cost(run: Run, folder: Path, plan: dict[str, Any]) -> None:
    options = ("explain", folder / "plan.json", "--graph", folder / "graph.json", "--why")
    done = run(*options, "layers.1.*", "--json")
    assert done.exit_code == 0, done.stderr
    (op,) = json.loads(done.stdout)["ops"]
    assert (op["op"], op["reads"]) == ("linear_1", ["layers.1.weight"])
    own = [entry for entry in op["alternatives"] if entry["chosen"]]
    assert [entry["signature"] for entry in own] == [plan["strategy"]["signatures"]["linear_1"]]
    assert len(op["alternatives"]) == min(op["num_signatures"], 12) > 2
    for entry in op["alternatives"]:
        assert entry["difference_s"] == entry["step_time_s"] - plan["step_time_s"]
    shown = run(*options, "linear_1", "--most", 2).stdout
    for text in ("linear_1 (reads layers.1.weight)", "(the plan)", "other changes", "--most N"):
        assert text in shown


def test_explain_what_if_tells_what_better_hardware_buys(run: Run, folder: Path, plan: dict[str, Any]) -> None:
    options = ("explain", folder / "plan.json", "--graph", folder / "graph.json", "--what-if")
    found = json.loads(run(*options, "--factor", 4, "--json").stdout)
    assert found["step_time_s"] == plan["step_time_s"]
    assert found["costs"] == "data sheet"
    assert {entry["change"] for entry in found["changes"]} == {"link g", "device", "memory"}
    for entry in found["changes"]:
        assert entry["factor"] == 4
        assert entry["step_time_s"] <= entry["same_strategy_step_time_s"]
        assert entry["saves"] >= 0
    shown = run(*options).stdout
    for text in ("2 x link g", "new search", "data sheet"):
        assert text in shown


def test_plans_costed_by_another_release_are_recosted(run: Run, folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "plan.json").read_text())
    document["step_time_s"] *= 2
    (tmp_path / "old.json").write_text(json.dumps({**document, "plan_id": plan_id_of(document)}))
    for option in ("--what-if",), ("--why", "linear_1"):
        done = run("explain", tmp_path / "old.json", "--graph", folder / "graph.json", *option, "--json")
        assert json.loads(done.stdout)["step_time_s"] == pytest.approx(document["step_time_s"] / 2)
        assert "this plan was costed by another release" in done.stderr


def earlier(folder: Path, tmp_path: Path) -> dict[str, Any]:
    """``earlier.json``: the plan as an earlier release wrote it."""
    document = earlier_plan(json.loads((folder / "plan.json").read_text()))
    (tmp_path / "earlier.json").write_text(json.dumps(document))
    return document


def test_a_plan_of_an_earlier_release_is_explained(
    run: Run, folder: Path, plan: dict[str, Any], tmp_path: Path
) -> None:
    document = earlier(folder, tmp_path)
    done = run("explain", tmp_path / "earlier.json", "--graph", folder / "graph.json")
    assert done.exit_code == 0 and OLDER_OBJECTIVE_WARNING in done.stderr
    for text in (
        f"an earlier release wrote this as {document['plan_id']}",
        "no bound: an earlier release searched this plan",
        seconds(plan["step_time_s"]),
        "hidden communication",
    ):
        assert text in " ".join(done.stdout.split())
    found = json.loads(run("explain", tmp_path / "earlier.json", "--json").stdout)
    assert (found["earlier_plan_id"], found["step_time_s"]) == (document["plan_id"], plan["step_time_s"])
    why = run("explain", tmp_path / "earlier.json", "--graph", folder / "graph.json", "--why", "linear_1", "--json")
    assert json.loads(why.stdout)["plan_id"] == document["plan_id"]


def test_a_plan_of_an_earlier_release_is_one_to_begin_with(run: Run, folder: Path, tmp_path: Path) -> None:
    earlier(folder, tmp_path)
    asked = ("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64, "--json")
    done = run(*asked, "--start", tmp_path / "earlier.json")
    assert done.exit_code == 0 and json.loads(done.stdout)["schema"] == SCHEMA


def test_a_plan_of_an_earlier_release_is_compared(run: Run, folder: Path, plan: dict[str, Any], tmp_path: Path) -> None:
    earlier(folder, tmp_path)
    parts = {**plan["breakdown"], "exposed_comm_by_purpose_s": {"gradient_sync": 0.25}}
    document = {**plan, "breakdown": parts}
    (tmp_path / "plan.json").write_text(json.dumps({**document, "plan_id": plan_id_of(document)}))
    asked = ("diff", tmp_path / "earlier.json", tmp_path / "plan.json")
    found = json.loads(run(*asked, "--json").stdout)
    assert found["costs"]["step_time_s"] == {"a": plan["step_time_s"], "b": plan["step_time_s"]}
    assert found["exposed_comm_by_purpose_s"] == {"gradient_sync": {"a": None, "b": 0.25}}
    assert not found["same"] and not found["ops"]
    assert re.search(r"^ +gradient sync +- +250 ms +-", run(*asked).stdout, re.MULTILINE)
    assert "identical plans" in run("diff", tmp_path / "earlier.json", tmp_path / "earlier.json").stdout


def test_a_front_is_shown_printed_and_written_next_to_the_plan(run: Run, folder: Path, tmp_path: Path) -> None:
    start = (
        "plan",
        folder / "graph.json",
        "--cluster",
        "local:2x2",
        "--global-batch",
        512,
        "--pareto",
        3,
        "--time-limit",
        4,
    )
    done = run(*start, "-o", tmp_path / "plan.json", "--json")
    document = json.loads(done.stdout)
    assert document.keys() >= CONTRACT
    front = document["pareto"]
    assert front[0]["plan_id"] == document["plan_id"]
    assert len(front) > 1
    names = ["plan.json", *(f"plan.{at}.json" for at in range(2, len(front) + 1))]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name, entry in zip(names, front, strict=True):
        assert Plan.from_dict(json.loads((tmp_path / name).read_text())).plan_id == entry["plan_id"]
    shown = run(*start).stdout
    assert "step time and memory" in shown
    assert len(set(re.findall(r"plan-[0-9a-f]{16}", shown))) > 1  # perhaps others: time limits strike where they will


def test_stale_plans_of_an_earlier_longer_front_are_found(tmp_path: Path) -> None:
    for name in ("plan.json", "plan.2.json", "plan.3.json", "plan.5.json"):
        (tmp_path / name).write_text("{}")
    assert stale_front_files(tmp_path / "plan.json", 1) == [tmp_path / "plan.2.json", tmp_path / "plan.3.json"]
    assert stale_front_files(tmp_path / "plan.json", 3) == []


def test_diff_of_a_plan_with_itself_is_the_same(run: Run, folder: Path) -> None:
    found = json.loads(run("diff", folder / "plan.json", folder / "plan.json", "--json").stdout)
    assert found["same"] and not found["ops"] and not found["parameters"]
    assert "identical plans" in run("diff", folder / "plan.json", folder / "plan.json").stdout


def test_diff_lists_every_layout_that_differs(run: Run, folder: Path, plan: dict[str, Any]) -> None:
    found = json.loads(run("diff", folder / "plan.json", folder / "grid.json", "--json").stdout)
    other = json.loads((folder / "grid.json").read_text())
    assert found["same_graph"] and not found["same"]
    assert found["mesh"] == {"a": "g0:2", "b": "g0:2 x g1:2"}
    assert set(found["ops"]) == set(plan["strategy"]["signatures"])
    assert found["costs"]["step_time_s"] == {"a": plan["step_time_s"], "b": other["step_time_s"]}
    shown = run("diff", folder / "plan.json", folder / "grid.json").stdout
    assert "different ops" in shown and plan["plan_id"] in shown


def test_layouts_on_merged_axes_are_compared_with_those_on_single_ones(run: Run, folder: Path, tmp_path: Path) -> None:
    grid = Plan.from_dict(json.loads((folder / "grid.json").read_text()))
    (tmp_path / "dp.json").write_text(json.dumps(grid.with_baseline("data_parallel").to_dict()))
    found = json.loads(run("diff", folder / "grid.json", tmp_path / "dp.json", "--json").stdout)
    assert found["mesh"] == {"a": "g0:2 x g1:2", "b": "g0_g1:4"} and found["same_mesh"]
    assert {pair["b"] for pair in found["parameters"].values()} == {"B,B"}
    assert found["ops"]["linear_0"]["b"] == "S0,S0 B,B -> S0,S0"
    assert "the meshes differ" in run("diff", folder / "plan.json", folder / "grid.json").stdout


def test_estimate_counts_what_the_graph_holds(run: Run, folder: Path) -> None:
    found = json.loads(run("estimate", folder / "graph.json", "--cluster", "local:4", "--json").stdout)
    elements = 1024 * 512 + 128 * 1024
    assert found["num_parameters"] == elements
    assert found["flops_per_sample_forward"] == 2 * elements
    memory = found["memory_breakdown"]
    # At its fullest, backward has linear_1's gradient, makes linear_0's, and still has the gradient of relu's input.
    assert (memory["parameters"], memory["optimizer"]) == (4 * elements, 8 * elements)
    assert memory["gradients"] + memory["temporaries"] == 4 * elements + 4 * 1024 + 4  # the loss
    assert memory["activations"] == 0  # relu's output is no longer kept
    assert found["memory_bytes_one_device"] == sum(memory.values())
    assert found["cluster"]["least_memory_bytes_per_device"] == 4 * elements
    assert found["cluster"]["fits_one_device"]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_no_plan_needs_less_than_the_estimate(run: Run, folder: Path, optimizer: str) -> None:
    options = ("--cluster", "local:4", "--optimizer", optimizer, "--json")
    least = json.loads(run("estimate", folder / "graph.json", *options).stdout)["cluster"]
    found = json.loads(run("plan", folder / "graph.json", *options, "--global-batch", 64).stdout)
    assert found["memory_bytes_per_device"] >= least["least_memory_bytes_per_device"]


def test_estimate_shows_a_table(run: Run, folder: Path) -> None:
    shown = run("estimate", folder / "graph.json", "--cluster", "dgx-a100-80g:2").stdout
    assert "655,360" in shown and "75.74 GiB" in shown


@pytest.mark.parametrize("name", ["copy.json", "copy.json.gz"])
def test_capture_writes_a_graph_that_is_read_again(run: Run, folder: Path, tmp_path: Path, name: str) -> None:
    done = run("capture", folder / "graph.json", "-o", tmp_path / name, "--json")
    assert json.loads(done.stdout)["num_parameters"] == 655_360
    data = (tmp_path / name).read_bytes()
    document = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    assert document["name"] == "tiny"
    again = run("capture", tmp_path / name, "-o", tmp_path / "again.json", "--json")
    assert json.loads(again.stdout)["graph_hash"] == json.loads(done.stdout)["graph_hash"]


def test_export_writes_files_folders_and_standard_output(run: Run, folder: Path, tmp_path: Path) -> None:
    shown = run("export", folder / "plan.json", "--to", "dtensor").stdout
    compile(shown, "parallelize.py", "exec")
    assert run("export", folder / "plan.json", "--to", "dtensor", "-o", tmp_path).exit_code == 0
    assert run("export", folder / "plan.json", "--to", "dtensor", "-o", tmp_path / "mine.py").exit_code == 0
    assert (tmp_path / "parallelize.py").read_text() == (tmp_path / "mine.py").read_text() == shown


def test_export_of_a_baseline_in_json(run: Run, folder: Path) -> None:
    done = run(
        *("export", folder / "plan.json", "--to", "deepspeed", "--graph", folder / "graph.json"),
        *("--baseline", "data_parallel", "--json"),
    )
    files = json.loads(done.stdout)["files"]
    assert json.loads(files["deepspeed.json"])["train_batch_size"] == 64


def test_a_name_with_markup_is_shown_as_it_is(run: Run, folder: Path, tmp_path: Path) -> None:
    graph = json.loads((folder / "graph.json").read_text())
    (tmp_path / "graph.json").write_text(json.dumps({**graph, "name": "[red]tiny[/nope] :smile:"}))
    done = run("plan", tmp_path / "graph.json", "--cluster", "local:2", "--global-batch", 64, "-o", tmp_path / "p.json")
    assert "[red]tiny[/nope] :smile:" in done.stdout
    assert "[red]tiny[/nope] :smile:" in run("explain", tmp_path / "p.json").stdout
    assert Plan.from_dict(json.loads((tmp_path / "p.json").read_text())).document["model"].startswith("[red]")


def test_degrees_are_in_the_plan_and_contradictions_are_named(run: Run, folder: Path) -> None:
    start = ("plan", folder / "graph.json", "--cluster", "local:2x2", "--global-batch", 64, "--json")
    done = run(*start, "--data-parallel", 2, "--tensor-parallel", 2)
    options = json.loads(done.stdout)["options"]
    assert (options["data_parallel"], options["tensor_parallel"]) == (2, 2)
    staged = json.loads(run(*start, "--stages", 2, "--stage", "relu_0=1").stdout)
    assert staged["options"]["stage_of"] == {"relu_0": 1}
    assert staged["strategy"]["pipeline"]["cuts"][0] in ("relu_0", "linear_0")
    for given in ("relu_0", "relu_0=-1", "relu_0=two"):
        assert "NAME=K" in run(*start, "--stage", given).stderr
    refused = run(*start, "--data-parallel", 4, "--stages", 2, "--time-limit", 5)
    assert refused.exit_code == 3
    error = json.loads(refused.stdout)["error"]
    assert set(error["conflict"]) == {"data_parallel=4", "stages=2"}
    assert "exclude each other" in refused.stderr


def test_a_pinned_layout_is_in_the_plan_and_a_bad_pin_says_what_is_legal(run: Run, folder: Path) -> None:
    start = ("plan", folder / "graph.json", "--cluster", "local:2", "--global-batch", 64, "--json")
    names = json.loads(run(*start).stdout)["strategy"]["parameters"]
    name = next(iter(names))
    done = run(*start, "--pin", f"{name}=S0 -> B")
    document = json.loads(done.stdout)
    assert document["strategy"]["parameters"][name] == "S0"
    assert document["options"]["pins"] == {name: "S0 -> B"}
    for pin, words in (
        *((f"{name}=S7", "expected one of B, I"), (name, "NAME=LAYOUT"), (f"{name}=", "NAME=LAYOUT")),
        *(("=B", "NAME=LAYOUT"), ("no.such=B", "a parameter or op")),
    ):
        refused = run(*start, "--pin", pin)
        assert refused.exit_code == 2
        assert words in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("option", "values", "field"),
    [("--pin", ("B", "S0"), "pins.layers.0.weight"), ("--stage", ("0", "1"), "stage_of.layers.0.weight")],
)
def test_two_values_of_one_name_are_a_contradiction(
    run: Run, folder: Path, option: str, values: tuple[str, str], field: str
) -> None:
    start = ("plan", folder / "graph.json", "--cluster", "local:2x2", "--global-batch", 64, "--stages", 2, "--json")
    one, two = (f"layers.0.weight={value}" for value in values)
    refused = run(*start, option, one, option, two)
    assert refused.exit_code == 3
    error = json.loads(refused.stdout)["error"]
    assert (error["constraint"], error["limit"]) == (field, values[1])
    assert f"layers.0.weight is already assigned {values[0]}" in error["message"]
    assert run(*start, option, one, option, one).exit_code == 0


@pytest.mark.parametrize("names", ["none,megatron", "zero3, none"])
def test_baseline_none_cannot_be_combined_with_others(run: Run, names: str) -> None:
    done = run("plan", "zoo:mlp-small", "--cluster", "local:2", "--baselines", names)
    assert done.exit_code == 2 and f"baselines: {names!r} is invalid: none cannot be combined" in done.stderr


@pytest.mark.parametrize("points", ["0", "1", "65"])
def test_a_front_has_two_plans_at_the_least(run: Run, points: str) -> None:
    done = run("plan", "zoo:mlp-small", "--cluster", "local:2", "--pareto", points)
    assert done.exit_code == 2
    assert done.stderr == f"error: pareto: {points} is invalid: expected an integer in [2, 64]\n"
