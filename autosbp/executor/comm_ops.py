"""The communication of a physical program: one function per primitive boxing step, each with its derived backward.

Every function takes the mesh axes of its group and the name of its backward action (the table in ``sbp.boxing``), so a
printed program shows what is sent, where and when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor import _torch_distributed
from autosbp.executor.runtime import Runtime, current
from autosbp.sbp.boxing import BoxingStep, permute_peers, permuted_ranks

REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_generator_lock = threading.Lock()
"""Only one thread draws at a time: a device's generator belongs to the process."""


def all_gather(x: torch.Tensor, axes: tuple[int, ...], src_dim: int, backward: str) -> torch.Tensor:
    """S(src_dim) -> B or I."""
    return _run(x, axes, "all_gather", backward, src_dim, -1)


def reduce_scatter(
    x: torch.Tensor, axes: tuple[int, ...], dst_dim: int, backward: str, reduction: str = "sum"
) -> torch.Tensor:
    """P -> S(dst_dim); partial maxima and minima have no backward."""
    return _run(x, axes, "reduce_scatter", backward, -1, dst_dim, reduction)


def all_reduce(x: torch.Tensor, axes: tuple[int, ...], backward: str, reduction: str = "sum") -> torch.Tensor:
    """P -> B or I; partial maxima and minima have no backward."""
    return _run(x, axes, "all_reduce", backward, -1, -1, reduction)


def all_reduce_loss(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """P -> I of the loss; it overlaps with backward, which sends nothing here (``Runtime.pending``)."""
    apply: Any = _Loss.apply
    out: torch.Tensor = apply(x, tuple(axes), current())
    return out


def all_to_all(x: torch.Tensor, axes: tuple[int, ...], src_dim: int, dst_dim: int, backward: str) -> torch.Tensor:
    """S(src_dim) -> S(dst_dim)."""
    return _run(x, axes, "all_to_all", backward, src_dim, dst_dim)


def slice_shard(x: torch.Tensor, axes: tuple[int, ...], dst_dim: int, backward: str) -> torch.Tensor:
    """B or I -> S(dst_dim): keep this rank's part."""
    return _run(x, axes, "slice", backward, -1, dst_dim)


def pad_shard(x: torch.Tensor, axes: tuple[int, ...], src_dim: int, backward: str) -> torch.Tensor:
    """S(src_dim) -> P: zeros around this rank's part."""
    return _run(x, axes, "pad", backward, src_dim, -1)


def mask(x: torch.Tensor, axes: tuple[int, ...], backward: str) -> torch.Tensor:
    """B or I -> P: the value on the first rank, zeros elsewhere."""
    return _run(x, axes, "mask", backward, -1, -1)


def relabel(x: torch.Tensor, axes: tuple[int, ...], backward: str) -> torch.Tensor:
    """I -> B (backward sums the parts of the gradient) or B -> I."""
    return _run(x, axes, "none", backward, -1, -1)


def permute_ranks(x: torch.Tensor, axes: tuple[int, int], backward: str) -> torch.Tensor:
    """Exchange the layouts of two axes (``sbp.boxing.permuted_ranks``)."""
    return _run(x, axes, "p2p", backward, -1, -1)


def run_steps(x: torch.Tensor, steps: Iterable[BoxingStep], runtime: Runtime) -> torch.Tensor:
    """Boxing steps on this rank's part, one after another."""
    with runtime.active():
        for step in steps:
            x = _run(x, step.axes, step.forward, step.backward, step.src_dim, step.dst_dim, step.reduction)
    return x


def run_random_op(op: Callable[..., Any], node: int, shard: int, *args: Any, **kwargs: Any) -> Any:
    """A random op: replicas draw the same numbers; shards, nodes, microbatches, steps and seeds draw different ones.

    The generator's state is restored afterwards, so that the numbers the training loop draws stay equal on all ranks.
    """
    runtime = current()
    number = 0
    for part in (runtime.seed, runtime.step, runtime.micro, node, shard):
        number = (number * 1_000_003 + part) % 2**63
    generator = _generator(runtime.device)
    with _generator_lock:
        state = generator.get_state()
        generator.manual_seed(number)
        try:
            return op(*args, **kwargs)
        finally:
            generator.set_state(state)


def _generator(device: torch.device) -> torch.Generator:
    """The default generator of ops on ``device``."""
    if device.type == "cpu":
        return torch.default_generator
    module: Any = torch.get_device_module(device)
    generator: torch.Generator = module.default_generators[
        module.current_device() if device.index is None else device.index
    ]
    return generator


def run_step(value: torch.Tensor, step: BoxingStep, runtime: Runtime) -> torch.Tensor:
    """A primitive step without autograd."""
    return _act(value, step.axes, step.forward, step.src_dim, step.dst_dim, runtime)


def run_step_backward(gradient: torch.Tensor, step: BoxingStep, runtime: Runtime) -> torch.Tensor:
    """The backward of a primitive step: from the gradient of its result to that of its input."""
    return _act_back(gradient, step.axes, step.backward, step.src_dim, step.dst_dim, runtime)


def _run(
    x: torch.Tensor,
    axes: tuple[int, ...],
    forward: str,
    backward: str,
    src_dim: int,
    dst_dim: int,
    reduction: str = "sum",
) -> torch.Tensor:
    if reduction != "sum":
        return _act(x.detach(), tuple(axes), forward, src_dim, dst_dim, current(), reduction)
    apply: Any = _Step.apply
    out: torch.Tensor = apply(x, tuple(axes), forward, backward, src_dim, dst_dim, current())
    return out


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        axes: tuple[int, ...],
        forward: str,
        backward: str,
        src_dim: int,
        dst_dim: int,
        runtime: Runtime,
    ) -> torch.Tensor:
        ctx.axes, ctx.action, ctx.dims, ctx.runtime = axes, backward, (src_dim, dst_dim), runtime
        return _act(x, axes, forward, src_dim, dst_dim, runtime)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        src_dim, dst_dim = ctx.dims
        grad = _act_back(grads[0], ctx.axes, ctx.action, src_dim, dst_dim, ctx.runtime)
        return grad, None, None, None, None, None, None


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor, axes: tuple[int, ...], runtime: Runtime) -> torch.Tensor:
        group, ranks = runtime.group(axes)
        total = x.clone()
        runtime.record("all_reduce", total, ranks)
        runtime.pending.append(_torch_distributed.start_all_reduce(total, group))
        return total

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None, None


