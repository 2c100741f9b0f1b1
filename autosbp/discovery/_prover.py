"""Proves that a call may run in parts: compares every rank's part, forward and backward, with the whole.

``layouts`` proposes output layouts on the first sample; ``holds`` proves a choice of options, one per mesh axis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import gcd, inf, prod

import torch

from autosbp.discovery._call import Call, Draw
from autosbp.discovery._samples import Sample
from autosbp.discovery._sharded_tensors import is_close, shard_tensor, unshard_tensor
from autosbp.graph.int_attributes import Path, attribute, integer_attributes
from autosbp.sbp.layout import B, NdSbp, P, S, Sbp, gradient_sbp

EXTREMA = (Sbp("P", reduction="max"), Sbp("P", reduction="min"))


MAX_RUNS = 60_000


class OutOfBudget(Exception):
    """The op has used up its runs or its time."""


@dataclass(frozen=True, slots=True)
class SplitWay:
    """One way to run a call on an axis: the states of its tensors, and the integer attributes to divide."""

    ins: tuple[Sbp, ...]
    outs: tuple[Sbp, ...]
    divided: tuple[Path, ...] = ()


@dataclass
class Prover:
    """Runs parts of one call, at most ``runs_left`` times and until ``deadline_s`` of the clock."""

    call: Call
    samples: Sequence[Sample]
    runs_left: int = MAX_RUNS
    deadline_s: float = inf
    clock: Callable[[], float] = time.monotonic
    _output_varies: list[bool] = field(default_factory=list)
    _parts: dict[tuple[int, int, Sbp, int], list[torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._output_varies = [_varies(outs) for outs in zip(*(sample.outputs for sample in self.samples), strict=True)]

    def matches_call(self, way: SplitWay) -> bool:
        """Whether ``way`` matches the call's number of tensors, their dims and its attributes."""
        sample = self.samples[0]
        if (len(way.ins), len(way.outs)) != (len(sample.values), len(sample.outputs)):
            return False
        states = zip((*way.ins, *way.outs), (*sample.values, *sample.outputs), strict=True)
        known = dict(integer_attributes(self.call.args, self.call.kwargs))
        return all(sbp.dim < value.dim() for sbp, value in states if sbp.is_split) and known.keys() >= set(way.divided)

    def extent(self, ins: Sequence[Sbp], outs: Sequence[Sbp], divided: Sequence[Path]) -> int:
        """Size that the number of parts must divide; 0 if nothing is split."""
        size = 0
        for states, values in ((ins, self.samples[0].values), (outs, self.samples[0].outputs)):
            for sbp, value in zip(states, values, strict=False):  # outputs are unknown while candidates are tried
                if sbp.is_split:
                    size = gcd(size, value.shape[sbp.dim])
        for path in divided:
            size = gcd(size, attribute(self.call.args, self.call.kwargs, path))
        return size

    def counts(self, ins: Sequence[Sbp], outs: Sequence[Sbp], divided: Sequence[Path]) -> list[int]:
        """Numbers of parts, of 2 and 3, that divide all split sizes."""
        extent = self.extent(ins, outs, divided)
        return [count for count in (2, 3) if extent % count == 0]

    def layouts(self, ins: tuple[Sbp, ...], divided: tuple[Path, ...], size: int) -> Iterator[tuple[Sbp, ...]]:
        """Output states in which the outputs of the parts recombine to those of the first sample."""
        sample = self.samples[0]
        parts = [self._cut(at, sbp, size) for at, sbp in enumerate(ins)]
        paths = [(path, size) for path in divided]
        ranks: list[tuple[torch.Tensor, ...]] = []
        with torch.no_grad():
            for rank in range(size):
                outs = self._run([part[rank] for part in parts], paths)
                if outs is None or len(outs) != len(sample.outputs):
                    return
                ranks.append(outs)
        choices = [
            [
                sbp
                for sbp in self._states(at, ranks[0][at])
                if is_close(
                    unshard_tensor([outs[at] for outs in ranks], (sbp,), (size,), sample.tolerance),
                    whole,
                    sample.tolerance,
                )
            ]
            for at, whole in enumerate(sample.outputs)
        ]
        yield from product(*choices)

    def holds(self, ways: Sequence[SplitWay], sizes: tuple[int, ...], samples: Sequence[Sample] | None = None) -> bool:
        """Whether the ways, one for each mesh axis of ``sizes``, hold on all samples, forward and backward."""
        return all(self._holds(sample, ways, sizes) for sample in samples or self.samples)

    def _holds(self, sample: Sample, ways: Sequence[SplitWay], sizes: tuple[int, ...]) -> bool:
        generator = torch.Generator().manual_seed(17)
        ins = _columns([way.ins for way in ways])
        outs = _columns([way.outs for way in ways])
        parts = [
            shard_tensor(value, layout, sizes, generator) for value, layout in zip(sample.values, ins, strict=True)
        ]
        incoming = [
            shard_tensor(value, _gradient(layout), sizes, generator)
            for value, layout in zip(sample.incoming, outs, strict=True)
        ]
        paths = [(path, size) for way, size in zip(ways, sizes, strict=True) for path in way.divided]
        ranks = []
        for rank in range(prod(sizes)):
            found = self._run_backward([part[rank] for part in parts], [part[rank] for part in incoming], paths)
            if found is None or len(found[0]) != len(sample.outputs):
                return False
            ranks.append(found)
        tracked = [layout for layout, spec in zip(ins, self.call.tensors, strict=True) if spec.tracked]
        wanted = [(layout, whole, [rank[0][at] for rank in ranks])
                  for at, (layout, whole) in enumerate(zip(outs, sample.outputs, strict=True))]  # fmt: skip
        wanted += [(_gradient(layout), whole, [rank[1][at] for rank in ranks])
                   for at, (layout, whole) in enumerate(zip(tracked, sample.gradients, strict=True))]  # fmt: skip
        return all(
            is_close(unshard_tensor(pieces, layout, sizes, sample.tolerance), whole, sample.tolerance)
            for layout, whole, pieces in wanted
        )

    def _states(self, at: int, part: torch.Tensor) -> Iterator[Sbp]:
        """Possible states of an output whose parts have this shape, likeliest first."""
        whole = self.samples[0].outputs[at]
        if whole.shape != part.shape:
            changed = [
                dim for dim, size in enumerate(whole.shape) if part.dim() == whole.dim() and part.shape[dim] != size
            ]
            if len(changed) == 1:
                yield S(changed[0])
        elif self._output_varies[at]:  # a constant output cannot distinguish sums from copies
            if whole.dtype != torch.bool:
                yield P
                if not whole.is_floating_point() or not any(spec.tracked for spec in self.call.tensors):
                    yield from EXTREMA
            yield B

    def _cut(self, at: int, sbp: Sbp, size: int) -> list[torch.Tensor]:
        key = (0, at, sbp, size)
        if key not in self._parts:
            generator = torch.Generator().manual_seed(at)
            self._parts[key] = shard_tensor(self.samples[0].values[at], (sbp,), (size,), generator)
        return self._parts[key]

    def _run(self, values: Draw, paths: Sequence[tuple[Path, int]]) -> tuple[torch.Tensor, ...] | None:
        self._spend()
        try:
            return self.call.run(values, paths)
        except Exception:  # parts that do not fit together; ops raise all kinds of exceptions
            return None

    def _run_backward(
        self, values: Draw, incoming: Draw, paths: Sequence[tuple[Path, int]]
    ) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]] | None:
        self._spend()
        try:
            return self.call.gradients(values, incoming, paths)
        except Exception:  # as above, for backward
            return None

    def _spend(self) -> None:
        if self.runs_left <= 0 or self.clock() > self.deadline_s:
            raise OutOfBudget
        self.runs_left -= 1


def _varies(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether the values of one output differ, over all samples."""
    values = torch.cat([out.reshape(-1) for out in outputs])
    return bool((values != values[:1]).any())


def _columns(rows: Sequence[tuple[Sbp, ...]]) -> list[NdSbp]:
    """Layouts of each tensor from its state on each axis."""
    return [tuple(column) for column in zip(*rows, strict=True)]


def _gradient(layout: NdSbp) -> NdSbp:
    return tuple(gradient_sbp(sbp) for sbp in layout)
