"""Rank script of a ``TrialPool``: trains under one strategy after another.

The launcher sets torchrun's environment variables:

python -m autosbp.tuning.pool_worker FOLDER
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.determinism import require_determinism
from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.pipeline import make_trainer
from autosbp.executor.single_device_reference import SingleDeviceReference, reference_batch_size, reference_device
from autosbp.executor.training import random_batch
from autosbp.executor.trial_metrics import quartiles, relative_differences
from autosbp.executor.trial_worker import COLLECTIVE_TIMEOUT, REFERENCE_STEPS, import_libraries, log_line
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.graph.to_fx import check_shapes
from autosbp.launch.json_gather import gather_json
from autosbp.plan.plan import Strategy
from autosbp.tuning.trial_pool import READY, STOP, write_atomically
from autosbp.utils.json_io import read_file
from autosbp.utils.processes import bind_to_cores, exit_rank

POLL_S = 0.005


def main() -> None:
    folder = Path(sys.argv[1])
    setup = read_file(folder / "setup.json")
    import_libraries(setup["libraries"])
    graph = from_dict(setup["graph"])
    check_shapes(graph.bound_at_capture)
    if setup["deterministic"]:
        require_determinism()
    if setup["tf32"]:
        torch.set_float32_matmul_precision("high")
    rank, cuda = int(os.environ["RANK"]), setup["device"] == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        bind_to_cores(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group("nccl" if cuda else "gloo", timeout=COLLECTIVE_TIMEOUT)
    trials = Trials(graph, setup["seed"], device)
    if rank == 0:
        write_atomically(folder / READY, {})
    for number, request in requests(folder):
        log_line(rank, f"trial {number}")
        result = trials.run(request)
        if rank == 0:
            write_atomically(folder / f"result-{number}.json", result)
    exit_rank()


def requests(folder: Path) -> Iterator[tuple[int, Any]]:
    """Numbers and contents of request files, in order, until the folder has a file ``stop``."""
    for number in itertools.count():
        path = folder / f"request-{number}.json"
        while not path.exists():
            if (folder / STOP).exists():
                return
            time.sleep(POLL_S)
        yield number, read_file(path)


class Trials:
    """Runs trials of one graph. Parameters, batches and reference losses are computed once."""

    def __init__(self, graph: LogicalGraph, seed: int, device: torch.device) -> None:
        self.graph, self.seed, self.device = graph, seed, device
        self.parameters = initial_parameters(graph, seed)
        self._batches: dict[int, dict[str, torch.Tensor]] = {}
        self._references: dict[tuple[int, int, str], tuple[list[float], float]] = {}

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Train under the request's strategy; the result is complete on rank 0."""
        strategy = Strategy.from_dict(request["strategy"])
        batch = self._batch(strategy.global_batch)
        trainer = make_trainer(self.graph, strategy, self.parameters, device=self.device)
        read = {leaf.name for part in trainer.chunks for leaf in part.graph.inputs}
        on_device = {name: tensor.to(self.device) for name, tensor in batch.items() if name in read}
        begun = time.perf_counter()
        losses = [float(trainer.step(on_device))]
        matches = trainer.issued() == trainer.expected()
        losses += [float(trainer.step(on_device)) for _ in range(request["warmup"] - 1)]
        times: list[float] = []
        while len(times) < request["steps"]:
            spent_s = time.perf_counter() - begun
            if self._all_reduce_any(bool(times) and spent_s >= request["max_s"]):  # also synchronizes the ranks
                break
            started = time.perf_counter()
            losses.append(float(trainer.step(on_device)))
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        del trainer, on_device
        gc.collect()
        everyone = gather_json({"times_s": times, "matches": matches}, self.device)
        slowest = [max(each) for each in zip(*(rank["times_s"] for rank in everyone), strict=True)]
        low, median, high = quartiles(slowest)
        return {
            "step_time_s": median,
            "iqr_s": high - low,
            "times_s": slowest,
            "losses": losses,
            "collectives_match": all(rank["matches"] for rank in everyone),
            **(self._against_reference(strategy, losses) if dist.get_rank() == 0 else {}),
        }

    def _all_reduce_any(self, holds: bool) -> bool:
        """Whether ``holds`` is true on any rank."""
        found = torch.tensor(float(holds), device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def _batch(self, global_batch: int) -> dict[str, torch.Tensor]:
        if global_batch not in self._batches:
            self._batches[global_batch] = random_batch(self.graph, global_batch, self.seed)
        return self._batches[global_batch]

    def _against_reference(self, strategy: Strategy, losses: list[float]) -> dict[str, float]:
        """Largest relative difference from the losses of one device, and the spread of its loss over random seeds."""
        where, room = reference_device(self.graph, strategy.micro_batch, self.device)
        size = reference_batch_size(self.graph, strategy.global_batch, strategy.micro_batch, room)
        key = strategy.global_batch, size, strategy.optimizer
        if key not in self._references:
            reference = SingleDeviceReference(
                self.graph, self.parameters, global_batch=strategy.global_batch, micro_batch=size,
                optimizer=strategy.optimizer, device=where,
            )  # fmt: skip
            batch = self._batch(strategy.global_batch)
            spread = reference.loss_spread(batch)
            self._references[key] = [float(reference.step(batch)) for _ in range(REFERENCE_STEPS)], spread
        wanted, spread = self._references[key]
        return {"loss_difference": max(relative_differences(losses, wanted)), "loss_spread": spread}


if __name__ == "__main__":
    main()
