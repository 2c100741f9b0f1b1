"""Parameters of a physical program: initial values, shards, DTensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import torch

from autosbp.graph.ir import LogicalGraph, Parameter, Ref
from autosbp.graph.materialise import dtype_of, initial_parameter
from autosbp.plan import Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import NdSbp, local_shape, shard_index, to_torch


def random_parameter(graph: LogicalGraph, parameter: Parameter, seed: int) -> torch.Tensor:
    """A usual initial value by the parameter's role: norm scales 1, biases 0, others normal with 1/sqrt(fan in).

    The same on every rank and in every layout: the generator's seed is a hash of ``seed`` and the name.
    """
    shape, dtype = parameter.meta.sizes, dtype_of(parameter.meta.dtype)
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


def full_parameters(
    graph: LogicalGraph, seed: int, sources: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Whole parameters by name: cut out of a checkpoint's tensors where given, else random."""
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
    """The stored parts of one device of these parameters; those that are trained require a gradient."""
    leaves = {leaf.name: leaf for leaf in graph.parameters}
    return {
        name: shard(whole[name], strategy.parameters[name], strategy.mesh, coordinate)
        .to(device)
        .requires_grad_(leaves[name].trained and leaves[name].meta.is_float)
        for name in names
    }


def combine(parts: list[torch.Tensor], layout: NdSbp, mesh: Mesh, shape: tuple[int, ...]) -> torch.Tensor:
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


def as_dtensors(
    graph: LogicalGraph, strategy: Strategy, locals_: Mapping[str, torch.Tensor], device_mesh: Any
) -> dict[str, Any]:
    """The parameters as DTensors over ``device_mesh`` (the strategy's mesh), for ``torch.distributed.checkpoint``."""
    from torch.distributed.tensor import DTensor

    return {
        leaf.name: DTensor.from_local(
            locals_[leaf.name].detach(),
            device_mesh,
            to_torch(strategy.parameters[leaf.name]),
            run_check=False,
            shape=torch.Size(leaf.meta.sizes),
            stride=torch.empty(leaf.meta.sizes, device="meta").stride(),
        )
        for leaf in graph.parameters
    }
