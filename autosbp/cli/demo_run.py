"""``autosbp demo`` and ``make demo``: the full workflow on a real model, in a few minutes on two cores.

Starts the service with SQLite on a free port, stores a GPT-2 model, describes this machine as 2 "nodes" x 2 ranks (or
as its GPUs), calibrates, searches, runs the best plan and its baselines, and prints predicted and measured values.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from autosbp.client import Client, Job
from autosbp.cluster.hardware import presets
from autosbp.cluster.spec import Cluster, Device, Level, load_cluster
from autosbp.errors import ServiceError
from autosbp.utils.json_io import canonical

MODEL = "gpt2-demo"
GLOBAL_BATCH = 16
WIDE_MODEL, WIDE_BATCH = "faces-demo", 64
"""A model for which data parallelism is slow, because nearly all of its parameters are in the classifier head."""
START_S = 60.0
_READY = re.compile(r"ready at (http://\S+)")


def run_demo(out: Path, quick: bool = False) -> int:
    """Run the demo; its database, plan, calibration and logs go to ``out``. Returns the exit code.

    ``quick`` uses small batches and few measurements: it shows that every part works, but its times mean little.
    """
    began = time.monotonic()
    console = Console(soft_wrap=True)
    out.mkdir(parents=True, exist_ok=True)
    cluster = this_machine()
    steps = 20 if not quick else 3
    console.rule(f"autosbp demo: {MODEL} on {cluster.name}")
    with _service(out) as url, Client(url) as client:
        console.print(f"service    {url}  (API: {url}/openapi.json, database in {out})")
        model_id = client.post_model(zoo=MODEL)
        cluster_id = client.post_cluster(cluster)
        console.print(f"model      {model_id}  cluster {cluster_id}: {_describe(cluster)}")
        options = {"global_batch": 4 if quick else GLOBAL_BATCH}
        point_s, op_s, budget_s = (0.02, 0.002, 10.0) if quick else (0.1, 0.04, 150.0)
        boxes: dict[str, Any] = {"point_s": point_s, "op_s": op_s, "budget_s": budget_s}
        job = client.calibrate(cluster_id, [model_id], options, **boxes, variants=False)
        calibration_id = _wait(console, client, job, "calibrate").result["calibration_id"]
        (out / "calibration.json").write_bytes(canonical(client.get_calibration(calibration_id)))
        job = client.search(model_id, cluster_id, calibration_id, options)
        strategy_id = _wait(console, client, job, "search").result["strategy_id"]
        plan = client.get_strategy(strategy_id)
        (out / "plan.json").write_bytes(canonical(plan))
        trials: dict[str, Mapping[str, Any]] = {}
        for name in (None, *(name for name, entry in plan["baselines"].items() if entry["feasible"])):
            job = client.trial(strategy_id, baseline=name, steps=steps, warmup=2 if not quick else 1)
            done = _wait(console, client, job, f"trial {name or 'winner'}")
            trials[name or "autosbp"] = client.get_trial(done.result["trial_id"])
    console.print(_table(trials))
    if same := baselines_equal_to_plan(plan, trials):
        console.print(
            f"{' and '.join(same)}: same strategy as autosbp's, measured separately; times differ only by noise"
        )
    matched = all(trial["result"]["collectives_match"] for trial in trials.values())
    console.print(
        f"certificate: lower bound {plan['lower_bound_s'] * 1e3:.1f} ms, gap {plan['gap']:.2%} ({plan['searcher']})"
    )
    console.print(f"issued collectives equal predicted collectives on every rank: {'yes' if matched else 'NO'}")
    same_everywhere = _show_wide_model(console, cluster, quick)
    console.print(f"took {time.monotonic() - began:.0f} s. Next steps:")
    for line in (
        f"autosbp explain {out}/plan.json                      the layout of every tensor",
        f"autosbp plan zoo:{WIDE_MODEL} --cluster local:4 --global-batch {WIDE_BATCH} --verify",
        f"autosbp export {out}/plan.json --to dtensor           the plan as DTensor placements",
        f"AUTOSBP_DATA_DIR={out} autosbp serve                  this history, as pages and an API",
        "autosbp plan zoo:gpt3-175b --cluster dgx-a100-80g:128 --global-batch 1536",
    ):
        console.print(f"  {line}", highlight=False)
    return 0 if matched and same_everywhere else 1


def _show_wide_model(console: Console, cluster: Cluster, quick: bool) -> bool:
    """Plan the second model and measure it against its baselines; returns whether all collectives are as predicted."""
    from autosbp import api
    from autosbp.cli._verification import verify_plan

    model = "faces-small" if quick else WIDE_MODEL
    console.rule(f"a model for which data parallelism is slow: {model} on {cluster.name}")
    graph = api.capture(f"zoo:{model}")
    options = api.PlanOptions(global_batch=WIDE_BATCH, baselines=("data_parallel", "zero2", "megatron_lm"))
    with console.status("measuring the plan and its baselines ..."):
        plan = api.make_plan(graph, cluster, None, options)
        found = verify_plan(plan, graph, f"zoo:{model}", rounds=1 if quick else 2)
    found.show()
    return all(each.collectives_match for each in found.measured)


def baselines_equal_to_plan(plan: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Baselines whose strategy is identical to the plan's."""
    return [name for name in names if plan["baseline_strategies"].get(name) == plan["strategy"]]


