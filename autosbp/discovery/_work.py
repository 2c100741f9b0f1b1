"""What an op costs, seen on stand-ins: FLOPs of its forward pass as a product of sizes (one size after the other is made
twice as large), the tensors that autograd keeps for its backward pass, and how much it keeps beside them, as such a product."""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod
from typing import Any

import torch
from torch._library.custom_ops import _maybe_get_opdef
from torch.utils.flop_counter import FlopCounterMode

from autosbp.discovery._call import Call
from autosbp.discovery._samples import Sample, Undiscoverable, samples
from autosbp.discovery._stand_ins import StandIn
from autosbp.graph.found import OUTPUT

MAX_EXPONENT = 4
Work = tuple[float, tuple[tuple[int, int], ...]]
"""FLOPs, or elements, for each point of the product of the sizes of these (tensor, dim) pairs."""


def work_of(stand_in: StandIn) -> Work:
    """The work of the stand-in's call; 0 where torch counts none, as for an op without matrix products or in C++."""
    return _product(stand_in, _flops)


def workspace_of(stand_in: StandIn) -> Work:
    """Elements of the first output's dtype that autograd keeps of the stand-in's call, beside its arguments and its first
    output, such as the gates of a recurrent layer."""
    return _product(stand_in, _workspace)


def _product(stand_in: StandIn, measure: Callable[[Call], float]) -> Work:
    base = measure(stand_in.call)
    if not base:
        return 0.0, ()
    sizes: list[tuple[int, int]] = []
    call = stand_in.call
    for value, small in stand_in.sizes.items():
        place = next(
            ((at, dim) for at, spec in enumerate(call.tensors) for dim, size in enumerate(spec.shape) if size == small),
            None,
        )
        if place is not None:
            # Where the op refuses that, it may have sizes that are multiples of this one, as gates are of a state.
            more = measure(stand_in.grown(value)) or measure(stand_in.grown(value, multiples=True))
            sizes += [place] * (min(MAX_EXPONENT, max(0, round(log2(more / base)))) if more else 0)
    return base / prod(call.tensors[at].shape[dim] for at, dim in sizes), tuple(sizes)


def _flops(call: Call) -> float:
    """What torch counts; an op written in Python is counted by the ops that it calls."""
    try:
        (sample,) = samples(call, 1)
        counted = Call(_implementation(call.op), call.args, call.kwargs, call.tensors)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            counted.run(sample.values)
    except Undiscoverable:
        return 0.0
    return float(counter.get_total_flops())


def _implementation(op: Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(op, torch._ops.OpOverload):
        return op
    definition = _maybe_get_opdef(op)
    return op if definition is None else definition._init_fn


def saved_by(call: Call, sample: Sample) -> tuple[int, ...]:
    """The tensor arguments that autograd keeps when the call runs, and ``OUTPUT`` where it keeps the first output."""
    places, kept, outputs = _kept(call, sample)
    found = sorted(places[storage] for storage in kept if storage in places)
    first = outputs[0].untyped_storage().data_ptr()
    return (*found, *((OUTPUT,) if first in kept and first not in places else ()))


def _workspace(call: Call) -> float:
    try:
        (sample,) = samples(call, 1)
    except Undiscoverable:
        return 0.0
    places, kept, outputs = _kept(call, sample)
    known = {*places, outputs[0].untyped_storage().data_ptr()}
    return sum(size for storage, size in kept.items() if storage not in known) / outputs[0].element_size()


def _kept(call: Call, sample: Sample) -> tuple[dict[int, int], dict[int, int], tuple[torch.Tensor, ...]]:
    """By their storages: the places of arguments, and the bytes of all that autograd keeps; and the outputs."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    leaves = [
        value.detach().clone().requires_grad_(spec.tracked and value.is_floating_point())
        for value, spec in zip(sample.values, call.tensors, strict=True)
    ]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = call.run(leaves)
    return {leaf.untyped_storage().data_ptr(): at for at, leaf in enumerate(leaves)}, kept, outputs
