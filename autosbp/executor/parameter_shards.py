"""Parameters of a physical program: initial values, shards, DTensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import torch

from autosbp.graph.ir import LogicalGraph, Parameter, ParameterMeta, Ref
from autosbp.graph.to_fx import initial_parameter, torch_dtype
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import NdSbp, local_shape, shard_index, to_torch
from autosbp.sbp.mesh import Mesh


def random_parameter(graph: LogicalGraph, parameter: Parameter, seed: int) -> torch.Tensor:
    """A usual initial value by the parameter's role: norm scales 1, biases 0, others normal with 1/sqrt(fan in).

    Embeddings are normal with 0.02. The value is the same on every rank and in every layout: the generator's seed is a
    hash of ``seed`` and the name.
    """
    shape, dtype = parameter.meta.sizes, torch_dtype(parameter.meta.dtype)
    role = _role(graph, parameter.name)
    if role in ("scale", "bias"):
        return torch.full(shape, 1.0 if role == "scale" else 0.0, dtype=dtype)
    word = hashlib.sha256(f"{seed}/{parameter.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(word[:7], "little"))
    spread = 0.02 if role == "embedding" else prod(shape[1:]) ** -0.5
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul_(spread).to(dtype)


def _role(graph: LogicalGraph, name: str) -> str:
    for node in graph.nodes:
        refs = list(node.refs())
        if Ref(name) in refs:
            at = refs.index(Ref(name))
            if node.op == "aten.embedding.default":
                return "embedding"
            if "_norm." in node.op:
                return "scale" if at == 1 else "bias"
            if node.op in ("aten.linear.default", "aten.conv2d.default", "aten.addmm.default"):
                return "bias" if len(graph.meta(Ref(name)).shape) == 1 else "weight"
            return "scale" if len(graph.meta(Ref(name)).shape) == 1 else "weight"
    return "weight"


def initial_parameters(
    graph: LogicalGraph, seed: int, sources: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Whole parameters by name: cut out of a checkpoint's tensors if given, else random."""
    if sources is None:
        return {leaf.name: random_parameter(graph, leaf, seed) for leaf in graph.parameters}
    return {leaf.name: initial_parameter(leaf, sources) for leaf in graph.parameters}


def shard(tensor: torch.Tensor, layout: NdSbp, mesh: Mesh, coordinate: tuple[int, ...]) -> torch.Tensor:
    """The part of a whole tensor that the device at ``coordinate`` holds (a copy); P keeps it on the first rank."""
    local = local_shape(tuple(tensor.shape), layout, mesh)
    part = tensor
    for dim, size in enumerate(local):
        part = part.narrow(dim, size * shard_index(dim, layout, mesh, coordinate), size)
    if any(sbp.is_partial and place for sbp, place in zip(layout, coordinate, strict=True)):
        return torch.zeros_like(part)
    return part.clone(memory_format=torch.contiguous_format)


def local_parameters(
    graph: LogicalGraph,
    strategy: Strategy,
    whole: Mapping[str, torch.Tensor],
    names: Iterable[str],
    coordinate: tuple[int, ...],
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """One device's stored parts of these parameters in their dtypes; trained ones require a gradient, in its own dtype.

    ``whole`` may be of other dtypes."""
    leaves = {leaf.name: leaf for leaf in graph.parameters}
    return {
        name: make_trainable(
            shard(whole[name], strategy.parameters[name], strategy.mesh, coordinate).to(
                device, torch_dtype(leaves[name].meta.dtype)
            ),
            leaves[name],
        )
        for name in names
    }


def make_trainable(tensor: torch.Tensor, parameter: Parameter) -> torch.Tensor:
    """Make a parameter's tensor require a gradient, accumulated in the gradient's dtype; a frozen one stays as it is."""
    if parameter.trained and parameter.meta.is_float:
        tensor.requires_grad_()
        if isinstance(parameter.meta, ParameterMeta):
            tensor.grad_dtype = torch_dtype(parameter.meta.gradient_dtype)
    return tensor


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Dtype in which a parameter's gradient is accumulated and reduced."""
    return parameter.grad_dtype or parameter.dtype


def unshard(parts: list[torch.Tensor], layout: NdSbp, mesh: Mesh, shape: tuple[int, ...]) -> torch.Tensor:
    """The whole tensor from every rank's part: concatenate S, sum P, take one of B and I."""
    whole = torch.zeros(shape, dtype=parts[0].dtype)
    local = local_shape(shape, layout, mesh)
    for rank, part in enumerate(parts):
        coordinate = mesh.coordinate(rank)
        if any(sbp.is_replicated and place for sbp, place in zip(layout, coordinate, strict=True)):
            continue
        view = whole
        for dim, size in enumerate(local):
            view = view.narrow(dim, size * shard_index(dim, layout, mesh, coordinate), size)
        view += part
    return whole


def distributed_tensor(local: torch.Tensor, layout: NdSbp, shape: tuple[int, ...], device_mesh: Any) -> Any:
    """A DTensor of whole ``shape`` over this rank's part, whose memory it shares.

    Args:
        device_mesh: ``process_groups.stage_device_mesh`` of the layout's mesh.
    """
    from torch.distributed.tensor import DTensor, Replicate

    placements = to_torch(layout) or [Replicate()]
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
