"""``python -m autosbp.testing.rules_document > docs/op_rules.md``: every op rule as a table, by way of an example call.

The examples are the first of those that prove each rule (``virtual_cases``); ops whose rule says the same of the same
call share a row.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

from autosbp.costmodel.split_ops import internal_collectives
from autosbp.graph.ir import DType, LogicalGraph, Node
from autosbp.sbp.placement import Sbp
from autosbp.sbp.rules import RULES, node_options, sharding_of
from autosbp.sbp.sharding import AxisOption
from autosbp.testing.op_cases import Case, Tensor, op_case
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_cases import CASES

HEAD = """# Op rules

What each op allows on one mesh axis (see [layouts](layouts.md)); on several axes each takes one of these by itself. Made
by `python -m autosbp.testing.rules_document > docs/op_rules.md`; do not edit.

- **example**: tensor arguments by their sizes (`i` integers, `m` booleans), other arguments as they are.
- **splits**: the factor that the axis divides, the layouts of the tensor arguments, and those of the outputs. Every op may
  also run whole on every rank (`B -> B` and `I -> I`), which is not repeated.
- `*`: a dim that the op runs over whole, split by an implementation that joins the parts; **joins** says what it sends,
  forward / backward.
- **notes**: *free* moves no data; *random* draws other numbers on other shards; *skewed* gives some ranks more work.

| ops | example | splits | joins | notes |
|---|---|---|---|---|
"""


def document() -> str:
    """The page."""
    families: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for op in RULES:
        families[_columns(op)].append(op.removeprefix("aten.").removesuffix(".default"))
    return HEAD + "".join(f"| {', '.join(ops)} | {' | '.join(columns)} |\n" for columns, ops in families.items())


def _columns(op: str) -> tuple[str, ...]:
    case = CASES[op][0]
    graph, node = op_case(op, case)
    options = [option for option in node_options(graph, node) if option.factor not in ("B", "I")]
    sharding = sharding_of(graph, node)
    notes = [name for name, flag in (("free", sharding.free), ("random", sharding.random)) if flag]
    notes += [f"skewed {name}" for name in sorted(sharding.skewed)]
    joins = [text for option in options if option.implemented and (text := _joins(graph, node, option))]
    return _example(case), "<br>".join(map(_split, options)) or "-", "<br>".join(joins), ", ".join(notes)


def _split(option: AxisOption) -> str:
    name = option.factor + "*" * option.implemented
    return f"{name}: {_layouts(option.ins)} -> {_layouts(option.outs)}"


def _layouts(layouts: tuple[Sbp, ...]) -> str:
    return ", ".join(map(str, layouts))


def _joins(graph: LogicalGraph, node: Node, option: AxisOption) -> str:
    """Kinds of the collectives inside, on the smallest axis that divides the example."""
    size = next(size for size in (2, 3, option.size) if option.size % size == 0)
    calls = internal_collectives(graph, node, (option,), plain_mesh(size))
    sides = [" ".join(call.kind for call in calls if call.phase == phase) or "-" for phase in ("forward", "backward")]
    return f"{option.factor}: {' / '.join(sides)}" if calls else ""


def _example(case: Case) -> str:
    words = [f"{word}={_argument(arg)}" for word, arg in case.kwargs.items()]
    return ", ".join([*map(_argument, case.args), *words])


def _argument(arg: Any) -> str:
    if isinstance(arg, Tensor):
        kind = {"int64": "i", "bool": "m"}.get(arg.dtype, "")
        return f"{kind}[{' '.join(map(str, arg.shape))}]"
    if isinstance(arg, tuple):
        return f"({', '.join(map(_argument, arg))})"
    return arg.name if isinstance(arg, DType) else repr(arg)


if __name__ == "__main__":
    sys.stdout.write(document())
