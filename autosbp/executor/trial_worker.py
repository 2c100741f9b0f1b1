"""Rank script of a trial: train under the plan's strategy and measure. Reads top to bottom.

The launcher provides torchrun's environment:

python -m autosbp.executor.trial_worker REQUEST.json RESULT.json
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.determinism import digest, require_determinism
from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.pipeline import make_trainer
from autosbp.executor.rank_monitor import RankMonitor
from autosbp.executor.single_device_reference import SingleDeviceReference, reference_batch_size, reference_device
from autosbp.executor.training import random_batch
from autosbp.executor.trial_metrics import quartiles, relative_differences, step_memory
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import TF32
from autosbp.graph.serialize import from_dict
from autosbp.graph.to_fx import allow_op_libraries, check_shapes, loaded_libraries
from autosbp.launch.json_gather import gather_json
from autosbp.plan.plan import Plan
from autosbp.program.microbatch_loss import whole_batch_differences
from autosbp.utils.processes import bind_to_cores, exit_rank

COLLECTIVE_TIMEOUT = timedelta(minutes=5)
REFERENCE_STEPS = 3
LOSS_ROUNDING = {"float64": 1e-9, "float32": 1e-3, TF32: 1e-2, "float16": 1e-2, "bfloat16": 3e-2}
"""Largest relative difference of the first ``REFERENCE_STEPS`` losses from one device's, by dtype; sums in another order
differ by less than a tenth of it, a gradient that is missing or counted twice by more."""


def import_libraries(modules: Sequence[str]) -> None:
    """Import the modules that define the graph's custom ops, and allow the graph to name only those."""
    before = loaded_libraries()
    for module in modules:
        importlib.import_module(module)
    allow_op_libraries(loaded_libraries() - before)


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    import_libraries(request["libraries"])
    plan, graph = Plan.from_dict(request["plan"]), from_dict(request["graph"])
    check_shapes(graph.bound_at_capture)
    rank = int(os.environ["RANK"])
    deterministic = bool(plan.document.get("options", {}).get("deterministic", False))
    if deterministic:
        require_determinism()
    if plan.precision == TF32:
        torch.set_float32_matmul_precision("high")
    cuda = plan.cluster.device.kind == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        # An optimizer on the host gets all cores, shared among the ranks; nothing else there needs them.
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"]), 1))
    else:
        bind_to_cores(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group("nccl" if cuda else "gloo", timeout=COLLECTIVE_TIMEOUT)
    strategy = plan.strategy
    parameters = initial_parameters(graph, request["seed"])
    batch = random_batch(graph, strategy.global_batch, request["seed"])
    trainer = make_trainer(graph, strategy, parameters, device=device)
    monitor = RankMonitor(trainer.runtime).start()
    read = {leaf.name for part in trainer.chunks for leaf in part.graph.inputs}
    on_device = {name: tensor.to(device) for name, tensor in batch.items() if name in read}
    log_line(rank, f"lowered: {len(trainer.predicted_calls)} collectives per step predicted")

    # The first step is not timed, but its collectives are compared.
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
            log_line(rank, f"step {at}: {times[-1] * 1e3:.1f} ms, loss {losses[-1]:.6f}")
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
        del trainer, on_device  # one device rarely has room for both
        gc.collect()
        result = report(plan, everyone, losses)
        write_result(result)  # the measurement stays, should the reference run out of memory
        try:
            result |= compared_losses(plan, graph, parameters, batch, losses, device)
        except RuntimeError as error:  # of torch: out of memory among others
            result["differs_as"] = [f"The losses were not compared with one device: {error}"]
        write_result(result)
    monitor.stop()
    exit_rank()


def write_result(result: dict[str, Any]) -> None:
    """Write the result's file, whole or not at all."""
    path = Path(sys.argv[2])
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(result, allow_nan=False))
    draft.replace(path)


def compared_losses(
    plan: Plan,
    graph: LogicalGraph,
    parameters: Mapping[str, torch.Tensor],
    batch: Mapping[str, torch.Tensor],
    losses: Sequence[float],
    device: torch.device,
) -> dict[str, Any]:
    """The part of the result that training on one device tells."""
    strategy = plan.strategy
    where, room = reference_device(graph, strategy.micro_batch, device)
    size = reference_batch_size(graph, strategy.global_batch, strategy.micro_batch, room)
    reference = SingleDeviceReference(
        graph, parameters, global_batch=strategy.global_batch, micro_batch=size, optimizer=strategy.optimizer,
        device=where,
    )  # fmt: skip
    spread = reference.loss_spread(batch)
    wanted = [float(reference.step(batch)) for _ in range(min(REFERENCE_STEPS, len(losses)))]
    differs_as = whole_batch_differences(graph, strategy.global_batch, strategy.micro_batch)
    if strategy.sync is not None and not strategy.sync.is_exact:
        differs_as.append("Some gradients are synchronized with losses or late.")
    bound = None if differs_as else rounding_of_losses(plan, graph)
    if spread:
        text = f"dropout draws other numbers on one device, whose own losses differ by {spread:.2g} from seed to seed"
        differs_as.append(f"The difference is statistical: {text}.")
    if size != strategy.global_batch:
        text = f"The whole batch does not fit on one device: its losses were computed in microbatches of {size}."
        differs_as.append(text)
    return {
        "reference_losses": wanted,
        "loss_difference": max(relative_differences(losses, wanted)),
        "loss_bound": bound,
        "loss_spread": spread,
        "differs_as": differs_as,
    }


def rounding_of_losses(plan: Plan, graph: LogicalGraph) -> float:
    """Relative difference of a few steps' losses that rounding in the plan's precision explains."""
    dtypes = {each.meta.dtype for each in graph.trained} | ({TF32} if plan.precision == TF32 else set())
    return max((LOSS_ROUNDING[dtype] for dtype in dtypes), default=LOSS_ROUNDING["float32"])


def report(plan: Plan, everyone: list[dict[str, Any]], losses: list[float]) -> dict[str, Any]:
    """What the ranks measured: a step takes as long as its slowest rank. The losses are not compared with anything."""
    times = [max(rank["times_s"][at] for rank in everyone) for at in range(len(everyone[0]["times_s"]))]
    low, median, high = quartiles(times)
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
        "reference_losses": [],
        "loss_difference": None,
        "loss_bound": None,
        "loss_spread": 0.0,
        "differs_as": ["The losses were not compared with one device: that training did not end."],
        "collectives_match": all(rank["collectives_match"] for rank in everyone),
        "collectives": everyone[0]["collectives"],
        "times_s": times,
        "torch": torch.__version__,
        # If the plan requires determinism: each rank's parameters after the last step, the same in every run.
        **(
            {"parameters_digests": digests}
            if all(digests := [one.get("parameters_digest") for one in everyone])
            else {}
        ),
    }


def log_line(rank: int, text: str) -> None:
    """Print one line to the trial's log, from rank 0."""
    if rank == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
