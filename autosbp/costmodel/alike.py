"""Which chunks of a pipeline cost the same: those that differ in the names of their ops and values alone."""

from __future__ import annotations

from collections.abc import Hashable

from autosbp.costmodel.stages import Chunk, Stages
from autosbp.graph.ir import Arg, DType, Ref, map_arg


def chunk_key(stages: Stages, chunk: Chunk) -> Hashable:
    """Of chunks of the same stages equal for those whose passes take equally long and equally much: same ops in same layouts,
    wired in the same way, with parameters that are stored and shared alike, and with the same neighbours to send to."""
    if chunk.index not in stages.kinds:
        stages.kinds[chunk.index] = stages.known_kinds.setdefault(_kind(stages, chunk), chunk.index)
    return stages.kinds[chunk.index]


def _kind(stages: Stages, chunk: Chunk) -> Hashable:
    graph, strategy = chunk.graph, stages.strategy
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    def place(arg: Arg) -> Hashable:
        if isinstance(arg, Ref):
            return (number(arg.name), arg.index)
        return ("dtype", arg.name) if isinstance(arg, DType) else (type(arg).__name__, arg)

    last = chunk.index + 1 == len(stages.chunks)
    shared = {name for group in stages.shared for name in group.names}
    received = tuple((number(ref.name), ref.index, graph.meta(ref), graph.has_gradient(ref)) for ref in graph.received)
    before = tuple(str(strategy.signatures[ref.name].outs[ref.index]) for ref in graph.received)
    nodes = tuple(
        (
            number(node.name), node.op, node.rule, node.outputs, tuple(map_arg(arg, place) for arg in node.args),
            tuple((key, map_arg(arg, place)) for key, arg in sorted(node.kwargs.items())),
            strategy.signatures.get(node.name), node.name in graph.differentiable,
        )
        for node in graph.nodes
    )  # fmt: skip
    parameters = tuple(
        (number(leaf.name), leaf.meta, leaf.trained, strategy.parameters[leaf.name], leaf.name in shared)
        for leaf in graph.parameters
    )
    data = tuple((number(leaf.name), leaf.meta) for leaf in graph.data)
    results = tuple((number(ref.name), ref.index) for ref in graph.results)
    runs = tuple((numbers[a], numbers[b]) for a, b in strategy.recompute if a in numbers and b in numbers)
    return received, before, nodes, parameters, data, results, last, runs
