"""Which stages and views are searched, given what is asked for: stages, pins, degrees of parallelism, ops held to stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autosbp.cluster import Cluster
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.mesh import Mesh
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.degrees import (
    Degrees,
    constrained,
    contradiction,
    require_tensor_splits,
    without_copies,
)
from autosbp.search.problem.pinned import pinned_views, read_pins
from autosbp.search.problem.views import MAX_AXES, mesh_views, tensor_parallel_view
from autosbp.search.problem.weights import AS_USED
from autosbp.search.stages.layouts import Structure
from autosbp.search.stages.stage_meshes import stage_meshes
from autosbp.search.stages.stage_pins import read_stages

STAGE_AXES = 2
"""Groups of axes of one stage's mesh that layouts tell apart, as a data x tensor grid does; without a pipeline, one more."""


class Structures:
    """Reads the constraints that decide them; raises ``InputError`` and ``InfeasibleError`` for those that cannot be."""

    def __init__(self, graph: LogicalGraph, cluster: Cluster, options: PlanOptions, roles: Roles) -> None:
        self.cluster, self.options, self.roles = cluster, options, roles
        self.degrees = Degrees(options.data_parallel, options.tensor_parallel)
        self.pins = read_pins(graph, self._pinned_mesh(), options.pins)
        self.last_stage = max(read_stages(graph, options.stage_of).values(), default=0)

    def all(self, fills: Callable[[int], bool]) -> list[Structure]:
        """Those that are searched; ``fills`` tells whether the model and the batch fill so many stages."""
        ways = self._by_degrees if self.degrees else self._pinned if self.pins else self._free
        found = [structure for structure in ways(fills) if structure.stages > self.last_stage]
        if not found and self.last_stage:
            detail = "a stage with this number needs more stages than are allowed, or than model and batch fill"
            raise InfeasibleError("stage_of", self.last_stage, None, detail)
        if not found:
            most = max((stages for stages, _ in self._asked(None) if stages == 1 or fills(stages)), default=1)
            detail = f"model and batch do not fill them; at most {most} can be filled on these devices"
            raise InfeasibleError("stages", self.options.stages or 1, None, detail)
        if self.options.storage == AS_USED and not self.pins:
            return [replace(structure, allowed=without_copies(structure.allowed)) for structure in found]
        return found

    def meshes(self, fills: Callable[[int], bool]) -> Sequence[tuple[int, Mesh]]:
        """Stages that are asked for and can be filled, with the mesh of one; with pins, one alone unless asked for."""
        wanted = self.options.stages or (1 if self.pins else None)
        return [(stages, mesh) for stages, mesh in self._asked(wanted) if stages == 1 or fills(stages)]

    def _by_degrees(self, fills: Callable[[int], bool]) -> list[Structure]:
        """Every way to have the degrees."""
        if self.degrees.tensor is not None:
            graph = self.roles.graph
            sizes = dict.fromkeys(graph.symbols, self.degrees.tensor)
            require_tensor_splits(graph.bind(**sizes), self.degrees.tensor)
        found = []
        for stages, mesh in self.meshes(fills):
            axes = MAX_AXES if stages == 1 or self.options.stages else STAGE_AXES
            ways = constrained(mesh, self.pins, self.degrees, self.roles, axes)
            found += [Structure(stages, view, allowed) for view, allowed in ways]
        if not found:
            raise contradiction(self.degrees, self.cluster.num_devices, self.options.stages)
        return found

    def _pinned(self, fills: Callable[[int], bool]) -> list[Structure]:
        """The views on which the pins can be said."""
        return [
            Structure(stages, view, allowed)
            for stages, mesh in self.meshes(fills)
            for view, allowed in pinned_views(self.pins, mesh, mesh_views(mesh))
        ]

    def _free(self, fills: Callable[[int], bool]) -> list[Structure]:
        return [
            Structure(stages, view)
            for stages, mesh in self.meshes(fills)
            # Where all axes of a level are used alike, one message over all of them may go for several over one at a time.
            for view in dict.fromkeys(
                (*mesh_views(mesh, MAX_AXES if stages == 1 else STAGE_AXES), tensor_parallel_view(mesh, 0)[0])
            )
        ]

    def _pinned_mesh(self) -> Mesh:
        """The mesh that pins are of: one stage's."""
        return self._asked(self.options.stages or 1)[0][1]

    def _asked(self, wanted: int | None) -> Sequence[tuple[int, Mesh]]:
        found = stage_meshes(self.cluster)
        if wanted is None:
            return found
        asked = [(stages, mesh) for stages, mesh in found if stages == wanted]
        if not asked:
            fits = ", ".join(str(stages) for stages, _ in found)
            raise InputError("stages", wanted, f"equal parts of {self.cluster.name} are expected: {fits}")
        return asked
