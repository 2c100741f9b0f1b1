"""Baselines as restricted search problems: what users would choose without a search.

| name | axes | stored |
|---|---|---|
| data_parallel | all split only the batch | whole |
| zero1, zero2 | as data_parallel | split over all axes, gathered once a step (Rajbhandari et al. 2020) |
| zero3 | as data_parallel | split over all axes, gathered at every use and freed |
| fsdp2 | as data_parallel | as zero1 or zero3, whichever is faster: with and without ``reshard_after_forward`` |
| megatron | the best grid of data x tensor axes x stages, the same for every layer (Narayanan et al. 2021) | as used |
| megatron_sp | as megatron, with sequence parallelism: norms, too, may split the sequence (Korthikanti et al. 2022) | as used |
| megatron_lm | as megatron_sp | split over ranks that hold the same, gathered once a step: its distributed optimizer |
| one_weird_trick | as megatron for matrix products, convolutions as data_parallel (Krizhevsky 2014) | as used |
| summa_2d | the best 2-D grid: rows split the batch, columns split layer outputs (Xu et al. 2021) | split over both |
| alpa_like | two mesh dims, any layout of each, but no op reads partial sums (Zheng et al. 2022) | as used |
| autoddl_tied | all layouts, but repeated layers share one choice (AutoDDL, section 4.5.1) | as used |

Choices that a row leaves open, such as Megatron's column, row, head and vocabulary splits inside a grid, are optimised,
so each baseline is at least as good as the published recipe. ``zero1`` and ``zero2`` communicate the same. They differ
if a step has several microbatches: ZeRO-1 keeps a sum of whole gradients over all of them, so ``zero2`` takes the batch
as one microbatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.cost_weights import GATHER_PER_STEP, GATHER_PER_USE, UNSHARDED
from autosbp.search.problem.mesh_views import mesh_views, tensor_parallel_view
from autosbp.search.problem.op_clusters import OpCluster

PRODUCTS = frozenset(("aten.linear.default", "aten.addmm.default", "aten.mm.default", "aten.matmul.default"))
AxisRule = Callable[[OpCluster, int], bool]
"""Whether a cluster may take an option on an axis of one role."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a baseline is found: the best of ``grids`` (views with their rules), with ``searcher``.

    Args:
        gather: parameters are stored split (``program.parameter_sharding``) and gathered once a ``step`` or at every
            ``use``, whichever of these is faster; empty if they are stored as used.
        storage: parameter sharding if ``gather`` is empty.
        whole_batch: the step is one microbatch.
        pipelines: also try the same grids on the devices of each pipeline stage.
    """

    grids: tuple[tuple[Mesh, Allowed], ...]
    searcher: str = "exact"
    gather: tuple[str, ...] = ()
    storage: str = UNSHARDED
    whole_batch: bool = False
    pipelines: bool = False


class Roles:
    """Which options split the batch, and which leave parameters whole. ``graph`` still has its symbols."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self._batch = {
            Ref(name, index): frozenset(dim for dim, size in enumerate(meta.shape) if isinstance(size, str))
            for name, metas in graph.metas.items()
            for index, meta in enumerate(metas)
        }
        readers = Counter(ref.name for node in graph.nodes for ref in set(node.refs()))
        self._splitting: dict[int, tuple[OpCluster, tuple[bool, ...]]] = {}
        self._shared = frozenset(name for name in graph.parameter_names if readers[name] > 1)

    def splits_batch(self, cluster: OpCluster, option: int) -> bool:
        """Whether some op splits the batch."""
        known = self._splitting.get(id(cluster))
        if known is None:
            # Keeps the cluster alive, so that no other gets its id.
            found = tuple(self._splits_batch(cluster, other) for other in range(len(cluster.options)))
            known = self._splitting[id(cluster)] = cluster, found
        return known[1][option]

    def _splits_batch(self, cluster: OpCluster, option: int) -> bool:
        for at, node in enumerate(cluster.nodes):
            chosen = cluster.options[option][at]
            for ref, sbp in zip(node.refs(), chosen.ins, strict=True):
                if sbp.is_split and sbp.dim in self._batch[ref]:
                    return True
            for index, sbp in enumerate(chosen.outs):
                if sbp.is_split and sbp.dim in self._batch[Ref(node.name, index)]:
                    return True
        return False

    def data_axis(self, cluster: OpCluster, option: int) -> bool:
        """Data parallel: split the batch; an op without a batch keeps partial sums, or is replicated with partial gradients.

        An op whose batch has only one sample has no data-parallel option."""
        if any(self.splits_batch(cluster, other) for other in range(len(cluster.options))):
            return self.splits_batch(cluster, option)
        if self._has_one_sample(cluster):
            return False
        return cluster.options[option][0].factor in ("B", "P")

    def _has_one_sample(self, cluster: OpCluster) -> bool:
        """Whether an op's output has a batch dim of size one."""
        return any(
            meta.sizes[dim] == 1
            for node in cluster.nodes
            for index, meta in enumerate(node.outputs)
            for dim in self._batch[Ref(node.name, index)]
        )

    def tensor_axis(self, cluster: OpCluster, option: int) -> bool:
        """Tensor parallel: split anything but the batch, and no split that leaves an op's parameters whole.

        An op that is not split is replicated with whole gradients (I), as Megatron replicates norms."""
        if self.splits_batch(cluster, option):
            return False
        for at, node in enumerate(cluster.nodes):
            chosen = cluster.options[option][at]
            owned = [
                sbp for ref, sbp in zip(node.refs(), chosen.ins, strict=True) if ref.name in self.graph.parameter_names
            ]
            if owned and not any(sbp.is_split for sbp in owned) and chosen.factor != "I":
                return False
        return True

    def sequence_axis(self, cluster: OpCluster, option: int) -> bool:
        """Tensor and sequence parallel: ops without matrices may split anything but the batch, with their vectors whole."""
        return not self.splits_batch(cluster, option) and not self.has_whole_matrices(cluster, option)

    def splits_parameters(self, cluster: OpCluster, option: int) -> bool:
        """Whether some op reads a split parameter."""
        return any(
            sbp.is_split and ref.name in self.graph.parameter_names
            for node, chosen in zip(cluster.nodes, cluster.options[option], strict=True)
            for ref, sbp in zip(node.refs(), chosen.ins, strict=True)
        )

    def has_whole_matrices(self, cluster: OpCluster, option: int) -> bool:
        """Whether some op that divides its work reads matrices or larger parameters, all of them whole."""
        for at, node in enumerate(cluster.nodes):
            chosen = cluster.options[option][at]
            matrices = [
                sbp
                for ref, sbp in zip(node.refs(), chosen.ins, strict=True)
                if ref.name in self.graph.parameter_names and len(self.graph.meta(ref).shape) > 1
            ]
            if matrices and not any(sbp.is_split for sbp in matrices) and chosen.factor != "I":
                return True
        return False

    def dense_axis(self, cluster: OpCluster, option: int) -> bool:
        """Tensor parallel for products with parameters, data parallel for convolutions, and either for the rest."""
        if any("conv" in node.op for node in cluster.nodes):
            return self.data_axis(cluster, option)
        dense = any(node.op in PRODUCTS for node in cluster.nodes)
        return self.tensor_axis(cluster, option) or (not dense and self.data_axis(cluster, option))

    def column_axis(self, cluster: OpCluster, option: int, num_columns: int) -> bool:
        """Columns of a 2-D grid: outputs are split along a dim other than the batch, never partial, and so are parameters.

        Falls back to ``tensor_axis`` if no such split is even, or if other ops read the parameters too: embeddings and
        logits that share a weight cannot both split their outputs' columns without a copy of it."""
        shared = any(ref.name in self._shared for node in cluster.nodes for ref in node.refs())
        if shared or not any(
            self._splits_output_columns(cluster, other, num_columns) for other in range(len(cluster.options))
        ):
            return self.tensor_axis(cluster, option)
        return self._splits_output_columns(cluster, option, num_columns)

    def _splits_output_columns(self, cluster: OpCluster, option: int, num_columns: int) -> bool:
        outs = [sbp for chosen in cluster.options[option] for sbp in chosen.outs]
        return (
            self.tensor_axis(cluster, option)
            and any(sbp.is_split for sbp in outs)
            and not any(sbp.is_partial for sbp in outs)
            and cluster.sizes[option] % num_columns == 0
        )

    def reads_no_partial_sums(self, cluster: OpCluster, option: int) -> bool:
        """Whether no partial sum is read from another cluster: it is reduced as soon as it is computed."""
        return not any(
            sbp.is_partial and ref.name in self.graph.parameter_dependent and ref.name not in cluster.position
            for node, chosen in zip(cluster.nodes, cluster.options[option], strict=True)
            for ref, sbp in zip(node.refs(), chosen.ins, strict=True)
            if ref.name not in self.graph.parameter_names
        )


