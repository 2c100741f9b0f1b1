"""Difference of two plans, op by op, as a plain document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.cluster.spec import prime_factors
from autosbp.plan.plan import upgrade_document
from autosbp.plan.synchronizers import SyncStrategy

COSTS = ("step_time_s", "comm_bytes_per_device", "memory_bytes_per_device")
_PARTS = ("compute_s", "exposed_comm_s", "hidden_comm_s", "bubble_s", "optimizer_s")
_CHOICES = ("global_batch", "micro_batch", "optimizer", "gather", "pipeline", "recompute", "offload", "bucket_bytes")


def difference(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in which the second of two plan documents, of any release, differs from the first.

    Layouts on different meshes are compared on the finest mesh (an axis per prime factor) if both have the same device
    levels.
    """
    one, two = upgrade_document(one), upgrade_document(two)
    left, right = one["strategy"], two["strategy"]
    comparable = left["mesh"]["axes"] == right["mesh"]["axes"]
    if not comparable and left["mesh"]["level_counts"] == right["mesh"]["level_counts"]:
        left, right, comparable = _on_finest_mesh(left), _on_finest_mesh(right), True
    costs = {name: _pair(one[name], two[name]) for name in COSTS}
    costs |= {name: _pair(one["breakdown"].get(name), two["breakdown"].get(name)) for name in _PARTS}
    return {
        "a": one["plan_id"],
        "b": two["plan_id"],
        "same": _stored_id(one) == _stored_id(two),
        "same_graph": one["provenance"].get("graph_hash") == two["provenance"].get("graph_hash"),
        "costs": costs,
        "exposed_comm_by_purpose_s": _by_purpose(one["breakdown"], two["breakdown"]),
        "mesh": _pair(_mesh(one["strategy"]), _mesh(two["strategy"])),
        "same_mesh": comparable,
        "choices": {
            name: _pair(a.get(name), b.get(name))
            for name, a, b in (("precision", one, two), *((each, left, right) for each in _CHOICES))
            if a.get(name) != b.get(name)
        },
        "parameters": _changes(left["parameters"], right["parameters"]),
        "ops": _changes(left["signatures"], right["signatures"]),
        **({"sync": _changes(*map(_syncs, (left, right)))} if "sync" in left or "sync" in right else {}),
    }


def _syncs(strategy: Mapping[str, Any]) -> dict[str, str]:
    """How each parameter of a synchronization strategy is synchronized, in words."""
    sync = SyncStrategy.from_dict(strategy["sync"]).parameters if "sync" in strategy else {}
    return {name: str(one) for name, one in sync.items()}


def _stored_id(document: Mapping[str, Any]) -> str:
    return str(document.get("earlier_plan_id", document["plan_id"]))


def _by_purpose(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Exposed communication by purpose; None for a plan of a release that did not record it."""
    known = [parts.get("exposed_comm_by_purpose_s") for parts in (one, two)]
    names = sorted({name for exposed in known for name in exposed or ()})
    return {name: _pair(*(None if exposed is None else exposed.get(name, 0.0) for exposed in known)) for name in names}


def _on_finest_mesh(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """The strategy's layouts with an entry for each prime factor of its mesh axes."""
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
