"""Sharding rules of ops that the rule table lacks, as plain data in the graph.

A rule is discovered by running the op, or declared by the user.

Layouts are written as in plans, such as ``S0`` or ``P`` (``autosbp.sbp.layout``). The sizes that an axis must divide
are read from the tensors when the rule is applied, so one rule serves every batch size.
``autosbp.sbp.discovered_rules`` turns it into a ``Sharding``. Nothing here needs torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.errors import GraphError
from autosbp.graph.int_attributes import Path
from autosbp.utils.json_io import Fields, check_integer

MAX_RULES = 4096
MAX_OPTIONS = 1024
MAX_TENSORS = 1024
MAX_PATHS = 64
MAX_DEPTH = 9
MAX_SIZES = 64
MAX_REASON = 512
OUTPUT = -1
_LAYOUT = re.compile(r"S(0|[1-9]\d?)|B|I|P(max|min)?")


@dataclass(frozen=True, slots=True)
class DiscoveredOption:
    """Layouts of the tensor arguments and outputs on one mesh axis.

    The integer attributes at ``divided`` are divided by the axis size, too.
    """

    ins: tuple[str, ...]
    outs: tuple[str, ...]
    divided: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoveredRule:
    """The sharding rule of one op: its ``options``, besides replication.

    Without options, ``reason`` says why, worded to follow the op's name. The op's forward pass takes ``flops`` for each
    point of the product of ``sizes``, pairs of a tensor argument and its dim. ``random`` ops need a seed that replicas
    share. ``saved`` lists the tensor arguments that autograd saves for the backward pass, and ``OUTPUT`` if it saves
    the first output. It also saves ``workspace`` elements of the first output's dtype for each point of the product of
    ``workspace_sizes``.
    """

    options: tuple[DiscoveredOption, ...]
    reason: str = ""
    random: bool = False
    flops: float = 0.0
    sizes: tuple[tuple[int, int], ...] = ()
    saved: tuple[int, ...] = ()
    workspace: float = 0.0
    workspace_sizes: tuple[tuple[int, int], ...] = ()


def rules_to_dict(rules: Mapping[str, DiscoveredRule]) -> dict[str, Any]:
    """Convert rules to the ``rules`` field of a graph document."""
    return {name: rule_to_dict(rule) for name, rule in rules.items()}


def rule_to_dict(rule: DiscoveredRule) -> dict[str, Any]:
    document: dict[str, Any] = {
        "options": [
            {"ins": list(option.ins), "outs": list(option.outs)}
            | ({"divided": [list(path) for path in option.divided]} if option.divided else {})
            for option in rule.options
        ]
    }
    if rule.reason:
        document["reason"] = rule.reason
    if rule.random:
        document["random"] = True
    if rule.flops:
        document |= {"flops": rule.flops, "sizes": [list(size) for size in rule.sizes]}
    if rule.saved:
        document["saved"] = list(rule.saved)
    if rule.workspace:
        document |= {"workspace": rule.workspace, "workspace_sizes": [list(size) for size in rule.workspace_sizes]}
    return document


def read_rules(data: Mapping[Any, Any]) -> dict[str, DiscoveredRule]:
    """Read the document's ``rules``; raise ``InputError`` at the first field that breaks a limit."""
    if len(data) > MAX_RULES:
        raise GraphError("rules", len(data), f"expected at most {MAX_RULES} rules")
    rules = {}
    for name, entry in data.items():
        if not isinstance(name, str) or not 0 < len(name) <= MAX_REASON:
            raise GraphError("rules", name, f"expected names of 1 to {MAX_REASON} characters")
        rules[name] = read_rule(entry, f"rules.{name}")
    return rules


def read_rule(entry: object, path: str) -> DiscoveredRule:
    known = "options", "reason", "random", "flops", "sizes", "saved", "workspace", "workspace_sizes"
    fields = Fields(entry, path, known)
    options = fields.sequence("options")
    saved = fields.sequence("saved", ())
    for name, items, limit in (("options", options, MAX_OPTIONS), ("saved", saved, MAX_TENSORS)):
        if len(items) > limit:
            raise GraphError(fields.at(name), len(items), f"expected at most {limit}")
    reason = fields.text("reason") if fields.has("reason") else ""
    if len(reason) > MAX_REASON:
        raise GraphError(fields.at("reason"), reason, f"expected at most {MAX_REASON} characters")
    return DiscoveredRule(
        tuple(_option(option, f"{path}.options[{at}]") for at, option in enumerate(options)),
        reason,
        fields.boolean("random", False),
        fields.number("flops", 0.0, high=1e18),
        _sizes(fields, "sizes"),
        tuple(check_integer(f"{path}.saved[{at}]", place, OUTPUT, MAX_TENSORS) for at, place in enumerate(saved)),
        fields.number("workspace", 0.0, high=1e18),
        _sizes(fields, "workspace_sizes"),
    )


def _option(entry: object, path: str) -> DiscoveredOption:
    fields = Fields(entry, path, ("ins", "outs", "divided"))
    paths = fields.sequence("divided", ())
    if len(paths) > MAX_PATHS:
        raise GraphError(fields.at("divided"), len(paths), f"expected at most {MAX_PATHS}")
    return DiscoveredOption(
        _layouts(fields, "ins"),
        _layouts(fields, "outs"),
        tuple(_path(item, f"{path}.divided[{at}]") for at, item in enumerate(paths)),
    )


def _layouts(fields: Fields, key: str) -> tuple[str, ...]:
    items = fields.sequence(key)
    if len(items) > MAX_TENSORS:
        raise GraphError(fields.at(key), len(items), f"expected at most {MAX_TENSORS}")
    for at, item in enumerate(items):
        if not isinstance(item, str) or not _LAYOUT.fullmatch(item):
            raise GraphError(f"{fields.at(key)}[{at}]", item, "expected S<dim>, B, I, P, Pmax or Pmin")
    return tuple(items)


def _path(entry: object, path: str) -> Path:
    if not isinstance(entry, (list, tuple)) or not 1 <= len(entry) <= MAX_DEPTH:
        raise GraphError(path, entry, f"expected 1 to {MAX_DEPTH} positions")
    first, *rest = entry
    if not isinstance(first, str):
        first = check_integer(path, first, 0, MAX_TENSORS)
    return (first, *(check_integer(path, at, 0, MAX_TENSORS) for at in rest))


def _sizes(fields: Fields, key: str) -> tuple[tuple[int, int], ...]:
    items = fields.sequence(key, ())
    if len(items) > MAX_SIZES:
        raise GraphError(fields.at(key), len(items), f"expected at most {MAX_SIZES}")
    return tuple(_size(item, f"{fields.at(key)}[{at}]") for at, item in enumerate(items))


def _size(entry: object, path: str) -> tuple[int, int]:
    if not isinstance(entry, (list, tuple)) or len(entry) != 2:
        raise GraphError(path, entry, "expected [tensor, dim]")
    return check_integer(path, entry[0], 0, MAX_TENSORS), check_integer(path, entry[1], 0, MAX_TENSORS)
