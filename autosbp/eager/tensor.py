"""``PlacedTensor``: a tensor with a placement and a layout; torch functions accept it, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.cross_mesh_resharding import TransferPlan
from autosbp.eager._call_programs import program_of
from autosbp.eager._comm_record import CommRecord
from autosbp.eager.placement import Placement, SbpLike, dtype_name
from autosbp.errors import InputError, UnsupportedError
from autosbp.executor import comm_ops
from autosbp.executor.cross_mesh_resharding import transfer
from autosbp.executor.parameter_shards import shard
from autosbp.graph.eager_calls import CallTensor, Slot
from autosbp.graph.ir import TensorMeta
from autosbp.graph.to_fx import torch_dtype
from autosbp.sbp.layout import B, NdSbp, format_nd_sbp, gradient_sbp, invariant_as_replicated

METADATA_NAMES = frozenset(
    ("__len__", "device", "dim", "dtype", "element_size", "is_complex", "is_floating_point", "is_signed", "ndim",
     "ndimension", "nelement", "numel", "shape", "size")
)  # fmt: skip
"""Attributes and methods that need only a tensor's shape and dtype."""


@dataclass(frozen=True, slots=True)
class _TensorState:
    """A process's view of a tensor.

    ``local`` is its part, None outside of the placement. ``tracked`` says whether a gradient flows into the tensor,
    equal on all processes; ``tokens`` belong to the transfers that produced it.
    """

    placement: Placement
    layout: NdSbp
    local: torch.Tensor | None
    tracked: bool
    tokens: tuple[torch.Tensor, ...] = ()


