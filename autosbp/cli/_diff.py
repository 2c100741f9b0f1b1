"""``autosbp diff``: two plans side by side, op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from autosbp.cli._files import read_plan
from autosbp.cli._format import table
from autosbp.cli._layers import family
from autosbp.cli._options import AsJson, Server
from autosbp.cli._run import console, print_json
from autosbp.errors import InputError
from autosbp.findings import PURPOSES
from autosbp.units import num_bytes, seconds

First = Annotated[
    str, typer.Argument(metavar="A", help="A plan .json; with --server also the id of a strategy.", show_default=False)
]
Second = Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)]
_COSTS = {"step_time_s": seconds, "comm_bytes_per_device": num_bytes, "memory_bytes_per_device": num_bytes}


def diff(first: First, second: Second, server: Server = None, as_json: AsJson = False) -> None:
    """Compare two plans: costs, batches, mesh, and every layout that differs. With --server, strategies that the service
    has, with each other or with plans in files."""
    from autosbp.comparison import difference

    if server is not None:
        found = _difference_there(server, first, second)
    else:
        found = difference(read_plan(first).document, read_plan(second).document)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _difference_there(server: str, first: str, second: str) -> dict[str, Any]:
    from autosbp.cli._server import connected, is_id
    from autosbp.comparison import difference

    if not is_id(first) and not is_id(second):
        raise InputError("server", server, "the id of a strategy is expected with it, for one of the two at least")
    with connected(server) as client:
        if is_id(first) and is_id(second):
            return client.diff(first, second)
        one, two = (client.get_strategy(each) if is_id(each) else read_plan(each).document for each in (first, second))
        return difference(one, two)


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
    out.print(table("costs", ("", found["a"], found["b"], "change"), _costs(found)))
    for title in ("choices", "parameters", "ops"):
        if found[title]:
            out.print(table(f"{title} that differ", ("", "how many", found["a"], found["b"]), _folded(found[title]), 4))


def _costs(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Exposed communication by purpose is below its sum; a service of an earlier release does not tell it."""
    rows: list[tuple[str, ...]] = []
    for name, pair in found["costs"].items():
        rows.append(_cost(name, pair, _COSTS.get(name, seconds)))
        if name == "exposed_comm_s":
            by_purpose = found.get("exposed_comm_by_purpose_s", {})
            rows += [_cost(f"  {PURPOSES.get(each, each)}", by_purpose[each], seconds) for each in by_purpose]
    return rows


def _cost(name: str, pair: Mapping[str, Any], show: Callable[[float | None], str]) -> tuple[str, ...]:
    one, two = pair["a"], pair["b"]
    change = f"{100 * (two / one - 1):+.1f} %" if one and two is not None else "-"
    return name, show(one), show(two), change


def _folded(changes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Layers and ops that change alike as one row."""
    counts: dict[tuple[str, str, str], int] = {}
    for name, pair in changes.items():
        one, two = ("-" if value is None else str(value) for value in (pair["a"], pair["b"]))
        key = (family(name), one, two)
        counts[key] = counts.get(key, 0) + 1
    return [(name, str(count), one, two) for (name, one, two), count in counts.items()]
