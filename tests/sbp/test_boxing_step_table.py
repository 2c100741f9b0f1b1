"""The table of all steps against the definition: each layout's steps, one by one."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from autosbp.sbp.boxing import PMAX, PMIN, BoxingStep, has_single_reduction, nesting_orders, steps_among
from autosbp.sbp.boxing_step_table import step_table
from autosbp.sbp.layout import B, I, P, S, Sbp
from autosbp.sbp.mesh import Axis, Mesh

MESHES = [(), (2,), (2, 2), (2, 4), (2, 2, 2), (2, 2, 4), (2, 4, 2), (4, 2, 2), (2, 4, 8)]
DIMS = [(), (0,), (1,), (0, 1), (1, 2), (0, 2, 3)]


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    return Mesh(tuple(Axis(f"x{at}", size, 0) for at, size in enumerate(sizes)), (prod(sizes),))


def kind_of(step: BoxingStep) -> tuple[object, ...]:
    return step.forward, step.backward, step.axes, step.src_dim, step.dst_dim


@pytest.mark.parametrize("sizes", MESHES)
@pytest.mark.parametrize("tail", [(B, I, P), (B, P, PMAX, PMIN)])
def test_the_table_holds_the_steps_of_every_layout_by_cost(sizes: tuple[int, ...], tail: tuple[Sbp, ...]) -> None:
    mesh = mesh_of(sizes)
    for dims in DIMS:
        states = (*(S(dim) for dim in dims), *tail)
        table = step_table(states, mesh)
        every = {
            nesting
            for layout in product(states, repeat=len(sizes))
            if has_single_reduction(layout)
            for nesting in nesting_orders(layout)
        }
        assert set(table.layouts) == every and len(table.layouts) == len(every)
        found = {
            (table.layouts[one], table.layouts[two]): table.kinds[kind]
            for one, two, kind in zip(table.source, table.target, table.kind, strict=True)
        }
        wanted = {(step.src, step.dst): step for _, _, step in steps_among(tuple(every), mesh)}
        assert found.keys() == wanted.keys()
        for ends, step in wanted.items():
            one, two = kind_of(found[ends]), kind_of(step)
            assert one[:3] == two[:3]
            assert [dim == 0 for dim in one[3:]] == [dim == 0 for dim in two[3:]]  # copies are needed of other dims


def test_layouts_that_are_even_are_found_by_their_states() -> None:
    states, mesh = (S(0), S(2), B, I, P), mesh_of((2, 4))
    table = step_table(states, mesh)
    factors = table.factors(mesh.shape)
    even = table.even_steps((np.array((4, 3, 8)) % factors == 0).all(axis=1))
    for numbers in product(range(len(states)), repeat=2):
        layout = tuple(states[number] for number in numbers)
        place = int(even.lookup[numbers[0] + numbers[1] * len(states)])
        assert (even.layouts[place] == layout) if place >= 0 else layout == (S(0), S(0))
