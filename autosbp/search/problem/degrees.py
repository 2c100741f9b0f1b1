"""Degrees of data and tensor parallelism that are given: which mesh axes may split the batch, and which parameters.

``data_parallel=d``: on axes of d devices in all every op splits the batch that can, on other axes none does.
``tensor_parallel=t``: on axes of t devices in all ops split their matrices, or are repeated whole, and never split the
batch; on other axes no op reads a split parameter. 1 forbids either. Axes of neither kind may split whatever else there is,
such as the sequence. The degrees are those of one stage of a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

from autosbp.cluster import prime_factors
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.assembly import Allowed
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.clusters import OpCluster, useful_options
from autosbp.search.problem.pinned import Pins
from autosbp.search.problem.views import MAX_AXES, mesh_views, tensor_parallel_view

DATA, TENSOR, OTHER = "data", "tensor", "other"


@dataclass(frozen=True, slots=True)
class Degrees:
    """Those asked for; None leaves one open."""

    data: int | None
    tensor: int | None

    def __bool__(self) -> bool:
        return self.data is not None or self.tensor is not None


@dataclass(frozen=True, slots=True)
class Constrained(Pins):
    """Pins on a view, and the part of each of its axes."""

    degrees: Degrees
    roles: Roles
    parts: tuple[str, ...]

    def __call__(self, cluster: OpCluster, axis: int, option: int) -> bool:
        return Pins.__call__(self, cluster, axis, option) and self._admits(self.parts[axis], cluster, option)

    def _admits(self, part: str, cluster: OpCluster, option: int) -> bool:
        roles = self.roles
        if part == DATA:
            return roles.data_axis(cluster, option)
        if part == TENSOR:
            return roles.sequence_axis(cluster, option)
        if self.degrees.data is not None and roles.splits_batch(cluster, option):
            return False
        return self.degrees.tensor is None or not roles.splits_parameters(cluster, option)


def constrained(
    mesh: Mesh, pins: Pins, degrees: Degrees, roles: Roles, enough_axes: int = MAX_AXES
) -> list[tuple[Mesh, Constrained]]:
    """Every view of a stage's mesh with every way to give its axes these degrees, on which the pins can be said; none of
    more than ``enough_axes`` axes where there are others."""
    found: list[tuple[Mesh, Constrained]] = []
    for view in sorted(_views(mesh), key=lambda each: each.ndim):
        if found and view.ndim > enough_axes:
            break
        own = pins.on(mesh, view)
        if own is not None:
            for parts in _parts(view, degrees):
                found.append((view, Constrained(own.used, own.stored, own.made, degrees, roles, parts)))
    return found


def require_tensor_splits(graph: LogicalGraph, tensor: int) -> None:
    """Refuse a degree of tensor parallelism of which some factor splits no matrix evenly: all work would be repeated there.

    Args:
        graph: bound at some microbatch.

    Raises:
        InfeasibleError: ``tensor_parallel``, with the sizes that do not divide.
    """
    sizes = {
        option.size
        for node in graph.nodes
        if node.name in graph.computed
        for option in useful_options(graph, node)
        if any(
            sbp.is_split and ref.name in graph.parameter_names and len(graph.meta(ref).shape) > 1
            for ref, sbp in zip(node.refs(), option.ins, strict=True)
        )
    }
    for factor in prime_factors(tensor):
        if not any(size % factor == 0 for size in sizes):
            shown = ", ".join(map(str, sorted(sizes))) or "none"
            detail = f"no matrix splits evenly over {factor} devices; sizes that can be split are {shown}"
            raise InfeasibleError("tensor_parallel", tensor, None, detail)


def without_copies(allowed: Allowed | None) -> Allowed:
    """The same layouts, but every op reads parameters as they are stored: no ZeRO of those that several ops read, either."""
    return lambda cluster, axis, option: allowed is None or allowed(cluster, axis, option)


def contradiction(degrees: Degrees, num_devices: int, stages: int | None) -> InfeasibleError:
    """No mesh axes have these degrees."""
    asked = {"data_parallel": degrees.data, "tensor_parallel": degrees.tensor, "stages": stages}
    given = {name: value for name, value in asked.items() if value is not None}
    name = next(iter(given))
    detail = f"{' x '.join(given)} must be a product of mesh axes of the {num_devices} devices"
    return InfeasibleError(name, given[name], None, detail)


def _views(mesh: Mesh) -> Sequence[Mesh]:
    """All views of at most ``MAX_AXES`` axes."""
    least = len({axis.level for axis in mesh.axes})
    views = [tensor_parallel_view(mesh, count)[0] for count in range(mesh.ndim + 1)]
    for count in range(max(1, least), MAX_AXES + 1):
        views += mesh_views(mesh, count)
    return list(dict.fromkeys(views))


def _parts(view: Mesh, degrees: Degrees) -> Iterator[tuple[str, ...]]:
    every = range(view.ndim)
    for data in _of_size(view, every, degrees.data):
        for tensor in _of_size(view, [axis for axis in every if axis not in data], degrees.tensor):
            parts = tuple(DATA if axis in data else TENSOR if axis in tensor else OTHER for axis in every)
            if not _splittable(view, parts):
                yield parts


def _of_size(view: Mesh, among: Sequence[int], size: int | None) -> Iterator[tuple[int, ...]]:
    """Sets of axes with so many devices; none where no size is asked for."""
    if size is None:
        yield ()
        return
    for count in range(len(among) + 1):
        for chosen in combinations(among, count):
            if prod(view.axes[axis].size for axis in chosen) == size:
                yield chosen


def _splittable(view: Mesh, parts: Sequence[str]) -> bool:
    """Neighbours of a level that both split the batch: another view has them as one axis."""
    return any(
        parts[axis] == parts[axis + 1] == DATA and view.axes[axis].level == view.axes[axis + 1].level
        for axis in range(view.ndim - 1)
    )
