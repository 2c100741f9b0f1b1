"""Rank script: trains all strategies alternately, so that other load on the machine affects all of them equally.

python -m benchmarks.prediction._ranks REQUEST.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.pipeline import PipelineTrainer
from autosbp.executor.pipeline._groups import StageGroups
from autosbp.executor.runtime import Runtime
from autosbp.executor.training import Trainer, random_batch
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.utils.processes import exit_rank


class Trainers:
    """Creates trainers; strategies on the same mesh share process groups."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph, self.device = graph, torch.device("cpu")
        self.parameters = initial_parameters(graph, 0)
        self.runtimes: dict[Mesh, Runtime] = {}
        self.stages: dict[tuple[Mesh, int], StageGroups] = {}

    def make(self, strategy: Strategy) -> Trainer | PipelineTrainer:
        rank, mesh = dist.get_rank(), strategy.mesh
        if strategy.pipeline is None:
            if mesh not in self.runtimes:
                self.runtimes[mesh] = Runtime(mesh, rank, self.device)
            runtime = self.runtimes[mesh]
            return Trainer(self.graph, strategy, self.parameters, device=self.device, runtime=runtime)
        key = mesh, strategy.pipeline.num_stages
        if key not in self.stages:
            self.stages[key] = StageGroups(*key, rank)
        return PipelineTrainer(self.graph, strategy, self.parameters, device=self.device, groups=self.stages[key])


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    graph = from_dict(request["graph"])
    strategies = [Strategy.from_dict(each) for each in request["strategies"]]
    batch = random_batch(graph, strategies[0].global_batch, 0)
    makers = Trainers(graph)
    trainers = [makers.make(strategy) for strategy in strategies]
    seconds: list[list[float]] = [[] for _ in trainers]
    matches = [True] * len(trainers)
    for turn in range(request["rounds"]):
        for at, trainer in enumerate(trainers):
            if isinstance(trainer, Trainer):
                trainer.runtime.gathers = trainer.gathers
            trainer.step(batch)  # warm the caches for this strategy
            trainer.issued()
            dist.barrier()
            started = time.perf_counter()
            trainer.step(batch)
            passed = time.perf_counter() - started
            matches[at] = matches[at] and trainer.issued() == trainer.expected()
            seconds[at].append(passed)
        if dist.get_rank() == 0:
            sys.stdout.write(f"round {turn + 1} of {request['rounds']}\n")
            sys.stdout.flush()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {"seconds": seconds, "matches": matches})
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(everyone))
    exit_rank()


if __name__ == "__main__":
    main()
