"""Candidate states of an op's inputs on one mesh axis, likeliest first.

First, dims of equal size are split in every tensor that has one, like the loop indices of an op; then every
combination. Operands that are added to the result, such as a bias, may be P next to split ones, because a contraction's
output is P.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch

from autosbp.discovery._call import Call
from autosbp.discovery._samples import Sample
from autosbp.graph.int_attributes import Path, integer_attributes
from autosbp.sbp.layout import B, P, S, Sbp

MAX_LINEAR = 10
States = tuple[Sbp, ...]


def split_candidates(call: Call, additive: frozenset[int]) -> Iterator[States]:
    """Every combination of S, B and, for additive operands, P, once; with at least one S, and finally all B."""
    states = [_states(spec.shape, at in additive) for at, spec in enumerate(call.tensors)]
    seen: set[States] = set()
    for ins in (*_aligned(call, additive), *()):
        if ins not in seen:
            seen.add(ins)
            yield ins
    for ins in product(*states):
        if ins not in seen and any(sbp.is_split for sbp in ins):
            yield ins
    yield (B,) * len(call.tensors)


def partial_candidates(call: Call) -> Iterator[States]:
    """Sets of inputs that may be P while the others are B: candidates for linearity."""
    numbers = [at for at, spec in enumerate(call.tensors) if spec.dtype != torch.bool]
    if len(numbers) > MAX_LINEAR:
        groups: list[tuple[int, ...]] = [*((at,) for at in numbers), tuple(numbers)]
    else:
        flags = product((False, True), repeat=len(numbers))
        groups = [tuple(at for at, flag in zip(numbers, chosen, strict=True) if flag) for chosen in flags]
    for group in groups:
        if group:
            yield tuple(P if at in group else B for at in range(len(call.tensors)))


def divided_attribute_candidates(call: Call) -> list[tuple[Path, ...]]:
    """Sets of integer attributes to divide with the tensors: none, each one, and all with equal values."""
    paths: dict[int, list[Path]] = {}
    for path, value in integer_attributes(call.args, call.kwargs):
        if value > 1 and (value % 2 == 0 or value % 3 == 0):
            paths.setdefault(value, []).append(path)
    single = [(path,) for equal in paths.values() for path in equal]
    return [(), *single, *(tuple(equal) for equal in paths.values() if len(equal) > 1)]


def additive_inputs(call: Call, sample: Sample, other: Sample) -> frozenset[int]:
    """Inputs whose change shifts the output by a proportional amount, independent of the other inputs."""
    floats = [at for at, value in enumerate(sample.values) if value.is_floating_point()]
    if len(floats) < 2 or len(sample.outputs) != 1:
        return frozenset()
    return frozenset(at for at in floats if _is_additive(call, sample, other, floats, at))


def _is_additive(call: Call, sample: Sample, other: Sample, floats: Sequence[int], at: int) -> bool:
    mixed = [value if place == at or place not in floats else other.values[place]
             for place, value in enumerate(sample.values)]  # fmt: skip
    step = torch.randn(sample.values[at].shape, generator=torch.Generator().manual_seed(at), dtype=torch.float64)
    step = step.to(sample.values[at].dtype)
    try:
        with torch.no_grad():
            changes = [
                call.run([value + factor * step if place == at else value for place, value in enumerate(values)])[0]
                - call.run(values)[0]
                for values, factor in ((sample.values, 1), (mixed, 1), (sample.values, 2))
            ]
    except Exception:  # values of two samples may not fit together
        return False
    tolerance = 10 * sample.tolerance * (1 + float(changes[0].abs().max() if changes[0].numel() else 0.0))
    differences = (changes[0] - changes[1], 2 * changes[0] - changes[2])
    moved = bool((changes[0] != 0).any())
    return moved and all(bool((difference.abs() <= tolerance).all()) for difference in differences)


def _states(shape: tuple[int, ...], additive: bool) -> list[Sbp]:
    dims = [S(dim) for dim, size in enumerate(shape) if size > 1 and (size % 2 == 0 or size % 3 == 0)]
    return [*dims, B, *((P,) if additive else ())]


def _aligned(call: Call, additive: frozenset[int]) -> Iterator[States]:
    """For each size, dims of that size split together: the first of each tensor, the last, or those at one position."""
    sizes = {size: None for spec in call.tensors for size in spec.shape if size > 1}
    for size in sizes:
        dims = [[dim for dim, extent in enumerate(spec.shape) if extent == size] for spec in call.tensors]
        if size % 2 and size % 3:
            continue
        for rest in (P, B):
            for pick in (0, -1):
                yield tuple(S(found[pick]) if found else rest if at in additive else B for at, found in enumerate(dims))
            for place in {dim for found in dims for dim in found}:
                yield tuple(
                    S(place) if place in found else rest if at in additive else B for at, found in enumerate(dims)
                )
