"""The rank script of a trial: train under the plan's strategy and measure. Started by torchrun, reads top to bottom.

python -m autosbp.executor.worker REQUEST.json RESULT.json
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.determinism import digest, require_determinism
from autosbp.executor.measure import quartiles, step_memory
from autosbp.executor.parameters import full_parameters
from autosbp.executor.pipeline import make_trainer
from autosbp.executor.reference import Reference, fitting_batch, reference_device
from autosbp.executor.training import random_batch
from autosbp.gathering import gather_json
from autosbp.graph.serialize import from_dict
from autosbp.plan import Plan
from autosbp.processes import end_rank, keep_to_cores
from autosbp.sbp.whole_batch import difference

COLLECTIVE_TIMEOUT = timedelta(minutes=5)
REFERENCE_STEPS = 3


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    for module in request["libraries"]:
        importlib.import_module(module)
    plan, graph = Plan.from_dict(request["plan"]), from_dict(request["graph"])
    rank = int(os.environ["RANK"])
    deterministic = bool(plan.document.get("options", {}).get("deterministic", False))
    if deterministic:
        require_determinism()
    cuda = plan.cluster.device.kind == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        # The host has nothing else to do; an optimizer that is on it has.
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"]), 1))
    else:
        keep_to_cores(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group("nccl" if cuda else "gloo", timeout=COLLECTIVE_TIMEOUT)
    strategy = plan.strategy
    parameters = full_parameters(graph, request["seed"])
    batch = random_batch(graph, strategy.global_batch, request["seed"])
    trainer = make_trainer(graph, strategy, parameters, device=device)
    read = {leaf.name for part in trainer.chunks for leaf in part.graph.inputs}
    on_device = {name: tensor.to(device) for name, tensor in batch.items() if name in read}
    say(rank, f"lowered: {len(trainer.charged)} collectives charged a step")

    # One step is not timed, but what it issued is compared.
    losses = [float(trainer.step(on_device))]
    issued, expected = trainer.issued(), trainer.expected()
    for _ in range(request["warmup"] - 1):
        losses.append(float(trainer.step(on_device)))

    times = []
    for at in range(request["steps"]):
        dist.barrier()
        started = time.perf_counter()
        losses.append(float(trainer.step(on_device)))
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
        if at % 5 == 0:
            say(rank, f"step {at}: {times[-1] * 1e3:.1f} ms, loss {losses[-1]:.6f}")
    memory = step_memory(trainer, on_device)
    trainer.issued()

    mine: dict[str, Any] = {
        "times_s": times,
        "collectives_match": issued == expected,
        "memory_bytes": memory.peak,
        "saved_bytes": memory.saved,
        "peak_memory_bytes": memory.peak if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "collectives": [[call.kind, call.num_bytes, list(call.ranks)] for call in issued],
    }
    if deterministic:
        mine["parameters_digest"] = digest(trainer.locals)
    everyone = gather_json(mine, device)
    if rank == 0:
        del trainer, on_device  # one device has seldom room for both
        gc.collect()
        where, room = reference_device(graph, strategy.micro_batch, device)
        size = fitting_batch(graph, strategy.global_batch, strategy.micro_batch, room)
        reference = Reference(
            graph, parameters, global_batch=strategy.global_batch, micro_batch=size, optimizer=strategy.optimizer,
            device=where,
        )  # fmt: skip
        wanted = [float(reference.step(batch)) for _ in range(min(REFERENCE_STEPS, len(losses)))]
        result = report(plan, everyone, losses, wanted)
        result["differs_as"] = difference(graph, strategy.global_batch, strategy.micro_batch)
        if size != strategy.global_batch:
            text = f"One device has no room for the whole batch: its losses are those of microbatches of {size}."
            result["differs_as"].append(text)
        Path(sys.argv[2]).write_text(json.dumps(result, allow_nan=False))
    end_rank()


def report(plan: Plan, everyone: list[dict[str, Any]], losses: list[float], wanted: list[float]) -> dict[str, Any]:
    """The trial's result: a step takes as long as its slowest rank."""
    times = [max(rank["times_s"][at] for rank in everyone) for at in range(len(everyone[0]["times_s"]))]
    low, median, high = quartiles(times)
    difference = max(abs(got - want) / max(abs(want), 1e-12) for got, want in zip(losses, wanted, strict=False))
    predicted = plan.document
    return {
        "plan_id": plan.plan_id,
        "num_ranks": len(everyone),
        "step_time_s": {"median": median, "iqr": high - low, "min": min(times), "max": max(times), "steps": len(times)},
        "predicted_step_time_s": predicted["step_time_s"],
        "memory_bytes": max(rank["memory_bytes"] for rank in everyone),
        "predicted_memory_bytes": predicted["memory_bytes_per_device"],
        "saved_bytes": max(rank["saved_bytes"] for rank in everyone),
        "peak_memory_bytes": max(rank["peak_memory_bytes"] for rank in everyone),
        "comm_bytes_per_device": predicted["comm_bytes_per_device"],
        "losses": losses,
        "reference_losses": wanted,
        "loss_difference": difference,
        "collectives_match": all(rank["collectives_match"] for rank in everyone),
        "collectives": everyone[0]["collectives"],
        "times_s": times,
        "torch": torch.__version__,
        # Of plans that require determinism: each rank's parameters after the last step, the same in every run.
        **(
            {"parameters_digests": digests}
            if all(digests := [one.get("parameters_digest") for one in everyone])
            else {}
        ),
    }


def say(rank: int, text: str) -> None:
    """One line of the trial's log, from rank 0."""
    if rank == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