def _data_parallel(mesh: Mesh, roles: Roles) -> tuple[tuple[Mesh, Allowed], ...]:
    return (_grid(mesh, roles.data_axis, roles.tensor_axis, 0),)


def _grids(mesh: Mesh, outer: AxisRule, inner: AxisRule) -> tuple[tuple[Mesh, Allowed], ...]:
    return tuple(_grid(mesh, outer, inner, count) for count in range(mesh.ndim + 1))


def _summa(mesh: Mesh, roles: Roles) -> tuple[tuple[Mesh, Allowed], ...]:
    """Grids with several devices in both dims, if there are two prime axes."""
    found = []
    for count in range(1, mesh.ndim) if mesh.ndim > 1 else range(mesh.ndim + 1):
        num_columns = mesh.group_size(range(mesh.ndim - count, mesh.ndim))
        columns = partial(roles.column_axis, num_columns=num_columns)
        found.append(_grid(mesh, roles.data_axis, columns, count))
    return tuple(found)


def _alpa(mesh: Mesh, roles: Roles) -> tuple[tuple[Mesh, Allowed], ...]:
    def allowed(cluster: OpCluster, _axis: int, option: int) -> bool:
        return roles.reads_no_partial_sums(cluster, option)

    return tuple((view, allowed) for view in mesh_views(mesh, max_axes=2))


