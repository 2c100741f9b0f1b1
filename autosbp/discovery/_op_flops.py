"""Cost of an op, measured on stand-ins, as products of tensor sizes.

The FLOPs of the forward pass, found by doubling one size after the other; the tensors that autograd saves for backward;
and the size of its other saved data.
"""

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
from autosbp.graph.discovered_rules import OUTPUT

MAX_EXPONENT = 4
SizeProduct = tuple[float, tuple[tuple[int, int], ...]]
"""FLOPs, or elements, per point of the product of the sizes of these (tensor, dim) pairs."""


def forward_flops(stand_in: StandIn) -> SizeProduct:
    """FLOPs of the stand-in's call; 0 if torch counts none, as for an op without matrix products or in C++."""
    return _product(stand_in, _flops)


def saved_workspace(stand_in: StandIn) -> SizeProduct:
    """Elements, in the first output's dtype, that autograd saves besides arguments and first output.

    An example are the gates of a recurrent layer.
    """
    return _product(stand_in, _workspace)


def _product(stand_in: StandIn, measure: Callable[[Call], float]) -> SizeProduct:
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
            # If the op rejects this, it may have sizes that are multiples of this one, like gates of a hidden state.
            more = measure(stand_in.with_doubled_size(value)) or measure(
                stand_in.with_doubled_size(value, multiples=True)
            )
            sizes += [place] * (min(MAX_EXPONENT, max(0, round(log2(more / base)))) if more else 0)
    return base / prod(call.tensors[at].shape[dim] for at, dim in sizes), tuple(sizes)


def _flops(call: Call) -> float:
    """FLOPs counted by torch; for an op written in Python, those of the ops that it calls."""
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


def saved_tensors(call: Call, sample: Sample) -> tuple[int, ...]:
    """Tensor arguments that autograd saves when the call runs, and ``OUTPUT`` if it saves the first output."""
    places, kept, outputs = _run_and_record_saved(call, sample)
    found = sorted(places[storage] for storage in kept if storage in places)
    first = outputs[0].untyped_storage().data_ptr()
    return (*found, *((OUTPUT,) if first in kept and first not in places else ()))


def _workspace(call: Call) -> float:
    try:
        (sample,) = samples(call, 1)
    except Undiscoverable:
        return 0.0
    places, kept, outputs = _run_and_record_saved(call, sample)
    known = {*places, outputs[0].untyped_storage().data_ptr()}
    return sum(size for storage, size in kept.items() if storage not in known) / outputs[0].element_size()


def _run_and_record_saved(
    call: Call, sample: Sample
) -> tuple[dict[int, int], dict[int, int], tuple[torch.Tensor, ...]]:
    """Positions of arguments by storage, bytes that autograd saves by storage, and the outputs."""
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
