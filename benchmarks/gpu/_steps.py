"""Time and memory of training steps on one device: predicted from the data sheet, from timed ops, and measured."""

from __future__ import annotations

import gc
import os
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from autosbp.api import PlanOptions, make_plan, predict_costs
from autosbp.executor.training import Trainer, random_batch
from autosbp.executor.trial_metrics import resident_tensors, step_memory
from benchmarks.gpu._models import model, one_device, random_parameters
from benchmarks.gpu._ops import calibrated

WARMUP, STEPS = 3, 10
BOX_S = 100.0
"""No case starts later than this many seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """Training case; ``recompute`` is as in ``PlanOptions``, ``offload`` runs the optimizer on the host."""

    model: str
    dtype: str
    batch: int
    micro: int | None = None
    recompute: int | None = 0
    offload: bool = False

    @property
    def label(self) -> str:
        ways = [f"in {self.batch // self.micro}"] if self.micro else []
        ways += ["recomputed"] if self.recompute else []
        ways += ["offloaded"] if self.offload else []
        return " ".join([self.model, self.dtype, str(self.batch), *ways])


CASES = {
    "cuda": (
        Case("gpt2", "float32", 8),
        Case("gpt2", "bfloat16", 16),
        Case("gpt2", "bfloat16", 16, micro=4),
        Case("gpt2", "bfloat16", 16, recompute=1),
        Case("gpt2", "bfloat16", 16, offload=True),
        Case("bert-large", "bfloat16", 16),
        Case("vit-large", "bfloat16", 32),
        Case("t5-large", "bfloat16", 8),
        Case("resnet50", "float32", 64),
        Case("vgg13", "float32", 32),
        Case("gpt2-1.5b", "bfloat16", 4, recompute=1),
    ),
    "cpu": (Case("mlp-small", "float32", 8), Case("gpt2-demo", "float32", 2, micro=1, recompute=1, offload=True)),
}


def step_row(case: Case, kind: str, preset: str) -> dict[str, Any]:
    """Predictions, measurements and errors of one case."""
    gc.collect()  # the previous case's trainer
    device, graph = torch.device(kind), model(case.model, case.dtype)
    options = PlanOptions(
        global_batch=case.batch, micro_batch=case.micro or case.batch, stages=1, recompute=case.recompute, baselines=()
    )
    sheet = one_device(kind, preset, curves=True)
    plan = make_plan(graph, sheet, None, options)
    strategy = replace(plan.strategy, offload=case.offload)
    timed = calibrated(graph, sheet, options, kind)
    predicted = {
        name: predict_costs(graph, strategy, sheet, calibration)
        for name, calibration in (("data_sheet", None), ("timed_ops", timed))
    }
    torch.set_num_threads(len(os.sched_getaffinity(0)) if case.offload and kind == "cuda" else 1)
    trainer = Trainer(graph, strategy, random_parameters(graph, device), device=device)
    batch = {name: each.to(device) for name, each in random_batch(graph, case.batch, 1).items()}
    timed_steps = [_step_s(trainer, batch) for _ in range(WARMUP + STEPS)][WARMUP:]
    asked, times = zip(*timed_steps, strict=True)
    memory = step_memory(trainer, batch)
    held = sum(each.untyped_storage().nbytes() for each in resident_tensors(trainer, batch))
    beside = torch.cuda.memory_allocated() - held if kind == "cuda" else 0
    step_s = statistics.median(times)
    return {
        "case": case.label,
        "step_s": step_s,
        "host_s": statistics.median(asked),
        "spread": (max(times) - min(times)) / step_s,
        **{f"{name}_s": costs.step_time_s for name, costs in predicted.items()},
        **{f"{name}_error": costs.step_time_s / step_s - 1 for name, costs in predicted.items()},
        "peak_bytes": memory.peak,
        "predicted_bytes": (found := predicted["data_sheet"].memory_bytes_per_device),
        "memory_error": found / memory.peak - 1,
        "saved_bytes": memory.saved,
        "beside_bytes": beside,
        "parts": dict(predicted["data_sheet"].memory),
    }


def _step_s(trainer: Trainer, batch: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Seconds until the host has launched a whole step, and until the step is done."""
    started = time.perf_counter()
    trainer.step(batch)
    asked_s = time.perf_counter() - started
    if trainer.runtime.device.type == "cuda":
        torch.cuda.synchronize()
    return asked_s, time.perf_counter() - started
