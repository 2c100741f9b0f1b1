"""Fixed degrees of data and tensor parallelism: which mesh axes may split the batch, and which split parameters.

``data_parallel=d``: on axes with d devices in all, every op that can split the batch does so; on other axes none does.
``tensor_parallel=t``: on axes with t devices in all, ops split their matrices or are replicated, and never split the
batch; on other axes no op reads a split parameter. 1 forbids either. The remaining axes may split anything else, such
as the sequence. The degrees are those of one pipeline stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

from autosbp.cluster.spec import prime_factors
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.mesh_views import MAX_AXES, mesh_views, tensor_parallel_view
from autosbp.search.problem.op_clusters import OpCluster, useful_options
from autosbp.search.problem.pins import Pins

DATA, TENSOR, OTHER = "data", "tensor", "other"


@dataclass(frozen=True, slots=True)
class ParallelDegrees:
    """Requested degrees; None leaves one open."""

    data: int | None
    tensor: int | None

    def __bool__(self) -> bool:
        return self.data is not None or self.tensor is not None


@dataclass(frozen=True, slots=True)
class ConstrainedView(Pins):
    """Pins on a view, with the role (data, tensor, other) of each of its axes."""

    degrees: ParallelDegrees
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


def constrained_views(
    mesh: Mesh, pins: Pins, degrees: ParallelDegrees, roles: Roles, enough_axes: int = MAX_AXES
) -> list[tuple[Mesh, ConstrainedView]]:
    """Views of a stage's mesh that can express the pins, with every assignment of axes to the degrees.

    Views of more than ``enough_axes`` axes are left out if there are others."""
    found: list[tuple[Mesh, ConstrainedView]] = []
    for view in sorted(_views(mesh), key=lambda each: each.ndim):
        if found and view.ndim > enough_axes:
            break
        own = pins.on(mesh, view)
        if own is not None:
            for parts in _parts(view, degrees):
                found.append((view, ConstrainedView(own.used, own.stored, own.made, degrees, roles, parts)))
    return found


def require_tensor_splits(graph: LogicalGraph, tensor: int) -> None:
    """Reject a degree of tensor parallelism with a prime factor that splits no matrix evenly: all work would be replicated.

    Args:
        graph: bound at some microbatch size.

    Raises:
        InfeasibleError: ``tensor_parallel``, with the sizes that do not divide.
    """
    sizes = {
        option.size
        for node in graph.nodes
        if node.name in graph.parameter_dependent
        for option in useful_options(graph, node)
        if any(
            sbp.is_split and ref.name in graph.parameter_names and len(graph.meta(ref).shape) > 1
            for ref, sbp in zip(node.refs(), option.ins, strict=True)
        )
    }
    for factor in prime_factors(tensor):
        if not any(size % factor == 0 for size in sizes):
            shown = ", ".join(map(str, sorted(sizes))) or "none"
            detail = f"no matrix splits evenly over {factor} devices; sizes that can be split: {shown}"
            raise InfeasibleError("tensor_parallel", tensor, None, detail)


def reading_as_stored(allowed: Allowed | None) -> Allowed:
    """The same layouts, but every op reads parameters as they are stored, so parameters with several readers have no ZeRO."""
    return lambda cluster, axis, option: allowed is None or allowed(cluster, axis, option)


def degree_contradiction(degrees: ParallelDegrees, num_devices: int, stages: int | None) -> InfeasibleError:
    """Error if no mesh axes have these degrees."""
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


def _parts(view: Mesh, degrees: ParallelDegrees) -> Iterator[tuple[str, ...]]:
    every = range(view.ndim)
    for data in _of_size(view, every, degrees.data):
        for tensor in _of_size(view, [axis for axis in every if axis not in data], degrees.tensor):
            parts = tuple(DATA if axis in data else TENSOR if axis in tensor else OTHER for axis in every)
            if not _has_mergeable_axes(view, parts):
                yield parts


def _of_size(view: Mesh, among: Sequence[int], size: int | None) -> Iterator[tuple[int, ...]]:
    """Sets of axes with ``size`` devices in all; one empty set if no size is requested."""
    if size is None:
        yield ()
        return
    for count in range(len(among) + 1):
        for chosen in combinations(among, count):
            if prod(view.axes[axis].size for axis in chosen) == size:
                yield chosen


def _has_mergeable_axes(view: Mesh, parts: Sequence[str]) -> bool:
    """Whether two neighbouring axes of a level both split the batch: another view has them as one axis."""
    return any(
        parts[axis] == parts[axis + 1] == DATA and view.axes[axis].level == view.axes[axis + 1].level
        for axis in range(view.ndim - 1)
    )
