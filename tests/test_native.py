"""Loops in C: built wherever there is a compiler, and what they refuse. ``tests/search/solvers/test_minplus_backend.py`` and
``tests/costmodel/test_shortest_paths.py`` hold them to numpy."""

from __future__ import annotations

import importlib
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from autosbp import native


def test_loops_are_built_where_there_is_a_compiler() -> None:
    if shutil.which("gcc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("there is no C compiler, or there are no headers of Python")
    assert native.LOOPS is not None, "pip install --editable . builds them"


def test_loops_of_another_version_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("autosbp.native.loops")
    vars(other)["VERSION"] = native.VERSION + 1
    monkeypatch.setitem(sys.modules, "autosbp.native.loops", other)
    monkeypatch.setattr(native, "loops", other, raising=False)
    assert native._load_loops() is None


def test_a_package_that_was_built_without_a_compiler_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "autosbp.native.loops", None)
    monkeypatch.delattr(native, "loops", raising=False)
    assert native._load_loops() is None


@pytest.mark.skipif(native.LOOPS is None, reason="loops in C are not built here")
class TestRefused:
    """Nothing is read or written outside the arrays that are given."""

    loops = importlib.import_module("autosbp.native.loops") if native.LOOPS else None

    @pytest.mark.parametrize(
        ("one", "two", "out", "first", "end"),
        [
            ((2, 3, 4), (2, 3, 5), (2, 4, 6), 0, 4),
            ((2, 3, 4), (2, 3, 5), (2, 5, 5), 0, 4),
            ((2, 3, 4), (2, 4, 5), (2, 4, 5), 0, 4),
            ((1, 3, 4), (2, 3, 5), (2, 4, 5), 0, 4),
            ((2, 3, 4), (2, 3, 5), (2, 4, 5), -1, 4),
            ((2, 3, 4), (2, 3, 5), (2, 4, 5), 0, 5),
            ((3, 4), (2, 3, 5), (2, 4, 5), 0, 4),
        ],
    )
    def test_sums_of_shapes_that_do_not_go_together(
        self, one: tuple[int, ...], two: tuple[int, ...], out: tuple[int, ...], first: int, end: int
    ) -> None:
        assert self.loops is not None
        with pytest.raises(ValueError, match="expected"):
            self.loops.least_sums(np.zeros(one), np.zeros(two), np.zeros(out), first, end)

    def test_messages_of_shapes_that_do_not_go_together(self) -> None:
        assert self.loops is not None
        for base, table, out in [((3,), (4, 2), (2,)), ((4,), (4, 2), (3,)), ((4, 1), (4, 2), (2,))]:
            with pytest.raises(ValueError, match="expected"):
                self.loops.message(np.zeros(base), np.zeros(table), 1.0, np.zeros(out))

    def test_steps_to_stops_that_are_not_there_or_that_save_time(self) -> None:
        assert self.loops is not None
        costs = np.zeros((3, 2))
        for sources, targets, seconds in [
            ([0], [3], [1.0]),
            ([-1], [0], [1.0]),
            ([0, 1], [1], [1.0]),
            ([1], [1], [1.0]),
            ([0], [1], [-1.0]),
            ([0], [1], [np.nan]),
        ]:
            with pytest.raises(ValueError, match="expected"):
                self.loops.cheapest_ways(np.array(sources), np.array(targets), np.array(seconds), costs)

    def test_works_between_borders_that_are_not_there(self) -> None:
        assert self.loops is not None
        good = {
            "begins": [0, 1], "ends": [1, 2], "works": np.ones((2, 2)), "prices": np.zeros((2, 3)), "lowest": [1, 2],
            "highest": [1, 2], "least": np.array([[0.0, np.inf, np.inf]] * 3), "sources": np.zeros((2, 3), dtype=np.int64),
        }  # fmt: skip

        def run(**changed: object) -> float:
            given = {name: np.array(value) for name, value in {**good, **changed}.items()}
            assert self.loops is not None
            self.loops.cut_works(*given.values())
            return float(given["least"][2, 2])

        assert run() == 2.0
        for wrong in [
            {"begins": [0, 2]}, {"begins": [-1, 1]}, {"ends": [1, 3]}, {"ends": [2, 1]}, {"begins": [0]}, {"lowest": [1, 3]},
            {"highest": [-1, 2]}, {"lowest": [1]}, {"works": np.ones((2, 3))}, {"works": np.ones((1, 2))},
            {"prices": np.zeros((2, 4))}, {"least": np.zeros((2, 3))}, {"sources": np.zeros((2, 2), dtype=np.int64)},
        ]:  # fmt: skip
            with pytest.raises(ValueError, match="expected"):
                run(**wrong)

    def test_passes_that_are_not_there(self) -> None:
        assert self.loops is not None
        good = {
            "firsts": [0, 2], "passes": [0, 1], "sources": [2, 0], "follows": [0, 1], "own_s": [1.0], "sends_s": [0.0],
            "num_micro": 2, "starts": [0.0, 0.0], "ready": [0.0],
        }  # fmt: skip

        def run(**changed: object) -> list[float]:
            given = {
                name: value if name == "num_micro" else np.array(value) for name, value in {**good, **changed}.items()
            }
            num_micro, starts, ready = given.pop("num_micro"), given.pop("starts"), given.pop("ready")
            assert self.loops is not None
            self.loops.run_passes(*given.values(), num_micro, False, starts, ready)
            return [*starts.tolist(), *ready.tolist()]

        assert run() == [0.0, 1.0, 2.0]
        for wrong in [
            {"firsts": [0, 3]}, {"firsts": [-1, 2]}, {"firsts": [0]}, {"passes": [0, 2]}, {"passes": [-1, 0]},
            {"sources": [3, 0]}, {"sources": [2]}, {"follows": [0]}, {"own_s": [1.0, 1.0]}, {"sends_s": []},
            {"num_micro": 0}, {"num_micro": 3}, {"starts": [0.0]}, {"ready": [0.0, 0.0]},
        ]:  # fmt: skip
            with pytest.raises(ValueError, match="expected"):
                run(**wrong)

    def test_chunks_of_shapes_that_do_not_go_together(self) -> None:
        assert self.loops is not None
        self.loops.deal_out(np.zeros((2, 3, 4)), np.zeros((5, 4)))
        for bands, rows in [((2, 3, 4), (5, 3)), ((0, 3, 4), (5, 4)), ((3, 4), (5, 4)), ((2, 3, 4), (4,))]:
            with pytest.raises(ValueError, match="expected"):
                self.loops.deal_out(np.zeros(bands), np.zeros(rows))

    def test_messages_beside_what_is_given(self) -> None:
        assert self.loops is not None
        good = {
            "firsts": [0, 1, 2], "arcs": [[1, 0, 6, 0, 2], [0, 6, 0, 2, 0]], "tables": [0.0] * 12, "begins": [0, 2, 5],
            "costs": [0.0] * 5, "shares": [1.0, 1.0], "messages": [0.0] * 5, "values": [0, 0], "excess": [0.0] * 5,
            "shifts": [0.0] * 5,
        }  # fmt: skip

        def run(first: int = 0, end: int = 2, back: bool = False, **changed: object) -> None:
            assert self.loops is not None
            arrays = [np.array(value) for value in {**good, **changed}.values()]
            self.loops.pass_messages(*arrays, first, end, back, 1e-9, 0.0)

        run()
        run(back=True)
        for wrong in [
            {"firsts": [0, 1, 3]}, {"firsts": [0, 2, 1]}, {"firsts": [0, 2]}, {"begins": [0, 2, 6]}, {"begins": [0, 0, 5]},
            {"arcs": [[2, 0, 6, 0, 2], [0, 6, 0, 2, 0]]}, {"arcs": [[0, 0, 6, 0, 2], [0, 6, 0, 2, 0]]},
            {"arcs": [[1, 7, 6, 0, 2], [0, 6, 0, 2, 0]]}, {"arcs": [[1, 0, 6, 4, 2], [0, 6, 0, 2, 0]]},
            {"arcs": [[1, 0, 6, 0, 3], [0, 6, 0, 2, 0]]}, {"arcs": [[1, 0, 6, 0], [0, 6, 0, 2]]},
            {"tables": [0.0] * 11}, {"costs": [0.0] * 4}, {"messages": [0.0] * 4}, {"values": [0]}, {"excess": [0.0]},
            {"shifts": [0.0] * 4}, {"shares": [1.0]}, {"end": 3}, {"first": -1}, {"values": [2, 0], "first": 1},
        ]:  # fmt: skip
            with pytest.raises(ValueError, match="expected"):
                run(**wrong)  # type: ignore[arg-type]

    def test_arrays_of_other_kinds_or_orders(self) -> None:
        assert self.loops is not None
        cube = np.zeros((2, 2, 2))
        for wrong in (cube.astype(np.float32), cube.astype(np.int64), cube.transpose(2, 1, 0), [0.0]):
            with pytest.raises((ValueError, TypeError, BufferError)):
                self.loops.least_sums(wrong, cube, cube.copy(), 0, 2)
        fixed = cube.copy()
        fixed.flags.writeable = False
        with pytest.raises((ValueError, BufferError)):
            self.loops.least_sums(cube, cube, fixed, 0, 2)
