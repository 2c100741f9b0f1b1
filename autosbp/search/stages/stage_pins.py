"""Ops with a given pipeline stage, selected by op name, by a parameter that they read, or by a pattern of either."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase

from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph


def read_stages(graph: LogicalGraph, stage_of: Mapping[str, int]) -> dict[str, int]:
    """The stage of each op that has one.

    Raises:
        InputError: an unknown name.
        InfeasibleError: an op with two different stages.
    """
    ops = [node for node in graph.nodes if node.name in graph.parameter_dependent]
    found: dict[str, int] = {}
    for key, stage in stage_of.items():
        named = [
            node.name
            for node in ops
            if fnmatchcase(node.name, key)
            or any(ref.name in graph.parameter_names and fnmatchcase(ref.name, key) for ref in node.refs())
        ]
        if not named:
            near = get_close_matches(key, [*(node.name for node in ops), *graph.parameter_names], n=3, cutoff=0.0)
            raise InputError("stage_of", key, f"expected an op or parameter, such as {', '.join(near)}")
        for name in named:
            if found.setdefault(name, stage) != stage:
                detail = f"{name} is already assigned to stage {found[name]}"
                raise InfeasibleError(f"stage_of.{key}", stage, None, detail)
    return found
