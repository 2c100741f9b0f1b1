"""Consistency of plans under extra constraints: ``python -m benchmarks.plans [--cases N] [--seed N] [--check] [--json]``.

``-o FILE`` writes the result into a file. The best plan of a large space is unknown, but plans of a space and of its
subspaces can be compared. Each case is a model, a cluster with random link and device speeds, and a batch, all derived
from its seed. It is planned
- without a memory limit, and with a limit that is some fraction of that plan's memory;
- under that limit with one constraint, such as a number of stages, or with all choices of the plan itself as
  constraints;
- with less memory, slower links or slower devices.

Every strategy found this way is a candidate of the first two searches. So it must not cost less than their lower bound
("bound"). Beyond ``SLACK`` it must not cost less than what they found ("slower"), and if it exists they must find a
strategy ("missed"). For this comparison, plans of slower clusters are costed on the original one. A plan's stated cost
must equal its strategy's cost ("cost"), and its memory must be within the limit ("memory"); only named errors may be
raised ("raised"), and no plan may take much longer than its time limit ("late").

Every case runs in its own process, independent of earlier cases.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from autosbp.api import LogicalGraph, PlanOptions, Strategy, capture, load_cluster, make_plan, predict_costs
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.hardware_scaling import scale_device_speed, scale_link_bandwidth
from autosbp.errors import InfeasibleError, UnsupportedError
from autosbp.plan.plan import Costs

SMALL = (
    "mlp-small", "vgg13-small", "resnet50-small", "wide-deep-small", "faces-small", "moe-small", "gpt2-demo", "llama-demo",
)  # fmt: skip
LARGE = (
    "gpt2",
    "gpt2-1.5b",
    "bert-large",
    "t5-large",
    "vit-large",
    "llama-7b",
    "resnet50",
    "vgg16",
    "wide-deep",
    "moe",
)
PRESETS = ("dgx-a100-40g:2", "dgx-a100-80g:2", "dgx-h100:2", "local:2x2")
NODES, GPUS, BATCHES = (1, 2, 4), (2, 4, 8), (8, 12, 16, 32, 48, 64, 128)
TIME_LIMIT_S, LATE_S = 20.0, 40.0
SLACK = 0.02
"""Relative slack for "slower": searches end by time, or with a gap that refers to the sum of their parts."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Case:
    """One random case.

    Attributes:
        links: factors on the preset's bandwidths, outermost level first.
        device: factor on the preset's device speed.
        memory: memory limit as a fraction of the unlimited plan's memory; None for no limit.
        num_asked: number of single constraints to try.
    """

    seed: int
    model: str
    preset: str
    nodes: int
    gpus: int
    links: tuple[float, float]
    device: float
    batch: int
    optimizer: str
    memory: float | None
    num_asked: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one plan.

    Attributes:
        asked: name of the constraint.
        options: plan options besides the case's own.
        step_time_s: cost on the cluster that the plan is for.
        comparable_s: cost on the case's cluster.
        error: why there is no strategy.
        fault: kind and description of a defect.
    """

    asked: str
    options: Mapping[str, Any]
    limit_bytes: int
    step_time_s: float | None = None
    comparable_s: float | None = None
    lower_bound_s: float | None = None
    memory_bytes: int | None = None
    strategy: Strategy | None = None
    seconds: float = 0.0
    error: str | None = None
    fault: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated property; ``kind`` is one of those in the module's docstring."""

    kind: str
    case: Case
    free: str
    asked: str
    detail: str


def make_case(seed: int, models: Sequence[str] = SMALL + LARGE) -> Case:
    """Derive a case from its seed and the models alone."""
    rng = random.Random(seed)
    nodes, gpus = rng.choice([each for each in ((a, b) for a in NODES for b in GPUS) if each[0] * each[1] > 2])
    return Case(
        seed,
        rng.choice(models),
        rng.choice(PRESETS),
        nodes,
        gpus,
        (10 ** rng.uniform(-2, 0.5), 10 ** rng.uniform(-2, 0.5)),
        10 ** rng.uniform(-1, 0.5),
        rng.choice(BATCHES),
        rng.choice(("adamw", "adamw", "sgd")),
        rng.choice((None, rng.uniform(0.2, 0.9), rng.uniform(0.2, 0.9))),
        4,
    )


def cluster_of(case: Case) -> Cluster:
    """The preset with the case's device counts and speeds."""
    cluster = load_cluster(case.preset)
    counts = (case.nodes, case.gpus)
    cluster = replace(
        cluster,
        levels=tuple(replace(level, count=number) for level, number in zip(cluster.levels, counts, strict=True)),
    )
    for level, factor in enumerate(case.links):
        cluster, _ = scale_link_bandwidth(cluster, None, level, factor)
    return scale_device_speed(cluster, None, case.device)[0]


