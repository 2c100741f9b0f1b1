"""Pipeline structures to search, given the requested stages, pins, parallel degrees and stages of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autosbp.cluster.spec import Cluster
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.mesh import Mesh
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.baselines import Roles, recipe
from autosbp.search.problem.cost_weights import UNSHARDED
from autosbp.search.problem.mesh_views import MAX_AXES, mesh_views, tensor_parallel_view
from autosbp.search.problem.parallel_degrees import (
    ParallelDegrees,
    constrained_views,
    degree_contradiction,
    reading_as_stored,
    require_tensor_splits,
)
from autosbp.search.problem.pins import pinned_views, read_pins
from autosbp.search.stages.layout_problems import PipelineStructure
from autosbp.search.stages.stage_meshes import stage_meshes
from autosbp.search.stages.stage_pins import read_stages

STAGE_AXES = 2
"""Axis groups of one stage's mesh views, as in a data x tensor grid. Without a pipeline, views have one more."""


class PipelineStructures:
    """Stages and mesh views that meet the plan's constraints.

    Raises:
        InputError: a constraint is malformed or names something unknown.
        InfeasibleError: constraints contradict each other.
    """

    def __init__(self, graph: LogicalGraph, cluster: Cluster, options: PlanOptions, roles: Roles) -> None:
        self.cluster, self.options, self.roles = cluster, options, roles
        self.degrees = ParallelDegrees(options.data_parallel, options.tensor_parallel)
        self.pins = read_pins(graph, self._pinned_mesh(), options.pins)
        self.last_stage = max(read_stages(graph, options.stage_of).values(), default=0)

    def all(self, fills: Callable[[int], bool]) -> list[PipelineStructure]:
        """The structures to search; ``fills`` tells whether model and batch fill a number of stages."""
        ways = self._by_degrees if self.degrees else self._pinned if self.pins else self._free
        ways = self._on_grids if self.options.grid else ways
        found = [structure for structure in ways(fills) if structure.stages > self.last_stage]
        if not found and self.last_stage:
            detail = "a stage with this number requires more stages than are allowed, or than model and batch can fill"
            raise InfeasibleError("stage_of", self.last_stage, None, detail)
        if not found:
            most = max((stages for stages, _ in self._stage_meshes(None) if stages == 1 or fills(stages)), default=1)
            detail = f"the model and batch can fill at most {most} stages on these devices"
            raise InfeasibleError("stages", self.options.stages or 1, None, detail)
        if self.options.storage == UNSHARDED and not self.pins:
            return [replace(structure, allowed=reading_as_stored(structure.allowed)) for structure in found]
        return found

    def meshes(self, fills: Callable[[int], bool]) -> Sequence[tuple[int, Mesh]]:
        """Allowed numbers of stages that can be filled, with the mesh of one; with pins, one stage by default."""
        wanted = self.options.stages or (1 if self.pins else None)
        return [(stages, mesh) for stages, mesh in self._stage_meshes(wanted) if stages == 1 or fills(stages)]

    def _by_degrees(self, fills: Callable[[int], bool]) -> list[PipelineStructure]:
        """Structures with the requested data and tensor parallel degrees."""
        if self.degrees.tensor is not None:
            graph = self.roles.graph
            sizes = dict.fromkeys(graph.symbols, self.degrees.tensor)
            require_tensor_splits(graph.bind(**sizes), self.degrees.tensor)
        found = []
        for stages, mesh in self.meshes(fills):
            axes = MAX_AXES if stages == 1 or self.options.stages else STAGE_AXES
            ways = constrained_views(mesh, self.pins, self.degrees, self.roles, axes)
            found += [PipelineStructure(stages, view, allowed) for view, allowed in ways]
        if not found:
            raise degree_contradiction(self.degrees, self.cluster.num_devices, self.options.stages)
        return found

    def _on_grids(self, fills: Callable[[int], bool]) -> list[PipelineStructure]:
        """Structures of the device grids of a baseline, of the requested degrees."""
        found = []
        for stages, mesh in self.meshes(fills):
            for count, (view, allowed) in enumerate(recipe(self.options.grid or "", mesh, self.roles).grids):
                tensor = mesh.group_size(range(mesh.ndim - count, mesh.ndim))
                degrees = ParallelDegrees(mesh.size // tensor, tensor)
                if self.degrees.data in (None, degrees.data) and self.degrees.tensor in (None, degrees.tensor):
                    found.append(PipelineStructure(stages, view, allowed))
        if not found:
            raise degree_contradiction(self.degrees, self.cluster.num_devices, self.options.stages)
        return found

    def _pinned(self, fills: Callable[[int], bool]) -> list[PipelineStructure]:
        """Structures whose mesh views can express the pins."""
        return [
            PipelineStructure(stages, view, allowed)
            for stages, mesh in self.meshes(fills)
            for view, allowed in pinned_views(self.pins, mesh, mesh_views(mesh))
        ]

    def _free(self, fills: Callable[[int], bool]) -> list[PipelineStructure]:
        return [
            PipelineStructure(stages, view)
            for stages, mesh in self.meshes(fills)
            # If all axes of a level are used alike, one message over all of them may replace several over single axes.
            for view in dict.fromkeys(
                (*mesh_views(mesh, MAX_AXES if stages == 1 else STAGE_AXES), tensor_parallel_view(mesh, 0)[0])
            )
        ]

    def _pinned_mesh(self) -> Mesh:
        """The mesh that pins refer to: one stage's."""
        return self._stage_meshes(self.options.stages or 1)[0][1]

    def _stage_meshes(self, wanted: int | None) -> Sequence[tuple[int, Mesh]]:
        found = stage_meshes(self.cluster)
        if wanted is None:
            return found
        asked = [(stages, mesh) for stages, mesh in found if stages == wanted]
        if not asked:
            fits = ", ".join(str(stages) for stages, _ in found)
            raise InputError(
                "stages", wanted, (f"expected a number of stages that divides {self.cluster.name} evenly: {fits}")
            )
        return asked
