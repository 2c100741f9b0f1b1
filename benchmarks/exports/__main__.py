"""Exports of plans to other trainers: ``python -m benchmarks.exports [--seconds S] [--check] [--json]``.

Plans 12 models of the zoo on 4 cluster presets, and exports each plan to every trainer. If a trainer cannot express a
plan, the nearest plan is exported, with its loss in step time. ``--check`` runs the trainers' own parsers over all files,
in environments that ``python -m benchmarks.exports.environments`` makes. Rows are stored in ``-o FILE``; existing rows are
not computed again, so that a run can be split (``--seconds``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan
from autosbp.errors import InfeasibleError, UnsupportedError
from autosbp.export.nearest import export_nearest
from autosbp.trainers import TRAINERS
from benchmarks.exports.environments import is_installed, python_of

MODELS = {
    "gpt2-demo": 4, "llama-demo": 4, "vgg16": 32, "resnet50": 32, "wide-deep": 64, "gpt2": 8, "vit-large": 8,
    "gpt2-1.5b": 8, "bert-large": 8, "llama-7b": 4, "t5-large": 8, "moe": 4,
}  # fmt: skip
"""Zoo models with samples per device."""
PRESETS = ("local:2x2", "gcp-a100-16:1", "dgx-a100-80g:2", "dgx-h100:4")
TIME_LIMIT_S = 3.0
PARSERS = {name: (name, f"{name}03") if name == "torchtitan" else (name,) for name in TRAINERS}


def measure(model: str, preset: str) -> dict[str, Any]:
    """Row of one case: the plan, and its export to each trainer."""
    cluster, graph = load_cluster(preset), capture(f"zoo:{model}")
    options = PlanOptions(global_batch=MODELS[model] * cluster.num_devices, time_limit_s=TIME_LIMIT_S, precision="auto")
    row: dict[str, Any] = {"model": model, "preset": preset}
    try:
        plan = make_plan(graph, cluster, None, options)
    except InfeasibleError as error:
        return row | {"infeasible": str(error)}
    row |= {"step_time_s": plan.document["step_time_s"], "strategy": plan.document["strategy_summary"]}
    return row | {"exports": {name: _export(name, plan, graph) for name in TRAINERS}}


def _export(name: str, plan: Plan, graph: LogicalGraph) -> dict[str, Any]:
    began = time.monotonic()
    try:
        found = export_nearest(name, plan, graph)
    except (UnsupportedError, InfeasibleError) as error:
        return {"error": str(error)}
    return {
        "loss": found.loss,
        "differences": list(found.differences),
        "strategy": found.plan.document["strategy_summary"],
        "files": dict(found.files),
        "seconds": time.monotonic() - began,
    }


def checked(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Number of exports that each installed trainer's parser accepts, and the errors of the others."""
    found: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory() as temporary:
        for trainer, parsers in PARSERS.items():
            folders = [str(each) for each in _written(rows, trainer, Path(temporary))]
            for parser in filter(is_installed, parsers):
                script = str(Path(__file__).with_name("parsers.py"))
                command = [str(python_of(parser)), script, parser, *folders]
                ended = subprocess.run(command, capture_output=True, text=True, check=False)
                lines = ended.stdout.strip().splitlines()
                if ended.returncode or not lines:
                    raise RuntimeError(f"{parser}: {ended.stderr[-2000:]}")
                errors = json.loads(lines[-1])
                wrong = {Path(name).name: text for name, text in errors.items() if text}
                found[parser] = {"files": len(errors), "accepted": len(errors) - len(wrong), "errors": wrong}
    return found


def _written(rows: Sequence[Mapping[str, Any]], trainer: str, folder: Path) -> Iterator[Path]:
    for row in rows:
        files = row.get("exports", {}).get(trainer, {}).get("files")
        if files:
            place = folder / f"{row['model']}-{row['preset']}-{trainer}".replace(":", "-")
            place.mkdir(exist_ok=True)
            for name, text in files.items():
                (place / name).write_text(text)
            (place / "ranks").write_text(str(load_cluster(row["preset"]).num_devices))
            yield place


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers of plans by the number of trainers that can express them, and losses of the nearest plans."""
    planned = [row["exports"] for row in rows if "exports" in row]
    counts = Counter(sum("loss" in each for each in found.values()) for found in planned)
    losses = {name: sorted(found[name]["loss"] for found in planned if "loss" in found[name]) for name in TRAINERS}
    return {
        "winners": len(planned),
        "with_two_trainers": sum(count for number, count in counts.items() if number >= 2),  # noqa: PLR2004
        "trainers": {
            name: {
                "exported": len(each),
                "exact": sum(not found[name].get("differences", ["-"]) for found in planned),
                "median_loss": each[len(each) // 2] if each else None,
                "worst_loss": each[-1] if each else None,
            }
            for name, each in losses.items()
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after so many seconds")
    parser.add_argument("--check", action="store_true", help="run the trainers' parsers")
    parser.add_argument("-o", "--output", type=Path, default=None, help="keep rows, with their files")
    parser.add_argument("--json", action="store_true", help="end in one line of JSON")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    rows = json.loads(asked.output.read_text()) if asked.output is not None and asked.output.exists() else []
    for model, preset in product(MODELS, PRESETS):
        if any((row["model"], row["preset"]) == (model, preset) for row in rows):
            continue
        if time.monotonic() - began > asked.seconds:
            print("more cases are left", file=sys.stderr)
            break
        rows.append(measure(model, preset))
        _show(rows[-1])
        if asked.output is not None:
            asked.output.write_text(json.dumps(rows))
    result: dict[str, Any] = {"benchmark": "exports", **summary(rows)}
    if asked.check:
        result["parsers"] = checked(rows)
    kept = [
        row | {"exports": {name: _without_files(each) for name, each in row["exports"].items()}}
        if "exports" in row
        else row
        for row in rows
    ]
    print(json.dumps({**result, "rows": kept}) if asked.json else json.dumps(result, indent=1))
    return int(result["with_two_trainers"] < result["winners"])


def _without_files(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "files"}


def _show(row: Mapping[str, Any]) -> None:
    said = row.get("infeasible") or row["strategy"]
    print(f"{row['model']} on {row['preset']}: {said}", file=sys.stderr)
    for name, found in row.get("exports", {}).items():
        text = found.get("error") or f"{100 * found['loss']:+.1f} % {found['strategy']} ({found['seconds']:.1f} s)"
        print(f"    {name:12} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
