"""``PlacedTensor``: a tensor with a placement and a layout; torch functions work on it, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.transfer import TransferPlan
from autosbp.eager._programs import program_of
from autosbp.eager._record import Announcements
from autosbp.eager.placement import Placement, SbpLike, dtype_name
from autosbp.errors import InputError, UnsupportedError
from autosbp.executor import ops
from autosbp.executor.parameters import shard
from autosbp.executor.transfer import transfer
from autosbp.graph.calls import CallTensor, Slot
from autosbp.graph.ir import TensorMeta
from autosbp.graph.materialise import dtype_of
from autosbp.sbp.placement import B, NdSbp, format_nd_sbp, gradient, without_invariants

FACTS = frozenset(
    ("__len__", "device", "dim", "dtype", "element_size", "is_complex", "is_floating_point", "is_signed", "ndim",
     "ndimension", "nelement", "numel", "shape", "size")
)  # fmt: skip
"""What a tensor's shape and type alone answer."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a process knows of a tensor. ``local`` is its part, None outside of the placement. ``tracked`` tells, on all
    processes alike, whether a gradient flows into it; ``tokens`` are those of the transfers that it came by."""

    placement: Placement
    layout: NdSbp
    local: torch.Tensor | None
    tracked: bool
    tokens: tuple[torch.Tensor, ...] = ()


class PlacedTensor(torch.Tensor):
    """Made by ``distribute``, ``from_local``, ``randn`` and the like, and by torch functions of placed tensors.

    A function's operands lie on one placement. They are boxed to the layouts of that one of the function's signatures
    for which this is cheapest; where their layouts match one, to none. Plain tensors among them are whole and equal on
    every process. Gradients flow; ``backward`` is called on every process, also on those that the loss is not on.
    """

    _part: _Part

    @property
    def placement(self) -> Placement:
        return self._part.placement

    @property
    def layout(self) -> NdSbp:  # type: ignore[override]
        """One entry per axis of the placement's mesh (torch's meaning of the word does not matter here)."""
        return self._part.layout

    @property
    def local(self) -> torch.Tensor | None:
        """This process's part, on which autograd works; None outside of the placement."""
        return self._part.local

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return self._part.tracked

    @property
    def grad(self) -> PlacedTensor | None:  # type: ignore[override]
        """The gradient that ``backward`` left here, in the layout of gradients: P of B, B of I and P, S of S. None
        where there is none, as on processes outside of the placement."""
        local = self._part.local
        if local is None or not local.is_leaf or local.grad is None:
            return None
        layout = without_invariants(tuple(map(gradient, self.layout)))
        return placed(local.grad, self.placement, layout, tuple(self.shape), self.dtype)

    def to_layout(self, placement: Placement, sbp: SbpLike) -> PlacedTensor:
        """The same tensor in another layout, on another placement, or both, by the cheapest path there is.

        Call on every process of both placements; on others it only says what will be there.

        Raises:
            InputError: for a layout that the tensor cannot have there.
        """
        if not isinstance(placement, Placement):
            raise InputError("placement", placement, "a Placement is expected")
        tracked = self._part.tracked and torch.is_grad_enabled()
        shape, dtype = tuple(self.shape), self.dtype
        layout = placement.layout(sbp, shape, dtype, tracked=tracked)
        src = self.layout if tracked else without_invariants(self.layout)
        if placement == self.placement:
            return placed(
                self._boxed(src, layout, tracked), placement, layout, shape, dtype, tracked, self._part.tokens
            )
        plan = self.placement.transfer_to(placement, src, layout, shape, dtype, tracked=tracked)
        local, token = self._sent(plan, placement)
        tokens = () if token is None else (token,)
        return placed(local, placement, layout, shape, dtype, tracked, (*self._part.tokens, *tokens))

    def _boxed(self, src: NdSbp, dst: NdSbp, tracked: bool) -> torch.Tensor | None:
        local, runtime = self._part.local, self.placement.runtime
        if local is None or runtime is None or src == dst:
            return local
        num_bytes = self.numel() * self.element_size()
        steps = self.placement.boxing.plan(src, dst, tuple(self.shape), num_bytes, tracked)
        return ops.run_steps(local, steps, runtime)

    def _sent(self, plan: TransferPlan, placement: Placement) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        ends = self.placement.runtime, placement.runtime
        return transfer(self._part.local, plan, *ends, dist.get_rank(), placement.device, Announcements())

    def full(self) -> torch.Tensor | None:
        """The whole tensor, a plain one, on every process of the placement; None on others. A loss that each of them
        makes of it, all alike, has the gradient of one device."""
        return self.to_layout(self.placement, "I").local

    def backward(self, gradient: PlacedTensor | None = None) -> None:  # type: ignore[override]
        """Gradients of all leaves; on every process.

        Args:
            gradient: of this tensor, on its placement; 1 for a tensor of one element.

        Raises:
            InputError: where no gradient flows, or it is not said which.
        """
        part = self._part
        if not part.tracked:
            raise InputError("backward", repr(self), "a tensor made of one that requires a gradient is expected")
        seed = self._seed(gradient)
        roots, seeds = list(part.tokens), [torch.zeros_like(token) for token in part.tokens]
        if part.local is not None and seed is not None:
            roots, seeds = [part.local, *roots], [seed, *seeds]
        if roots:
            torch.autograd.backward(roots, seeds)

    def _seed(self, given: PlacedTensor | None) -> torch.Tensor | None:
        layout = without_invariants(tuple(map(gradient, self.layout)))
        if given is not None:
            if not isinstance(given, PlacedTensor) or given.shape != self.shape or given.placement != self.placement:
                limit = f"a placed tensor of shape {list(self.shape)} on {self.placement!r} is expected"
                raise InputError("gradient", repr(given), limit)
            return given.detach().to_layout(self.placement, layout).local
        if self.numel() != 1:
            limit = f"a gradient of shape {list(self.shape)} is expected; only that of one number is known to be 1"
            raise InputError("gradient", None, limit)
        runtime = self.placement.runtime
        whole = torch.ones(self.shape, dtype=self.dtype, device=self.placement.device)
        return None if runtime is None else shard(whole, layout, self.placement.mesh, runtime.coordinate)

    def detach(self) -> PlacedTensor:
        """The same values, into which no gradient flows."""
        local = None if self._part.local is None else self._part.local.detach()
        return placed(local, self.placement, without_invariants(self.layout), tuple(self.shape), self.dtype)

    def __repr__(self) -> str:  # type: ignore[override]
        shown = f"shape={list(self.shape)}, layout={format_nd_sbp(self.layout)}, placement={list(self.placement.ranks)}"
        return f"PlacedTensor({shown}, local={None if self.local is None else list(self.local.shape)})"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if (getattr(func, "__self__", func).__name__ if name == "__get__" else name) in FACTS:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return _call(func, args, kwargs or {})


