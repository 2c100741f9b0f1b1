"""Rank script: trains the models of ``state_models`` under plans, and reports and exports their state."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import autosbp
from autosbp.training import Checkpoints, ParallelModule, export_safetensors
from autosbp.utils.processes import exit_rank
from tests.training.state_models import MODELS, STEPS, AverageWeights, batch


def whole(tensor: torch.Tensor) -> Any:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).double().tolist()


def loss_of(model: ParallelModule, case: dict[str, Any]) -> float:
    model.eval()
    found = float(model(**batch(case["model"], 99, case["dtype"])))
    model.train()
    return found


def trained(case: dict[str, Any], file: Path) -> dict[str, Any]:
    """Trains as one device does, and leaves the weights in ``file``."""
    module, example = MODELS[case["model"]](case["dtype"])
    model = autosbp.parallelize(module, case["plan"], example=example)
    optimizer = torch.optim.SGD([{"params": list(model.parameters())}], lr=0.1)
    average, losses = AverageWeights(model.parameters()), []
    for step in range(STEPS):
        loss = model(**batch(case["model"], step, case["dtype"]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update()
        losses.append(float(loss.detach()))
    report: dict[str, Any] = {
        "losses": losses,
        "state": {name: whole(each) for name, each in model.state_dict().items()},
        "evaluated": loss_of(model, case),
    }
    export_safetensors(model, file)
    with torch.no_grad():
        for parameter, mean in zip(average.parameters, average.average, strict=True):
            parameter.copy_(mean)
    return {**report, "averaged": loss_of(model, case)}


def scaled(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Trains in float16 from a scale that overflows, stores and loads the run."""
    module, example = MODELS[case["model"]](case["dtype"])
    model = autosbp.parallelize(module, case["plan"], example=example)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = model.grad_scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": case["scale"], "_growth_tracker": 7})
    steps = []
    for step in range(case["steps"]):
        before = [whole(each) for each in model.parameters()]
        loss = model(**batch(case["model"], step % STEPS, case["dtype"]))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = float(model.clip_grad_norm_(1e9))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        changed = before != [whole(each) for each in model.parameters()]
        steps.append({"loss": float(loss.detach()), "norm": norm, "changed": changed, "scale": scaler.get_scale()})
    checkpoints = Checkpoints(folder, model, optimizer)
    checkpoints.save(case["steps"], wait=True)
    kept, tracked = scaler.get_scale(), scaler._get_growth_tracker()
    scaler.update(1.0)
    checkpoints.load()
    loaded = scaler.get_scale() == kept and scaler._get_growth_tracker() == tracked
    return {"steps": [{**each, "norm": repr(each["norm"])} for each in steps], "loaded": loaded}


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    reports = {}
    for name, case in request.items():
        run = scaled if "scale" in case else trained
        reports[name] = run(case, Path(sys.argv[1]).parent / f"{name}.safetensors")
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, reports)
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(every))
    exit_rank()


if __name__ == "__main__":
    main()
