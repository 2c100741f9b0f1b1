"""Which chunks of a pipeline cost the same: those that differ in the names of their ops and values alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from autosbp.beside import in_turn
from autosbp.costmodel.stages import Chunk, Stages
from autosbp.graph.hashed import Hashed

T = TypeVar("T")


@dataclass(slots=True)
class KnownChunks:
    """What is worked out for chunks, for strategies of one graph on one cluster: search costs many that differ little. The
    oldest is forgotten first. ``run`` runs tasks that do not depend on each other, and may hand some to another process."""

    run: Callable[[Sequence[Callable[[], Any]]], list[Any]] = in_turn
    most: int = 256
    _found: dict[Hashable, Any] = field(default_factory=dict)

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is known by this key; made where nothing is."""
        if key not in self._found:
            self._keep(key, make())
        known: T = self._found[key]
        return known

    def prepare(self, makers: Mapping[Hashable, Callable[[], Any]]) -> None:
        """Make what is not known of these."""
        missing = {key: make for key, make in makers.items() if key not in self._found}
        for key, found in zip(missing, self.run(list(missing.values())), strict=True):
            self._keep(key, found)

    def _keep(self, key: Hashable, found: object) -> None:
        while len(self._found) >= self.most:
            del self._found[next(iter(self._found))]
        self._found[key] = found


def chunk_key(stages: Stages, chunk: Chunk) -> Hashable:
    """Of chunks of the same stages equal for those whose passes take equally long and equally much: same ops in same layouts,
    wired in the same way, with parameters that are stored and shared alike, and with the same neighbours to send to."""
    if chunk.index not in stages.kinds:
        kind = Hashed(_kind(stages, chunk))
        stages.kinds[chunk.index] = stages.known_kinds.setdefault(kind, kind)
    return stages.kinds[chunk.index]


def _kind(stages: Stages, chunk: Chunk) -> Hashable:
    graph, strategy = chunk.graph, stages.strategy
    numbers, wiring = graph.wiring
    shared = {name for group in stages.shared for name in group.names}
    before = tuple(str(strategy.signatures[ref.name].outs[ref.index]) for ref in graph.received)
    signatures = tuple([strategy.signatures.get(node.name) for node in graph.nodes])
    parameters = tuple([(strategy.parameters[leaf.name], leaf.name in shared) for leaf in graph.parameters])
    runs = tuple((numbers[a], numbers[b]) for a, b in strategy.recompute if a in numbers and b in numbers)
    return wiring, before, signatures, parameters, chunk.index + 1 == len(stages.chunks), runs
