"""One rank: all strategies are trained in turns, so that what else the machine does falls on all of them alike.

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

from autosbp.executor.parameters import full_parameters
from autosbp.executor.runtime import Runtime
from autosbp.executor.training import Trainer, random_batch
from autosbp.graph.serialize import from_dict
from autosbp.plan import Strategy
from autosbp.processes import end_rank
from autosbp.sbp.mesh import Mesh

WARMUP = 2


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    graph = from_dict(request["graph"])
    strategies = [Strategy.from_dict(each) for each in request["strategies"]]
    parameters = full_parameters(graph, 0)
    batch = random_batch(graph, strategies[0].global_batch, 0)
    runtimes: dict[Mesh, Runtime] = {}
    trainers = []
    for strategy in strategies:
        runtime = runtimes.setdefault(strategy.mesh, Runtime(strategy.mesh, dist.get_rank(), torch.device("cpu")))
        trainers.append(Trainer(graph, strategy, parameters, device=torch.device("cpu"), runtime=runtime))
    seconds: list[list[float]] = [[] for _ in trainers]
    matches = [True] * len(trainers)
    for turn in range(WARMUP + request["rounds"]):
        for at, trainer in enumerate(trainers):
            trainer.runtime.gathers = trainer.gathers
            trainer.step(batch)  # caches are those of a run of this strategy alone
            trainer.issued()
            dist.barrier()
            started = time.perf_counter()
            trainer.step(batch)
            passed = time.perf_counter() - started
            matches[at] = matches[at] and trainer.issued() == trainer.expected()
            if turn >= WARMUP:
                seconds[at].append(passed)
        if dist.get_rank() == 0:
            sys.stdout.write(f"round {turn + 1} of {WARMUP + request['rounds']}\n")
            sys.stdout.flush()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {"seconds": seconds, "matches": matches})
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(everyone))
    end_rank()


if __name__ == "__main__":
    main()
