"""``Placement``: the processes that hold a tensor, as a mesh."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
import torch.distributed as dist

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.cross_mesh_resharding import TransferModel, TransferPlan
from autosbp.costmodel.network import NetworkModel
from autosbp.eager._comm_record import CommRecord
from autosbp.errors import InputError
from autosbp.executor.submesh_runtime import submesh_runtime
from autosbp.graph.ir import DTYPE_BYTES
from autosbp.program.placed_mesh import PlacedMesh, placed_mesh
from autosbp.sbp.boxing import has_single_reduction
from autosbp.sbp.layout import NdSbp, Sbp, format_nd_sbp, invariant_as_replicated, local_shape, parse_nd_sbp
from autosbp.sbp.mesh import Axis

SbpLike = str | Sbp | Sequence[Sbp]
MAX_AXES = 3


class Placement:
    """Some ranks of the process group as a mesh, on which tensors have a layout of one entry per axis.

    The constructor creates process groups: all processes of the default group must create the same placements in the
    same order.

    Args:
        ranks: in ascending order; the mesh numbers them row-major.
        shape: sizes of at most three axes, which multiply to the number of ranks; one axis by default.
        names: of the axes.
        cluster: describes the network between the processes, to choose the cheapest boxing; by default this machine, or
            as many nodes as torchrun's environment says.
        device: of this process's parts.
        seed: of dropout; the same on every process.

    Raises:
        InputError: no process group, ranks that do not exist, or a shape, names or cluster that do not fit.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        *,
        cluster: Cluster | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        if not dist.is_initialized():
            raise InputError("placement", list(ranks), "no process group; call torch.distributed.init_process_group")
        world = dist.get_world_size()
        cluster = cluster or _this_cluster(world)
        if cluster.num_devices != world:
            raise InputError("cluster", cluster.num_devices, f"expected a cluster of {world} devices, one per process")
        counts = tuple(level.count for level in cluster.levels)
        self.mesh = _mesh(list(ranks), (len(ranks),) if shape is None else tuple(shape), names, counts)
        self.device = torch.device(device)
        self.runtime = submesh_runtime(self.mesh, dist.get_rank(), self.device, CommRecord(), seed)
        self._transfers = TransferModel(NetworkModel(cluster))
        self._plans: dict[tuple[object, ...], TransferPlan] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.mesh.devices

    @property
    def boxing(self) -> BoxingModel:
        return self._transfers.boxing(self.mesh)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash(self.mesh)

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis.name}: {axis.size}" for axis in self.mesh.axes)
        return f"Placement({list(self.ranks)}, {{{axes}}})"

    def transfer_to(
        self, other: Placement, src: NdSbp, dst: NdSbp, shape: tuple[int, ...], dtype: torch.dtype, *, tracked: bool
    ) -> TransferPlan:
        """The cheapest transfer of a tensor from here, in layout ``src``, to another placement, in layout ``dst``."""
        key = (other.mesh, src, dst, shape, dtype, tracked)
        if key not in self._plans:
            ends = (src, self.mesh, dst, other.mesh)
            self._plans[key] = self._transfers.plan(*ends, shape, dtype_name(dtype), tracked)
        return self._plans[key]

    def layout(self, sbp: SbpLike, shape: tuple[int, ...], dtype: torch.dtype, *, tracked: bool) -> NdSbp:
        """Layout of a tensor of this shape on this placement; a single entry applies to every axis.

        Raises:
            InputError: no valid layout, entries for another mesh, dims that do not exist or do not split evenly, or
                partial values that the tensor cannot have.
        """
        layout = _entries(sbp)
        if len(layout) not in (1, self.mesh.ndim):
            limit = f"expected one entry, or one for each of {self.mesh.ndim} axes of {self!r}"
            raise InputError("sbp", format_nd_sbp(layout), limit)
        layout = layout if len(layout) == self.mesh.ndim else layout * self.mesh.ndim
        local_shape(shape, layout, self.mesh)
        text = format_nd_sbp(layout)
        if not has_single_reduction(layout):
            raise InputError("sbp", text, "expected partial values with the same reduction")
        if tracked and any(entry.reduction != "sum" for entry in layout):
            raise InputError(
                "sbp", text, ("Pmax and Pmin have no gradient; use P, or a tensor that requires no gradient")
            )
        if (
            any(entry.is_partial and entry.reduction == "sum" for entry in layout)
            and DTYPE_BYTES[dtype_name(dtype)] == 1
        ):
            raise InputError("sbp", text, f"expected S<dim> or B: {dtype} has no partial sums")
        return layout if tracked else invariant_as_replicated(layout)


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype in the IR; raises ``InputError`` if the IR lacks it."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise InputError("dtype", name, f"expected one of {', '.join(DTYPE_BYTES)}")
    return name


def _entries(sbp: SbpLike) -> NdSbp:
    if isinstance(sbp, str):
        return parse_nd_sbp(sbp)
    given = (sbp,) if isinstance(sbp, Sbp) else tuple(sbp) if isinstance(sbp, Sequence) else ()
    entries = tuple(entry for entry in given if isinstance(entry, Sbp))
    if not entries or len(entries) < len(given):
        raise InputError("sbp", sbp, "expected text such as S0 or S0,B, or one Sbp per axis")
    return entries


def _mesh(ranks: list[int], shape: tuple[int, ...], names: Sequence[str] | None, counts: tuple[int, ...]) -> PlacedMesh:
    world = prod(counts)
    ascending = all(one < two for one, two in zip(ranks, ranks[1:], strict=False))
    if not ranks or not ascending or ranks[0] < 0 or ranks[-1] >= world:
        raise InputError("ranks", ranks, f"expected different ranks from 0 to {world - 1}, in ascending order")
    if not 1 <= len(shape) <= MAX_AXES or min(shape) < 1 or prod(shape) != len(ranks):
        limit = f"expected at most {MAX_AXES} sizes that multiply to {len(ranks)}, the number of ranks"
        raise InputError("shape", list(shape), limit)
    mesh = placed_mesh(ranks, shape, counts)
    if names is None:
        return mesh
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise InputError("names", list(names), f"expected {len(shape)} different names, one per axis")
    axes = (Axis(name, axis.size, axis.level) for name, axis in zip(names, mesh.axes, strict=True))
    return replace(mesh, axes=tuple(axes))


def _this_cluster(world: int) -> Cluster:
    """The processes as nodes of as many ranks as torchrun starts on each."""
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    whole = inside >= world or inside < 1 or world % inside
    return load_cluster(f"local:{world}" if whole else f"local:{world // inside}x{inside}")
