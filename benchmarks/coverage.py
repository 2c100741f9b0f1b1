"""Ops with sharding rules per model: ``python -m benchmarks.coverage [MODEL ...] [--json] [--write docs/reference/models.md]``.

For each model, captured at full size from its config, it counts the distinct ops that depend on a parameter: those with
a hand-written rule, those with discovered layouts, and those that stay replicated. Replicated ops that carry FLOPs are
named; there must be none. ``--write`` puts the table between the file's coverage marks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.graph_sources import load_model
from autosbp.sbp.rules import RULES, node_options, sharding_of

CONFIGS = Path(__file__).parent / "data" / "models"
SEQ_LENS = {"llama-2-70b": 4096}
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"


def default_models() -> list[str]:
    """Every config in ``data/models`` and every full-size model of the zoo."""
    from autosbp.zoo import zoo_names

    configs = [f"hf:{path}" for path in sorted(CONFIGS.glob("*.json"))]
    return configs + [f"zoo:{name}" for name in zoo_names() if not name.endswith(("-small", "-demo"))]


def coverage(model: str) -> dict[str, Any]:
    """Capture ``model`` and count its ops."""
    started = time.perf_counter()
    name = model if model.startswith("zoo:") else Path(model.partition(":")[2]).stem
    graph = load_model(model, seq_len=SEQ_LENS.get(name))
    elapsed = time.perf_counter() - started
    bound = graph.bind(**graph.symbols)
    computed = [node for node in bound.nodes if node.name in bound.parameter_dependent]
    seen = {node.op for node in computed}
    ruled = {op for op in seen if op in RULES}
    whole = [node for node in computed if not any(option.divides for option in node_options(bound, node))]
    unruled = {node.op for node in whole} - ruled
    return {
        "model": name,
        "source": graph.provenance.get("source", model),
        "parameters": graph.summary()["num_parameters"],
        "nodes": len(graph.nodes),
        "capture_s": elapsed,
        "ops_seen": sorted(seen),
        "ops_ruled": sorted(ruled),
        "ops_discovered": sorted(seen - ruled - unruled),
        "ops_replicated": sorted(unruled),
        "flop_ops_replicated": sorted({node.op for node in whole if carries_flops(bound, node)}),
    }


def carries_flops(graph: LogicalGraph, node: Node) -> bool:
    """Whether an op has FLOPs, by its rule or else by torch's own count over fake tensors."""
    if node.op in RULES:
        return sharding_of(graph, node).flops > 0
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    from autosbp.graph.to_fx import resolve_op, to_fx_arg, torch_dtype

    with FakeTensorMode():
        values = {
            ref.name: torch.empty(graph.meta(ref).sizes, dtype=torch_dtype(graph.meta(ref).dtype))
            for ref in node.refs()
        }
        with FlopCounterMode(display=False) as counter:
            args = [to_fx_arg(arg, values) for arg in node.args]
            resolve_op(node.op)(*args, **{key: to_fx_arg(arg, values) for key, arg in node.kwargs.items()})
    return bool(counter.get_total_flops() > 0)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown table of the rows."""
    lines = [
        "| model | class | parameters | ops | by rule | discovered | replicated |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        counts = [len(row[key]) for key in ("ops_seen", "ops_ruled", "ops_discovered", "ops_replicated")]
        kind = row["source"].split()[-1].rpartition(".")[2]
        size = f"{row['parameters'] / 1e6:,.0f} M"
        lines.append(f"| {row['model']} | {kind} | {size} | {' | '.join(str(count) for count in counts)} |")
    return "\n".join(lines)


def write_between_marks(path: Path, table: str) -> None:
    """Replace the text between the coverage marks of ``path``."""
    before, found, rest = path.read_text().partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"{path}: expected the marks {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="as of `autosbp plan`; by default all that ship")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the file's coverage marks")
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models or default_models():
        print(f"{model} ...", file=sys.stderr, flush=True)
        rows.append(coverage(model))
    print(markdown(rows))
    for row in rows:
        if row["ops_replicated"]:
            print(f"{row['model']}: replicated {', '.join(row['ops_replicated'])}")
    if arguments.write:
        write_between_marks(arguments.write, markdown(rows))
    if arguments.json:
        print(json.dumps({"models": rows, "flop_ops_replicated": sum(len(row["flop_ops_replicated"]) for row in rows)}))


if __name__ == "__main__":
    main()