def _all_layouts(mesh: Mesh) -> tuple[tuple[Mesh, Allowed], ...]:
    return tuple((view, lambda _cluster, _axis, _option: True) for view in mesh_views(mesh))


def _grid(mesh: Mesh, outer: AxisRule, inner: AxisRule, num_inner: int) -> tuple[Mesh, Allowed]:
    """A grid whose innermost ``num_inner`` prime axes take the rule ``inner``, and the others ``outer``."""
    view, inside = tensor_parallel_view(mesh, num_inner)
    return view, lambda cluster, axis, option: (inner if axis in inside else outer)(cluster, option)


_RECIPES: Mapping[str, Callable[[Mesh, Roles], Recipe]] = MappingProxyType(
    {
        "data_parallel": lambda mesh, roles: Recipe(_data_parallel(mesh, roles)),
        "zero1": lambda mesh, roles: Recipe(_data_parallel(mesh, roles), gather=(GATHER_PER_STEP,)),
        "zero2": lambda mesh, roles: Recipe(_data_parallel(mesh, roles), gather=(GATHER_PER_STEP,), whole_batch=True),
        "zero3": lambda mesh, roles: Recipe(_data_parallel(mesh, roles), gather=(GATHER_PER_USE,)),
        "fsdp2": lambda mesh, roles: Recipe(_data_parallel(mesh, roles), gather=(GATHER_PER_STEP, GATHER_PER_USE)),
        "megatron": lambda mesh, roles: Recipe(_grids(mesh, roles.data_axis, roles.tensor_axis), pipelines=True),
        "megatron_sp": lambda mesh, roles: Recipe(_grids(mesh, roles.data_axis, roles.sequence_axis), pipelines=True),
        "megatron_lm": lambda mesh, roles: Recipe(
            _grids(mesh, roles.data_axis, roles.sequence_axis), storage=GATHER_PER_STEP, pipelines=True
        ),
        "one_weird_trick": lambda mesh, roles: Recipe(_grids(mesh, roles.data_axis, roles.dense_axis)),
        "summa_2d": lambda mesh, roles: Recipe(_summa(mesh, roles), gather=(GATHER_PER_USE,)),
        "alpa_like": lambda mesh, roles: Recipe(_alpa(mesh, roles)),
        "autoddl_tied": lambda mesh, _: Recipe(_all_layouts(mesh), searcher="tied"),
    }
)
BASELINES = tuple(_RECIPES)
DEFAULT_BASELINES = ("data_parallel", "fsdp2", "megatron_lm")


def recipe(name: str, mesh: Mesh, roles: Roles) -> Recipe:
    """The recipe of a baseline on the mesh of prime axes."""
    return _RECIPES[name](mesh, roles)
