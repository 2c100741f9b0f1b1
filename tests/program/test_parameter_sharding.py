"""Storage apart from use, of many layouts at once: what one layout after another says."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from autosbp.api import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.network import NetworkModel
from autosbp.program.parameter_sharding import gather_step, sharding_factors
from autosbp.sbp.layout import B, I, P, S
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.mesh_views import merge

SHAPES = [(), (1,), (6,), (64,), (8, 12), (1024, 3), (3, 1024), (16, 1, 8), (4, 6, 32)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("blocks", [[], [[0, 1], [2, 3, 4]], [[0], [1], [2, 3, 4]], [[0, 1], [2], [3, 4]]], ids=len)
def test_many_layouts_are_stored_as_each_of_them(shape: tuple[int, ...], blocks: list[list[int]]) -> None:
    cluster = load_cluster("dgx-a100-40g:4")
    mesh = merge(cluster.mesh(), blocks) if blocks else Mesh((), ())
    boxing = BoxingModel(NetworkModel(cluster), mesh)
    states, num_bytes = (B, S(0), S(1), S(2), I, P), 4 * prod(shape)
    every = list(product(range(len(states)), repeat=mesh.ndim))
    rows = np.array(every, dtype=np.int64).reshape(len(every), mesh.ndim)
    parts, dims = sharding_factors(shape, rows, states, mesh)
    split = 0
    for row, part, dim in zip(rows, parts, dims, strict=True):
        layout = tuple(states[at] for at in row)
        step = gather_step(shape, layout, mesh) if P not in layout else None
        if step is None:
            assert (part, dim) == (1.0, -1), layout
            continue
        assert part == prod(axis.size for axis, sbp in zip(mesh.axes, layout, strict=True) if sbp == B), layout
        assert dim == step.src[step.axes[0]].dim, layout
        local = num_bytes // prod(axis.size for axis, sbp in zip(mesh.axes, layout, strict=True) if sbp.is_split)
        copied_s = boxing.gathered_copies_s(np.array([float(local)]), np.array([float(local)]), np.array([dim > 0]))
        assert copied_s[0] == boxing.step_cost(step, num_bytes, True).local_s, layout
        split += 1
    assert split or not blocks or max(shape, default=1) < 32