def this_machine() -> Cluster:
    """This machine as a cluster.

    With two or more GPUs: one node, with a power of two of them. Else 2 "nodes" x 2 CPU ranks.
    """
    gpus = _gpus()
    if len(gpus) < 2:
        return load_cluster("local:2x2")
    name, memory = gpus[0]
    count = 1 << (len(gpus).bit_length() - 1)
    known = _preset_of(name, memory)
    if known is not None:
        return load_cluster(f"{known}:1x{count}")
    peak = {"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12}
    device = Device(name, "cuda", memory, peak, 1.5e12)
    return Cluster(f"this machine: {count} x {name}", (Level("g", count, 5e-6, 100e9),), device)


def _preset_of(name: str, memory: int) -> str | None:
    """The first cluster preset with a device of this name whose memory is within 10 % of ``memory`` bytes."""
    words = name.lower().replace("-", " ").split()
    for preset in presets()["clusters"]:
        device = load_cluster(preset).device
        alike = abs(device.memory_bytes / memory - 1) < 0.1
        if device.kind == "cuda" and device.name.partition("-")[0] in words and alike:
            return str(preset)
    return None


def _gpus() -> list[tuple[str, int]]:
    """(name, bytes) of each NVIDIA GPU that nvidia-smi lists."""
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rsplit(",", 1) for line in listing.splitlines() if "," in line]
    return [(name.strip(), int(megabytes) * 2**20) for name, megabytes in rows]


def _describe(cluster: Cluster) -> str:
    return " x ".join(f"{level.count} {level.name}" for level in cluster.levels) + f" of {cluster.device.name}"


@contextmanager
def _service(out: Path) -> Iterator[str]:
    """Start the service as a child process with its data in ``out``; yields its URL and terminates it afterwards."""
    log_path = out / "service.log"
    environment = {**os.environ, "AUTOSBP_DATA_DIR": str(out), "AUTOSBP_PORT": "0"}
    with log_path.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "autosbp.service"], stdout=log, stderr=log, env=environment)
    try:
        yield _url(process, log_path)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _url(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        match = _READY.search(log_path.read_text(errors="replace"))
        if match:
            return match.group(1)
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise ServiceError(
        f"the service did not start; last lines of {log_path}:\n{log_path.read_text(errors='replace')[-2000:]}"
    )


def _wait(console: Console, client: Client, job: Job, what: str) -> Job:
    began = time.monotonic()
    with console.status(f"{what} ...") as status:
        done = client.wait(job, on_progress=lambda seen: status.update(f"{what}: {seen.message or seen.state}"))
    console.print(f"{what:<10} done in {time.monotonic() - began:.1f} s")
    return done


def _table(trials: Mapping[str, Mapping[str, Any]]) -> Table:
    """Table of predicted and measured values, one strategy per row."""
    table = Table(title="one training step: predicted and measured", title_justify="left", box=box.SIMPLE_HEAD)
    table.caption = (
        "memory: MB per rank, predicted/measured; sent: MB per rank; loss: relative difference from one device"
    )
    table.add_column("strategy", no_wrap=True)
    for column in ("pred. ms", "meas. ms", "IQR", "error", "memory", "sent", "loss"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, trial in trials.items():
        predicted, result = trial["predicted"], trial["result"]
        measured = result["step_time_s"]
        table.add_row(
            name,
            f"{predicted['step_time_s'] * 1e3:.0f}",
            f"{measured['median'] * 1e3:.0f}",
            f"{measured['iqr'] * 1e3:.0f}",
            f"{predicted['step_time_s'] / measured['median'] - 1:+.0%}",
            f"{predicted['memory_bytes_per_device'] / 1e6:.0f}/{result['memory_bytes'] / 1e6:.0f}",
            f"{predicted['comm_bytes_per_device'] / 1e6:.1f}",
            "-" if result["loss_difference"] is None else f"{result['loss_difference']:.0e}",
        )
    return table