def placed(
    local: torch.Tensor | None,
    placement: Placement,
    layout: NdSbp,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tracked: bool = False,
    tokens: tuple[torch.Tensor, ...] = (),
) -> PlacedTensor:
    """A tensor whose part here is ``local``; nothing is checked."""
    tensor = torch.empty(shape, dtype=dtype, device="meta").as_subclass(PlacedTensor)
    tensor._part = _Part(placement, layout, local, tracked, tokens)
    return tensor


def _call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``func`` of placed tensors."""
    given: list[torch.Tensor] = []
    args, kwargs = _slots(tuple(args), given), _slots(dict(kwargs), given)
    operands = [tensor for tensor in given if isinstance(tensor, PlacedTensor)]
    placement = _common_placement(getattr(func, "__name__", str(func)), operands)
    tensors = [_described(tensor, placement) for tensor in given]
    program = program_of(func, args, kwargs, tensors, placement)
    parts = program.run([each._part.local if isinstance(each, PlacedTensor) else each for each in given])
    tokens = tuple({id(token): token for each in operands for token in each._part.tokens}.values())
    return program.build([
        placed(part, placement, result.layout, result.meta.sizes, dtype_of(result.meta.dtype), result.tracked,
               tokens if result.tracked else ())
        for part, result in zip(parts, program.results, strict=True)
    ])  # fmt: skip


def _slots(arg: Any, found: list[torch.Tensor]) -> Any:
    """``arg`` with a slot in the place of each tensor, which is added to ``found``."""
    if isinstance(arg, torch.Tensor):
        found.append(arg)
        return Slot(len(found) - 1)
    if isinstance(arg, (list, tuple)):
        items = [_slots(item, found) for item in arg]
        return tuple(items) if isinstance(arg, tuple) else items
    if isinstance(arg, slice):
        return slice(*(_slots(end, found) for end in (arg.start, arg.stop, arg.step)))
    return {word: _slots(item, found) for word, item in arg.items()} if isinstance(arg, dict) else arg


def _common_placement(name: str, operands: Sequence[PlacedTensor]) -> Placement:
    first = operands[0].placement
    for operand in operands[1:]:
        if operand.placement != first:
            limit = f"operands of {name} on one placement are expected; call to_layout to bring them to {first!r}"
            raise InputError("placement", operand.placement, limit)
    return first


def _described(tensor: torch.Tensor, placement: Placement) -> tuple[CallTensor, NdSbp]:
    meta = TensorMeta(tuple(tensor.shape), dtype_name(tensor.dtype))
    if isinstance(tensor, PlacedTensor):
        tracked = tensor._part.tracked and torch.is_grad_enabled()
        return CallTensor(meta, True, tracked), tensor.layout if tracked else without_invariants(tensor.layout)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            f"a plain tensor of shape {list(tensor.shape)} that requires a gradient meets placed ones; distribute it first"
        )
    return CallTensor(meta, False, False), (B,) * placement.mesh.ndim