def _act_back(
    grad: torch.Tensor, axes: tuple[int, ...], action: str, src_dim: int, dst_dim: int, runtime: Runtime
) -> torch.Tensor:
    """Run the backward action: the gradient travels the step in reverse, so source and destination dims swap."""
    return _act(grad, axes[::-1] if action == "p2p" else axes, action, dst_dim, src_dim, runtime)


def _act(
    x: torch.Tensor,
    axes: tuple[int, ...],
    action: str,
    src_dim: int,
    dst_dim: int,
    runtime: Runtime,
    reduction: str = "sum",
) -> torch.Tensor:
    """Run one action from S(src_dim) (or -1) to S(dst_dim) (or -1)."""
    size, place = runtime.mesh.group_size(axes), runtime.position(axes)
    if action == "none" or size == 1:
        return x.view_as(x)
    if action == "mask":
        return x.clone() if place == 0 else torch.zeros_like(x)
    if action == "slice":
        return x.chunk(size, dst_dim)[place].contiguous()
    if action == "pad":
        shape = list(x.shape)
        shape[src_dim] *= size
        out = x.new_zeros(shape)
        out.narrow(src_dim, place * x.shape[src_dim], x.shape[src_dim]).copy_(x)
        return out
    if action == "p2p":
        return _permute(x, axes, runtime)
    group, ranks = runtime.group(axes)
    if action == "all_gather":
        out = _torch_distributed.all_gather(x, src_dim, size, group)
        runtime.record(action, out, ranks)
        return out
    runtime.record(action, x, ranks)
    if action == "reduce_scatter":
        return _torch_distributed.reduce_scatter(x, dst_dim, size, group, REDUCTIONS[reduction])
    if action == "all_to_all":
        return _torch_distributed.all_to_all(x, dst_dim, src_dim, size, group)
    if action == "all_reduce":
        return _torch_distributed.all_reduce(x, group, REDUCTIONS[reduction])
    raise ValueError(f"unknown boxing action {action}")


def _permute(x: torch.Tensor, axes: tuple[int, ...], runtime: Runtime) -> torch.Tensor:
    mesh, rank = runtime.mesh, runtime.rank
    to, source = permuted_ranks(mesh, axes, rank)
    if to == rank:
        return x.clone()
    runtime.record("p2p", x, [mesh.device(peer) for peer in permute_peers(mesh, axes, rank)])
    return _torch_distributed.exchange(x, mesh.device(to), mesh.device(source))
