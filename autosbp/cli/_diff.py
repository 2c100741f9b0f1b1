"""``autosbp diff``: two plans side by side, op by op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from autosbp.cli._files import read_plan
from autosbp.cli._format import num_bytes, seconds, table
from autosbp.cli._layers import family
from autosbp.cli._options import AsJson
from autosbp.cli._run import console, print_json

First = Annotated[str, typer.Argument(metavar="A", help="A plan .json.", show_default=False)]
Second = Annotated[str, typer.Argument(metavar="B", help="Another plan .json.", show_default=False)]
_COSTS = {"step_time_s": seconds, "comm_bytes_per_device": num_bytes, "memory_bytes_per_device": num_bytes}
_CHOICES = ("global_batch", "micro_batch", "optimizer", "gather", "pipeline")


def diff(first: First, second: Second, as_json: AsJson = False) -> None:
    """Compare two plans: costs, batches, mesh, and every layout that differs."""
    one, two = read_plan(first).document, read_plan(second).document
    found = difference(one, two)
    if as_json:
        print_json(found)
    else:
        _show(found)


def difference(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """What ``--json`` prints. Layouts are compared on the finest mesh, where both strategies' devices have the same; as they
    are written elsewhere."""
    left, right = one["strategy"], two["strategy"]
    comparable = left["mesh"]["axes"] == right["mesh"]["axes"]
    if not comparable and left["mesh"]["level_counts"] == right["mesh"]["level_counts"]:
        left, right, comparable = _on_finest(left), _on_finest(right), True
    costs = {name: _pair(one[name], two[name]) for name in _COSTS}
    costs |= {name: _pair(one["breakdown"].get(name), two["breakdown"].get(name)) for name in one["breakdown"]}
    return {
        "a": one["plan_id"],
        "b": two["plan_id"],
        "same": one["plan_id"] == two["plan_id"],
        "same_graph": one["provenance"].get("graph_hash") == two["provenance"].get("graph_hash"),
        "costs": costs,
        "mesh": _pair(_mesh(one["strategy"]), _mesh(two["strategy"])),
        "same_mesh": comparable,
        "choices": {
            name: _pair(left.get(name), right.get(name)) for name in _CHOICES if left.get(name) != right.get(name)
        },
        "parameters": _changes(left["parameters"], right["parameters"]),
        "ops": _changes(left["signatures"], right["signatures"]),
    }


def _on_finest(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """The strategy's layouts with an entry for each prime part of its axes."""
    from autosbp.cluster import prime_factors

    parts = [len(prime_factors(size)) for _, size, _ in strategy["mesh"]["axes"]]

    def finer(text: str) -> str:
        return " ".join(word if word == "->" else _repeated(word.split(","), parts) for word in text.split())

    named = ("parameters", "signatures")
    return {**strategy, **{key: {name: finer(text) for name, text in strategy[key].items()} for key in named}}


def _repeated(entries: list[str], parts: list[int]) -> str:
    return ",".join(entry for entry, count in zip(entries, parts, strict=True) for _ in range(count))


def _pair(one: Any, two: Any) -> dict[str, Any]:
    return {"a": one, "b": two}


def _mesh(strategy: Mapping[str, Any]) -> str:
    return " x ".join(f"{name}:{size}" for name, size, _ in strategy["mesh"]["axes"])


def _changes(one: Mapping[str, str], two: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    names = [*one, *(name for name in two if name not in one)]
    return {name: _pair(one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def _show(found: Mapping[str, Any]) -> None:
    out = console()
    if found["same"]:
        out.print(f"the same plan: {found['a']}")
        return
    if not found["same_graph"]:
        out.print("the plans are of different graphs", style="yellow")
    if not found["same_mesh"]:
        out.print("layouts are of different meshes, and compared as they are written", style="yellow")
    out.print(f"mesh: {found['mesh']['a']} | {found['mesh']['b']}")
    costs = []
    for name, pair in found["costs"].items():
        show, one, two = _COSTS.get(name, seconds), pair["a"], pair["b"]
        change = f"{100 * (two / one - 1):+.1f} %" if one and two is not None else "-"
        costs.append((name, show(one), show(two), change))
    out.print(table("costs", ("", found["a"], found["b"], "change"), costs))
    for title in ("choices", "parameters", "ops"):
        if found[title]:
            out.print(table(f"{title} that differ", ("", "how many", found["a"], found["b"]), _folded(found[title]), 4))


def _folded(changes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Layers and ops that change alike as one row."""
    counts: dict[tuple[str, str, str], int] = {}
    for name, pair in changes.items():
        one, two = ("-" if value is None else str(value) for value in (pair["a"], pair["b"]))
        key = (family(name), one, two)
        counts[key] = counts.get(key, 0) + 1
    return [(name, str(count), one, two) for (name, one, two), count in counts.items()]
