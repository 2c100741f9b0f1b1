"""Cache of costs for pipeline chunks that differ only in the names of their ops and values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from autosbp.costmodel.pipeline_program import PipelineChunk, PipelineProgram
from autosbp.utils.hashed_key import HashedKey
from autosbp.utils.parallel import run_serial

T = TypeVar("T")


@dataclass(slots=True)
class ChunkCostCache:
    """Cache of chunk costs across the strategies of one graph on one cluster.

    Search costs many strategies that differ little. When the cache is full, it evicts the oldest entry.

    Args:
        run: runs independent tasks; it may run some in another process.
        most: maximum number of entries.
    """

    run: Callable[[Sequence[Callable[[], Any]]], list[Any]] = run_serial
    most: int = 256
    _found: dict[Hashable, Any] = field(default_factory=dict)

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the entry of ``key``; compute it with ``make`` if it is missing."""
        if key not in self._found:
            self._keep(key, make())
        known: T = self._found[key]
        return known

    def prepare(self, makers: Mapping[Hashable, Callable[[], Any]]) -> None:
        """Compute all missing entries with one call of ``run``."""
        missing = {key: make for key, make in makers.items() if key not in self._found}
        for key, found in zip(missing, self.run(list(missing.values())), strict=True):
            self._keep(key, found)

    def _keep(self, key: Hashable, found: object) -> None:
        while len(self._found) >= self.most:
            del self._found[next(iter(self._found))]
        self._found[key] = found


def chunk_key(stages: PipelineProgram, chunk: PipelineChunk) -> Hashable:
    """Key that is equal for chunks of one program whose passes take the same time and memory.

    Such chunks have the same ops in the same layouts with the same wiring, parameters that are stored, shared and
    synchronized alike, the same recomputed segments and the same received layouts; and the last chunk, which sends to
    no other, equals no other chunk.
    """
    if chunk.index not in stages.kinds:
        kind = HashedKey(_kind(stages, chunk))
        stages.kinds[chunk.index] = stages.interned_chunk_keys.setdefault(kind, kind)
    return stages.kinds[chunk.index]


def _kind(stages: PipelineProgram, chunk: PipelineChunk) -> Hashable:
    graph, strategy = chunk.graph, stages.strategy
    numbers, wiring = graph.structural_key
    shared = {name for group in stages.shared for name in group.names}
    before = tuple(str(strategy.signatures[ref.name].outs[ref.index]) for ref in graph.received_refs)
    signatures = tuple([strategy.signatures.get(node.name) for node in graph.nodes])
    parameters = tuple([(strategy.parameters[leaf.name], leaf.name in shared) for leaf in graph.parameters])
    configured = {} if strategy.sync is None else strategy.sync.parameters
    syncs = tuple([configured.get(leaf.name) for leaf in graph.parameters]) if configured else ()
    runs = tuple((numbers[a], numbers[b]) for a, b in strategy.recompute if a in numbers and b in numbers)
    return wiring, before, signatures, parameters, chunk.index + 1 == len(stages.chunks), runs, syncs
