"""GPT-2 on the plays of Shakespeare: ``python -m benchmarks.train_gpt2 [CASE...] [--json] [-o FILE.json] [--chart FILE.svg]``.

Trains the model of ``examples/train_gpt2.py`` for 300 steps: on one device with a plain PyTorch loop, and with ``autosbp
train`` on 4 ranks under three plans. The run on the data x tensor grid is killed (SIGKILL) twice and resumed; another run
resumes from one of its checkpoints on 2 ranks. All use the same samples in the same order, in float32. With names of
cases, only these run, and the others are read from FILE.json and the folder of runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from autosbp.api import PlanOptions, capture, capture_module, load_cluster, make_plan
from autosbp.training import GlobalBatchSampler, TrainerSettings, load_dataset
from benchmarks.train_gpt2._chart import chart
from examples.train_gpt2 import SETTINGS, STEPS, TEXT, factory

GLOBAL_BATCH, CHECKPOINT_EVERY, RESUMED_AT = 16, 50, 150
ONE_DEVICE, MODEL = "one device", "examples.train_gpt2:factory"
Losses = list[float]


@dataclass(frozen=True, slots=True)
class Case:
    """A run under a plan.

    Args:
        cluster: cluster of the plan, with one rank per device.
        killed_at: steps after which the run is killed.
        start: case whose checkpoint of step ``RESUMED_AT`` this one resumes from; "" to start at step 0.
    """

    cluster: str
    constraints: Mapping[str, Any]
    killed_at: tuple[int, ...] = ()
    start: str = ""


CASES: Mapping[str, Case] = {
    "2 x 2 grid, killed twice": Case(
        "local:2x2", {"stages": 1, "data_parallel": 2, "tensor_parallel": 2}, killed_at=(100, 200)
    ),
    "ZeRO-3": Case("local:2x2", {"stages": 1, "data_parallel": 4, "storage": "use"}),
    "pipeline": Case("local:2x2", {"stages": 2, "micro_batch": 4, "schedules": ("1f1b",)}),
    "resumed on 2 ranks": Case("local:2", {"stages": 1, "data_parallel": 2}, start="2 x 2 grid, killed twice"),
}


def on_one_device(settings: TrainerSettings) -> Losses:
    """Losses of a plain PyTorch loop with the same model, data, optimizer and learning rates."""
    torch.manual_seed(settings.seed)
    module, example = factory()
    dataset = load_dataset([str(TEXT)], capture_module(module, example, name="gpt2", check=False), module)
    sampler = GlobalBatchSampler(len(dataset), GLOBAL_BATCH, range(GLOBAL_BATCH), seed=settings.seed)
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [each for each in parameters if each.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
        ]
    )
    losses: Losses = []
    while True:
        for batch in DataLoader(dataset, batch_sampler=sampler):
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(len(losses) + 1)
            loss = module(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            if len(losses) == settings.steps:
                return losses


def under_a_plan(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """Losses of a case by step, and seconds per step."""
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    plan = own / "plan.json"
    plan.write_text(json.dumps(_plan(case)))
    if case.start:
        shutil.copytree(folder / case.start / f"step-{RESUMED_AT}", own / f"step-{RESUMED_AT}", dirs_exist_ok=True)
    for step in case.killed_at:
        _train_until_killed(plan, own, step)
    done = _train(plan, own)
    _, said = done.communicate()
    if done.returncode:
        sys.exit(f"{name}: {said}")
    lines = _lines(own)
    median = sorted(line["step_time_s"] for line in lines)[len(lines) // 2]
    return {"losses": {line["step"]: line["loss"] for line in lines}, "step_time_s": median}


def _plan(case: Case) -> dict[str, Any]:
    options = PlanOptions(global_batch=GLOBAL_BATCH, baselines=(), precision="fp32", **case.constraints)
    return make_plan(capture(MODEL, check=False), load_cluster(case.cluster), None, options).document


def _train(plan: Path, folder: Path) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-m", "autosbp", "train", str(plan), "--model", MODEL),
        *("--data", str(TEXT), "--folder", str(folder), "--steps", str(STEPS), "--log-every", "1", "--keep", "9"),
        *("--learning-rate", str(SETTINGS.learning_rate), "--warmup", str(SETTINGS.warmup)),
        *("--checkpoint-every", str(CHECKPOINT_EVERY)),
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def _train_until_killed(plan: Path, folder: Path, step: int) -> None:
    running = _train(plan, folder)
    while running.poll() is None and max((line["step"] for line in _lines(folder)), default=0) < step:
        time.sleep(0.05)
    if running.poll() is not None:
        sys.exit(f"the run ended before step {step}: {running.communicate()[1]}")
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()


def _lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@dataclass(slots=True)
class Result:
    """Losses of all cases, in the form of the benchmark's file."""

    cases: dict[str, dict[str, Any]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The file, with each case's largest relative difference from one device, where that is known."""
        wanted = self.cases.get(ONE_DEVICE, {}).get("losses")
        cases = {}
        for name in (each for each in (ONE_DEVICE, *CASES) if each in self.cases):
            case = self.cases[name]
            cases[name] = dict(case)
            if wanted:
                difference = max(abs(loss / wanted[step] - 1) for step, loss in case["losses"].items())
                cases[name]["largest_difference"] = difference
        return {"benchmark": "train_gpt2", "machine": _machine(), "steps": STEPS, "cases": cases}


def _machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "processor": platform.processor() or platform.machine(), "torch": torch.__version__}


def _earlier(path: Path | None) -> Result:
    if path is None or not path.exists():
        return Result()
    cases = json.loads(path.read_text())["cases"]
    return Result(
        {name: {**each, "losses": {int(at): one for at, one in each["losses"].items()}} for name, each in cases.items()}
    )


def run(names: Sequence[str], folder: Path, output: Path | None) -> dict[str, Any]:
    """Run these cases, or all; returns the document with all known cases."""
    result = _earlier(output) if names else Result()
    for name in names or (ONE_DEVICE, *CASES):
        begin_s = time.perf_counter()
        if name == ONE_DEVICE:
            losses = on_one_device(SETTINGS)
            case = {"losses": dict(enumerate(losses, 1)), "step_time_s": (time.perf_counter() - begin_s) / STEPS}
        else:
            case = under_a_plan(name, CASES[name], folder)
        result.cases[name] = case
        sys.stderr.write(f"{name}: {time.perf_counter() - begin_s:.0f} s\n")
    return result.document()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_gpt2", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"only these of: {ONE_DEVICE}; {'; '.join(CASES)}")
    parser.add_argument("--folder", type=Path, default=Path("runs/train_gpt2"), help="of the runs")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg")
    arguments = parser.parse_args()
    if not arguments.cases:
        shutil.rmtree(arguments.folder, ignore_errors=True)
    document = run(arguments.cases, arguments.folder, arguments.output)
    for name, case in document["cases"].items():
        if "largest_difference" not in case:
            continue
        last = case["losses"][STEPS]
        print(f"{name:26} loss {last:.5f}, {case['step_time_s'] * 1e3:6.1f} ms a step, at most "
              f"{case['largest_difference']:.1e} from one device")  # fmt: skip
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.chart is not None and len(document["cases"]) > 1:
        arguments.chart.write_text(chart(document["cases"]))
    if arguments.json:
        print(json.dumps(document))


if __name__ == "__main__":
    main()
