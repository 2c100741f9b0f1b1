"""``autosbp diff``: compare two plans op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from autosbp.cli._exit_codes import console, print_json
from autosbp.cli._files import read_plan
from autosbp.cli._layer_table import family
from autosbp.cli._options import AsJson, Server
from autosbp.cli._text_tables import table
from autosbp.errors import InputError
from autosbp.report.findings import PURPOSES
from autosbp.utils.formatting import num_bytes, seconds

First = Annotated[
    str, typer.Argument(metavar="A", help="Plan file (.json), or with --server a strategy id.", show_default=False)
]
Second = Annotated[str, typer.Argument(metavar="B", help="Second plan, in the same form as A.", show_default=False)]
_COSTS = {"step_time_s": seconds, "comm_bytes_per_device": num_bytes, "memory_bytes_per_device": num_bytes}


def diff(first: First, second: Second, server: Server = None, as_json: AsJson = False) -> None:
    """Compare two plans: costs, batch sizes, mesh, and every different layout.

    With --server, A and B may also be ids of strategies that the service stores.
    """
    from autosbp.report.plan_diff import difference

    if server is not None:
        found = _diff_remotely(server, first, second)
    else:
        found = difference(read_plan(first).document, read_plan(second).document)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _diff_remotely(server: str, first: str, second: str) -> dict[str, Any]:
    from autosbp.cli._remote import is_id, open_client
    from autosbp.report.plan_diff import difference

    if not is_id(first) and not is_id(second):
        raise InputError("server", server, "requires a strategy id for at least one of the two plans")
    with open_client(server) as client:
        if is_id(first) and is_id(second):
            return client.diff(first, second)
        one, two = (client.get_strategy(each) if is_id(each) else read_plan(each).document for each in (first, second))
        return difference(one, two)


def _show(found: Mapping[str, Any]) -> None:
    out = console()
    if found["same"]:
        out.print(f"identical plans: {found['a']}")
        return
    if not found["same_graph"]:
        out.print("the plans are for different graphs", style="yellow")
    if not found["same_mesh"]:
        out.print("the meshes differ; layouts are compared as text", style="yellow")
    out.print(f"mesh: {found['mesh']['a']} | {found['mesh']['b']}")
    out.print(table("costs", ("", found["a"], found["b"], "change"), _costs(found)))
    for title in ("choices", "parameters", "ops", "sync"):
        if found.get(title):
            out.print(
                table(
                    f"different {title}",
                    ("", "how many", found["a"], found["b"]),
                    _merge_equal_changes(found[title]),
                    4,
                )
            )


def _costs(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Cost rows; exposed communication is followed by its parts by purpose, which older services do not report."""
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


def _merge_equal_changes(changes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Merge layers and ops with the same change into one row."""
    counts: dict[tuple[str, str, str], int] = {}
    for name, pair in changes.items():
        one, two = ("-" if value is None else str(value) for value in (pair["a"], pair["b"]))
        key = (family(name), one, two)
        counts[key] = counts.get(key, 0) + 1
    return [(name, str(count), one, two) for (name, one, two), count in counts.items()]