def check(case: Case, say: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Findings of a case."""
    graph, cluster = _graph(case.model), cluster_of(case)

    def planned(asked: str, options: Mapping[str, Any], on: Cluster = cluster) -> Outcome:
        outcome = _planned(case, graph, cluster, on, asked, options)
        took = "none" if outcome.step_time_s is None else f"{outcome.step_time_s:.6g} s"
        say(f"  {asked}: {took}, bound {outcome.lower_bound_s}, {outcome.seconds:.1f} s {outcome.error or ''}")
        return outcome

    whole = planned("nothing", {})
    outcomes, limit = [whole], {}
    if case.memory is not None and whole.memory_bytes is not None:
        limit = {"memory_limit_bytes": max(1, int(case.memory * whole.memory_bytes))}
        outcomes.append(planned("memory limit", limit))
    free = outcomes[-1]
    rng = random.Random(case.seed + 1)
    for asked, options in rng.sample([*_single_constraints(free, cluster, rng)], case.num_asked):
        outcomes.append(planned(asked, {**limit, **options}))
    if free.strategy is not None:
        outcomes.append(planned("what was found", {**limit, **_constraints_of(free.strategy)}))
    change, slower = rng.choice([*_slower_clusters(cluster, rng)])
    outcomes.append(planned(change, limit, slower))
    found = [finding for outcome in outcomes for finding in _faults(case, outcome)]
    for base in dict.fromkeys((whole.asked, free.asked)):
        at = next(outcome for outcome in outcomes if outcome.asked == base)
        found += [finding for other in outcomes if other is not at for finding in compare_outcomes(case, at, other)]
    return found


def compare_outcomes(case: Case, free: Outcome, asked: Outcome) -> Iterator[Finding]:
    """Compare the unconstrained search ``free`` with the strategy of a subspace."""
    seconds = asked.comparable_s
    if seconds is None or asked.memory_bytes is None or asked.memory_bytes > free.limit_bytes:
        return
    if free.step_time_s is None:
        if free.fault is None:
            yield Finding(
                "missed", case, free.asked, asked.asked, f"{free.error}; {seconds:.6g} s, {asked.memory_bytes} bytes"
            )
        return
    if free.lower_bound_s is not None and seconds < free.lower_bound_s * (1 - ROUNDING):
        yield Finding(
            "bound", case, free.asked, asked.asked, f"{free.lower_bound_s:.9g} s proved, {seconds:.9g} s found"
        )
    if free.step_time_s > seconds * (1 + SLACK):
        detail = f"{free.step_time_s:.6g} s against {seconds:.6g} s, bound {free.lower_bound_s}, options {dict(asked.options)}"
        yield Finding("slower", case, free.asked, asked.asked, detail)


def _faults(case: Case, outcome: Outcome) -> Iterator[Finding]:
    """Defects of a single plan."""
    if outcome.fault is not None:
        kind, detail = outcome.fault
        yield Finding(kind, case, outcome.asked, outcome.asked, detail)
    if outcome.seconds > LATE_S:
        yield Finding("late", case, outcome.asked, outcome.asked, f"{outcome.seconds:.0f} s of {TIME_LIMIT_S:g} s")
    if outcome.step_time_s is None or outcome.memory_bytes is None:
        return
    if outcome.lower_bound_s is not None and outcome.lower_bound_s > outcome.step_time_s * (1 + ROUNDING):
        detail = f"{outcome.lower_bound_s:.9g} s proved, {outcome.step_time_s:.9g} s found"
        yield Finding("bound", case, outcome.asked, outcome.asked, detail)
    if outcome.memory_bytes > outcome.limit_bytes:
        detail = f"{outcome.memory_bytes} bytes, limit {outcome.limit_bytes}"
        yield Finding("memory", case, outcome.asked, outcome.asked, detail)


def _planned(
    case: Case, graph: LogicalGraph, cluster: Cluster, on: Cluster, asked: str, options: Mapping[str, Any]
) -> Outcome:
    begun = time.monotonic()
    bare = Outcome(asked, options, options.get("memory_limit_bytes", on.device.memory_bytes))
    try:
        given = PlanOptions(
            global_batch=case.batch, optimizer=case.optimizer, time_limit_s=TIME_LIMIT_S, baselines=(), **options
        )
        plan = make_plan(graph, on, None, given)
    except (InfeasibleError, UnsupportedError) as error:
        return replace(bare, seconds=time.monotonic() - begun, error=str(error))
    except Exception:  # any other exception is a finding
        error = traceback.format_exc()
        return replace(bare, seconds=time.monotonic() - begun, error=error, fault=("raised", error))
    seconds, document, costs = time.monotonic() - begun, plan.document, predict_costs(graph, plan.strategy, on)
    return replace(
        bare,
        step_time_s=document["step_time_s"],
        comparable_s=predict_costs(graph, plan.strategy, cluster).step_time_s,
        lower_bound_s=document["lower_bound_s"],
        memory_bytes=document["memory_bytes_per_device"],
        strategy=plan.strategy,
        seconds=seconds,
        fault=_cost_mismatch(document, costs),
    )


def _cost_mismatch(document: Mapping[str, Any], costs: Costs) -> tuple[str, str] | None:
    """Difference between a plan's stated costs and its strategy's, if any."""
    if abs(costs.step_time_s - document["step_time_s"]) > ROUNDING * costs.step_time_s:
        return "cost", f"{document['step_time_s']:.9g} s told, {costs.step_time_s:.9g} s costed"
    if costs.memory_bytes_per_device != document["memory_bytes_per_device"]:
        return "cost", f"{document['memory_bytes_per_device']} bytes told, {costs.memory_bytes_per_device} costed"
    return None


def _single_constraints(free: Outcome, cluster: Cluster, rng: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Single constraints to try."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= cluster.num_devices]
    yield from ((f"{size} stages", {"stages": size}) for size in sizes)
    yield from ((f"{size} x data", {"data_parallel": size}) for size in rng.sample(sizes, 2))
    yield from ((f"{size} x tensor", {"tensor_parallel": size}) for size in rng.sample(sizes, 2))
    yield from ((f"stored {storage}", {"storage": storage}) for storage in ("as_used", "step"))
    yield from ((f"recompute {every}", {"recompute": every}) for every in (0, 1, 2))
    yield "deterministic", {"deterministic": True}
    yield "2 stages of all data", {"stages": 2, "tensor_parallel": 1}
    yield from ((f"schedule {name}", {"schedules": (name,)}) for name in ("gpipe", "1f1b", "interleaved_1f1b"))
    if free.strategy is not None:
        yield "its microbatch", {"micro_batch": free.strategy.micro_batch}
        smaller = free.strategy.micro_batch // 2
        if smaller and free.strategy.micro_batch % 2 == 0 and free.strategy.global_batch % smaller == 0:
            yield "half its microbatch", {"micro_batch": smaller, "stages": free.strategy.num_stages}
    if free.memory_bytes is not None:
        yield "less memory", {"memory_limit_bytes": int(0.9 * free.memory_bytes)}


def _constraints_of(strategy: Strategy) -> dict[str, Any]:
    """Constraints that a strategy satisfies."""
    chosen: dict[str, Any] = {"stages": strategy.num_stages, "micro_batch": strategy.micro_batch}
    if strategy.pipeline is not None:
        chosen["schedules"] = (strategy.pipeline.schedule.name,)
    if not strategy.recompute:
        chosen["recompute"] = 0
    return chosen


def _slower_clusters(cluster: Cluster, rng: random.Random) -> Iterator[tuple[str, Cluster]]:
    """Copies of the cluster with one speed reduced."""
    factor = rng.uniform(0.2, 0.8)
    for level in range(len(cluster.levels)):
        yield f"{factor:.2f} x link {level}", scale_link_bandwidth(cluster, None, level, factor)[0]
    yield f"{factor:.2f} x device", scale_device_speed(cluster, None, factor)[0]


@cache
def _graph(model: str) -> LogicalGraph:
    return capture(f"zoo:{model}")


def _check_in_process(case: Case) -> tuple[list[Finding], list[str]]:
    lines: list[str] = []
    return check(case, lines.append), lines


def search(cases: Sequence[Case], say: Callable[[str], None] = print) -> list[Finding]:
    """Check all cases one after another, as each plan uses all processors."""
    found: list[Finding] = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for case, (findings, lines) in zip(cases, pool.map(_check_in_process, cases), strict=True):
            limit = "no limit" if case.memory is None else f"{case.memory:.2f} of the memory"
            say(
                f"{case.seed}: {case.model} on {case.nodes} x {case.gpus} of {case.preset}, batch {case.batch}, {limit}"
            )
            for line in lines:
                say(line)
            for finding in findings:
                say(f"  FOUND {finding.kind}: {finding.asked} beside {finding.free}: {finding.detail}")
            found += findings
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10, help="how many, seeds counted from --seed")
    parser.add_argument("--seed", type=int, help="of the first case; another one each time by default")
    parser.add_argument("--model", action="append", choices=SMALL + LARGE, help="only these; all by default")
    parser.add_argument("--check", action="store_true", help="exit with 1 where anything is found")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("-o", "--output", type=Path, help="write the result into a file")
    arguments = parser.parse_args()
    if arguments.cases < 1:
        parser.error("--cases: expected at least 1")
    first = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    models = tuple(arguments.model or SMALL + LARGE)
    cases = [make_case(seed, models) for seed in range(first, first + arguments.cases)]
    begun = time.monotonic()
    findings = search(cases, lambda line: print(line, flush=True))
    result = {
        "benchmark": "plans",
        "command": " ".join(["python -m benchmarks.plans", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "first_seed": first,
        "cases": len(cases),
        "seconds": round(time.monotonic() - begun, 1),
        "findings": [asdict(finding) for finding in findings],
        "passed": not findings,
    }
    print(f"{len(cases)} cases in {result['seconds']:.0f} s: {len(findings)} findings")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(result))
    return 1 if arguments.check and findings else 0


if __name__ == "__main__":
    sys.exit(main())
