"""Effect of the gradient bucket size: ``python -m benchmarks.message_sizes [--json]``.

Plans are made with buckets of up to 25 MiB, and their strategies are costed with other sizes: change of step time and
memory in percent of the value at 25 MiB. ``--calibration FILE --model MODEL`` uses a measured cluster, where ops and
collectives slow each other down.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from autosbp.api import Calibration, Cluster, PlanOptions, capture, load_cluster, make_plan, predict_costs
from autosbp.plan.plan import BUCKET_BYTES, Costs, Strategy
from autosbp.utils.json_io import read_file

MIB = 2**20
SIZES = (*(2**at * MIB for at in range(5)), BUCKET_BYTES, 50 * MIB, 100 * MIB, 200 * MIB, 400 * MIB, 2**40)
"""Bytes. The last size puts everything that may be reduced together into one bucket."""
DATA_PARALLEL: dict[str, Any] = {"stages": 1, "storage": "as_used"}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a cluster and plan options."""

    model: str
    cluster: str
    options: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("zoo:gpt2-demo", "local:2x2", {"global_batch": 16}),
    Case("zoo:gpt2-demo", "local:2x2", {"global_batch": 16, "data_parallel": 4, **DATA_PARALLEL}),
    Case("zoo:gpt2-demo", "emulated:2x2", {"global_batch": 16, "data_parallel": 4, **DATA_PARALLEL}),
    Case("zoo:gpt2", "dgx-a100-80g:1", {"global_batch": 128, "data_parallel": 8, **DATA_PARALLEL}),
    Case("zoo:gpt2", "dgx-a100-80g:4", {"global_batch": 512}),
    Case("zoo:vgg13", "piz-daint:16", {"global_batch": 512}),
    Case("zoo:resnet50", "dgx-a100-80g:4", {"global_batch": 512}),
    Case("zoo:gpt2-1.5b", "dgx-a100-80g:2", {"global_batch": 128}),
    Case("zoo:gpt2-1.5b", "dgx-a100-80g:2", {"global_batch": 128, "stages": 1, "storage": "use"}),
    Case("zoo:gpt2-1.5b", "gcp-a100-16:2", {"global_batch": 256}),
    Case("zoo:llama-7b", "dgx-a100-80g:4", {"global_batch": 256}),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket size: changes relative to 25 MiB, in percent."""

    bucket_bytes: int
    step_percent: float
    memory_percent: float


@dataclass(frozen=True, slots=True)
class Result:
    """A plan's strategy under all bucket sizes."""

    model: str
    cluster: str
    options: dict[str, Any]
    step_time_s: float
    rows: tuple[Row, ...]


def measure(case: Case, cluster: Cluster, calibration: Calibration | None, sizes: Sequence[int] = SIZES) -> Result:
    graph = capture(case.model)
    plan = make_plan(graph, cluster, calibration, PlanOptions(baselines=(), **case.options))

    def costs(strategy: Strategy) -> Costs:
        return predict_costs(graph, strategy, cluster, calibration)

    usual = costs(plan.strategy)
    rows = tuple(_row(size, costs(replace(plan.strategy, bucket_bytes=size)), usual) for size in sizes)
    return Result(*(case.model, cluster.name, case.options, usual.step_time_s, rows))


def _row(size: int, found: Costs, usual: Costs) -> Row:
    return Row(
        size,
        100 * (found.step_time_s / usual.step_time_s - 1),
        100 * (found.memory_bytes_per_device / usual.memory_bytes_per_device - 1),
    )


def show(result: Result) -> None:
    asked = ", ".join(f"{name} {value}" for name, value in result.options.items())
    print(f"{result.model} on {result.cluster} ({asked}): {result.step_time_s:.4g} s")
    for row in result.rows:
        size = "all" if row.bucket_bytes == SIZES[-1] else f"{row.bucket_bytes // MIB} MiB"
        print(f"{size:>10}  step {row.step_percent:+.3f} %  memory {row.memory_percent:+.2f} %")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.message_sizes", description=__doc__)
    parser.add_argument(
        "--calibration", type=Path, help="of autosbp calibrate; the cluster is the one it was measured on"
    )
    parser.add_argument("--model", default="zoo:gpt2-demo", help="with --calibration")
    parser.add_argument("--global-batch", type=int, default=16, help="with --calibration")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    asked: list[tuple[Case, Cluster, Calibration | None]] = [(case, load_cluster(case.cluster), None) for case in CASES]
    if arguments.calibration is not None:
        calibration = Calibration.from_dict(read_file(arguments.calibration))
        there, batch = calibration.cluster, arguments.global_batch
        whole = {"global_batch": batch, "data_parallel": there.num_devices, **DATA_PARALLEL}
        cases = [Case(arguments.model, there.name, options) for options in ({"global_batch": batch}, whole)]
        asked = [(case, there, calibration) for case in cases]
    results = []
    for each in asked:
        results.append(measure(*each))
        if not arguments.json:
            show(results[-1])
    if arguments.json:
        print(json.dumps({"benchmark": "message_sizes", "results": [asdict(result) for result in results]}))


if __name__ == "__main__":
    main()