class PlacedTensor(torch.Tensor):
    """Created by ``distribute``, ``from_local``, ``randn`` and the like, and by torch functions of placed tensors.

    A function's operands must share one placement. They are boxed to the layouts of the function's signature with the
    cheapest boxing; if their layouts match a signature, none is needed. Plain tensors among the operands are whole and
    equal on every process. Gradients flow; call ``backward`` on every process, including those without a part of the
    loss.
    """

    _part: _TensorState

    @property
    def placement(self) -> Placement:
        return self._part.placement

    @property
    def layout(self) -> NdSbp:  # type: ignore[override]
        """One entry per axis of the placement's mesh (unrelated to torch's ``layout``)."""
        return self._part.layout

    @property
    def local(self) -> torch.Tensor | None:
        """This process's part, which autograd tracks; None outside of the placement."""
        return self._part.local

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return self._part.tracked

    @property
    def grad(self) -> PlacedTensor | None:  # type: ignore[override]
        """Gradient accumulated by ``backward``, in the layout of gradients: P for B, B for I and P, S for S.

        None if there is none, as on processes outside of the placement.
        """
        local = self._part.local
        if local is None or not local.is_leaf or local.grad is None:
            return None
        layout = invariant_as_replicated(tuple(map(gradient_sbp, self.layout)))
        return make_placed_tensor(local.grad, self.placement, layout, tuple(self.shape), self.dtype)

    def to_layout(self, placement: Placement, sbp: SbpLike) -> PlacedTensor:
        """The same tensor in another layout, on another placement, or both, by the cheapest path.

        Call on every process of both placements; on other processes it only returns the result's metadata.

        Raises:
            InputError: the tensor cannot have this layout there.
        """
        if not isinstance(placement, Placement):
            raise InputError("placement", placement, "expected a Placement")
        tracked = self._part.tracked and torch.is_grad_enabled()
        shape, dtype = tuple(self.shape), self.dtype
        layout = placement.layout(sbp, shape, dtype, tracked=tracked)
        src = self.layout if tracked else invariant_as_replicated(self.layout)
        if placement == self.placement:
            return make_placed_tensor(
                self._box_local(src, layout, tracked), placement, layout, shape, dtype, tracked, self._part.tokens
            )
        plan = self.placement.transfer_to(placement, src, layout, shape, dtype, tracked=tracked)
        local, token = self._transfer_local(plan, placement)
        tokens = () if token is None else (token,)
        return make_placed_tensor(local, placement, layout, shape, dtype, tracked, (*self._part.tokens, *tokens))

    def _box_local(self, src: NdSbp, dst: NdSbp, tracked: bool) -> torch.Tensor | None:
        local, runtime = self._part.local, self.placement.runtime
        if local is None or runtime is None or src == dst:
            return local
        num_bytes = self.numel() * self.element_size()
        steps = self.placement.boxing.plan(src, dst, tuple(self.shape), num_bytes, tracked)
        return comm_ops.run_steps(local, steps, runtime)

    def _transfer_local(
        self, plan: TransferPlan, placement: Placement
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        ends = self.placement.runtime, placement.runtime
        return transfer(self._part.local, plan, *ends, dist.get_rank(), placement.device, CommRecord())

    def full(self) -> torch.Tensor | None:
        """The whole tensor, a plain one, on every process of the placement; None on others.

        If every process computes the same loss from it, gradients are those of one device.
        """
        return self.to_layout(self.placement, "I").local

    def backward(self, gradient: PlacedTensor | None = None) -> None:  # type: ignore[override]
        """Compute the gradients of all leaves; call on every process.

        Args:
            gradient: of this tensor, on its placement; by default 1 for a tensor of one element.

        Raises:
            InputError: no gradient flows into the tensor, or ``gradient_sbp`` is missing or does not fit.
        """
        part = self._part
        if not part.tracked:
            raise InputError("backward", repr(self), "expected a tensor that depends on one that requires a gradient")
        seed = self._root_gradient(gradient)
        roots, seeds = list(part.tokens), [torch.zeros_like(token) for token in part.tokens]
        if part.local is not None and seed is not None:
            roots, seeds = [part.local, *roots], [seed, *seeds]
        if roots:
            torch.autograd.backward(roots, seeds)

    def _root_gradient(self, given: PlacedTensor | None) -> torch.Tensor | None:
        layout = invariant_as_replicated(tuple(map(gradient_sbp, self.layout)))
        if given is not None:
            if not isinstance(given, PlacedTensor) or given.shape != self.shape or given.placement != self.placement:
                limit = f"expected a placed tensor of shape {list(self.shape)} on {self.placement!r}"
                raise InputError("gradient", repr(given), limit)
            return given.detach().to_layout(self.placement, layout).local
        if self.numel() != 1:
            limit = f"expected a gradient of shape {list(self.shape)}; only a scalar has the implicit gradient 1"
            raise InputError("gradient", None, limit)
        runtime = self.placement.runtime
        whole = torch.ones(self.shape, dtype=self.dtype, device=self.placement.device)
        return None if runtime is None else shard(whole, layout, self.placement.mesh, runtime.coordinate)

    def detach(self) -> PlacedTensor:
        """The same values without gradient."""
        local = None if self._part.local is None else self._part.local.detach()
        return make_placed_tensor(
            local, self.placement, invariant_as_replicated(self.layout), tuple(self.shape), self.dtype
        )

    def __repr__(self) -> str:  # type: ignore[override]
        shown = f"shape={list(self.shape)}, layout={format_nd_sbp(self.layout)}, placement={list(self.placement.ranks)}"
        return f"PlacedTensor({shown}, local={None if self.local is None else list(self.local.shape)})"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if (getattr(func, "__self__", func).__name__ if name == "__get__" else name) in METADATA_NAMES:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return _call(func, args, kwargs or {})


def make_placed_tensor(
    local: torch.Tensor | None,
    placement: Placement,
    layout: NdSbp,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tracked: bool = False,
    tokens: tuple[torch.Tensor, ...] = (),
) -> PlacedTensor:
    """A tensor whose part here is ``local``; checks nothing."""
    tensor = torch.empty(shape, dtype=dtype, device="meta").as_subclass(PlacedTensor)
    tensor._part = _TensorState(placement, layout, local, tracked, tokens)
    return tensor


def _call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``func`` on placed tensors."""
    given: list[torch.Tensor] = []
    args, kwargs = _replace_with_slots(tuple(args), given), _replace_with_slots(dict(kwargs), given)
    operands = [tensor for tensor in given if isinstance(tensor, PlacedTensor)]
    placement = _common_placement(getattr(func, "__name__", str(func)), operands)
    tensors = [_call_tensor(tensor, placement) for tensor in given]
    program = program_of(func, args, kwargs, tensors, placement)
    parts = program.run([each._part.local if isinstance(each, PlacedTensor) else each for each in given])
    tokens = tuple({id(token): token for each in operands for token in each._part.tokens}.values())
    return program.build([
        make_placed_tensor(part, placement, result.layout, result.meta.sizes, torch_dtype(result.meta.dtype), result.tracked,
               tokens if result.tracked else ())
        for part, result in zip(parts, program.results, strict=True)
    ])  # fmt: skip


def _replace_with_slots(arg: Any, found: list[torch.Tensor]) -> Any:
    """``arg`` with a slot in place of each tensor, which is appended to ``found``."""
    if isinstance(arg, torch.Tensor):
        found.append(arg)
        return Slot(len(found) - 1)
    if isinstance(arg, (list, tuple)):
        items = [_replace_with_slots(item, found) for item in arg]
        return tuple(items) if isinstance(arg, tuple) else items
    if isinstance(arg, slice):
        return slice(*(_replace_with_slots(end, found) for end in (arg.start, arg.stop, arg.step)))
    return {word: _replace_with_slots(item, found) for word, item in arg.items()} if isinstance(arg, dict) else arg


def _common_placement(name: str, operands: Sequence[PlacedTensor]) -> Placement:
    first = operands[0].placement
    for operand in operands[1:]:
        if operand.placement != first:
            limit = f"expected operands of {name} on one placement; call to_layout to move them to {first!r}"
            raise InputError("placement", operand.placement, limit)
    return first


def _call_tensor(tensor: torch.Tensor, placement: Placement) -> tuple[CallTensor, NdSbp]:
    meta = TensorMeta(tuple(tensor.shape), dtype_name(tensor.dtype))
    if isinstance(tensor, PlacedTensor):
        tracked = tensor._part.tracked and torch.is_grad_enabled()
        return CallTensor(meta, True, tracked), tensor.layout if tracked else invariant_as_replicated(tensor.layout)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            f"a plain tensor of shape {list(tensor.shape)} that requires a gradient is mixed with placed tensors; "
            "distribute it first"
        )
    return CallTensor(meta, False, False), (B,) * placement.mesh.ndim
