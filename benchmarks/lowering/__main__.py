"""Step times of lowered programs against PyTorch's own training, in interleaved runs:

    python -m benchmarks.lowering [--json] [--pairs N] [WRAPPER/MODEL...]

``eager`` is one process: the lowered 1-rank program against the module itself. The others are four Gloo ranks of one
thread each: DistributedDataParallel, FSDP2 (``fully_shard``, with and without resharding after forward) and
tensor-parallel layers (``parallelize_module``), against our program under the same strategy. Both sides start from the
same weights, use the same batch and optimizer, and alternate step by step; a step takes as long as its slowest rank.
The ratio of a pair is our time over theirs. Shown are its median and quartiles, and the ratio of the processor time of
all ranks, which other load on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from autosbp.launch.local import run_ranks
from benchmarks.lowering._models import MODELS
from benchmarks.lowering._strategies import data_parallel, megatron, stored_split

RANKS = {"eager": 1, "ddp": 4, "fsdp2": 4, "fsdp2-zero2": 4, "megatron": 4}
MESSAGE_BYTES = 8 * 2**20
"""Bytes. About one block of the models: what FSDP gathers at a time."""
CASES = tuple(
    (wrapper, model) for wrapper in RANKS for model in MODELS if wrapper != "megatron" or MODELS[model].columns
)
TIMEOUT_S = 1800.0


def case(wrapper: str, name: str) -> dict[str, Any]:
    """Request to the ranks for one comparison."""
    model, ranks = MODELS[name], RANKS[wrapper]
    graph = model.graph(name)
    if wrapper == "megatron":
        strategy = megatron(graph, ranks, model.batch, model.columns, model.rows)
    elif wrapper.startswith("fsdp2"):
        gather = "use" if wrapper == "fsdp2" else "step"
        strategy = stored_split(graph, ranks, model.batch, gather, MESSAGE_BYTES)
    else:
        strategy = data_parallel(graph, ranks, model.batch)
    return {
        "wrapper": wrapper,
        "model": name,
        "batch": model.batch,
        "graph": graph.to_dict(),
        "strategy": strategy.to_dict(),
    }


def run(cases: list[tuple[str, str]], ranks: int, pairs: int, folder: Path) -> list[dict[str, Any]]:
    """Rows of all comparisons with this number of ranks, which start once."""
    told = [case(*each) for each in cases if RANKS[each[0]] == ranks]
    if not told:
        return []
    request, result = folder / "request.json", folder / "result.json"
    request.write_text(json.dumps({"pairs": pairs, "cases": told}))
    outcome = run_ranks(
        "benchmarks.lowering._ranks", [str(request), str(result)], ranks, folder / "ranks.log", timeout_s=TIMEOUT_S
    )
    if outcome.reason:
        raise SystemExit(f"{outcome.reason}\n{outcome.log_tail}")
    everyone = json.loads(result.read_text())
    return [row(each, [rank[at] for rank in everyone]) for at, each in enumerate(told)]


def row(told: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of a comparison from the measurements of its ranks."""
    steps, work = (
        [[join(times) for times in zip(*(rank[clock][side] for rank in ranks), strict=True)] for side in (0, 1)]
        for clock, join in (("seconds", max), ("processor", sum))
    )
    ratios = [mine / other for mine, other in zip(*steps, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    ours = ranks[0]["losses"][0]
    other = [statistics.fmean(losses) for losses in zip(*(rank["losses"][1] for rank in ranks), strict=True)]
    return {
        "wrapper": told["wrapper"],
        "model": told["model"],
        "ranks": len(ranks),
        "ours_s": statistics.median(steps[0]),
        "theirs_s": statistics.median(steps[1]),
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "processor_ratio": statistics.median(mine / other for mine, other in zip(*work, strict=True)),
        "pairs": len(ratios),
        "loss_difference": max(abs(one - two) / abs(two) for one, two in zip(ours, other, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="WRAPPER/MODEL", help="all by default")
    parser.add_argument("--pairs", type=int, default=15, metavar="N")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    arguments = parser.parse_args()
    chosen = [each for each in CASES if not arguments.cases or "/".join(each) in arguments.cases]
    rows: list[dict[str, Any]] = []
    print(
        f"{'against':<12} {'model':<6} {'ranks':>5} {'ours ms':>8} {'theirs ms':>9} {'ratio':>6} "
        f"{'quartiles':>12} {'processor':>9}"
    )
    for ranks in sorted(set(RANKS.values())):
        with tempfile.TemporaryDirectory() as folder:
            for each in run(chosen, ranks, arguments.pairs, Path(folder)):
                rows.append(each)
                low, high = each["ratio_quartiles"]
                print(
                    f"{each['wrapper']:<12} {each['model']:<6} {each['ranks']:>5} {1e3 * each['ours_s']:>8.1f} "
                    f"{1e3 * each['theirs_s']:>9.1f} {each['ratio']:>6.3f} {low:>6.3f}-{high:.3f} "
                    f"{each['processor_ratio']:>9.3f}",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps({"benchmark": "lowering", "rows": rows}))


if __name__ == "__main__":
    main()
