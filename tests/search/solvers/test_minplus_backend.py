"""Compiled loops, in C or numba's, give what numpy gives, bit for bit, so that no plan tells which of them it was made with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from autosbp.native import LOOPS
from autosbp.search import SearchOptions, search
from autosbp.search.solvers import cost_tables, minplus_backend, trws_passes
from autosbp.search.solvers.cost_tables import min_of_sum
from autosbp.search.solvers.reduced_cost_fixing import canonical
from autosbp.search.solvers.trws import TrwsMessages
from autosbp.testing.searcher_conformance import random_problem

pytestmark = pytest.mark.integration


@pytest.fixture
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minplus_backend, "_state", {"kernels": None, "additions": 0.0})
    monkeypatch.setattr(minplus_backend, "_is_imported", lambda: False)
    monkeypatch.setattr(trws_passes, "LOOPS", None)


@pytest.fixture(params=["C", "numba"])
def compiler(request: pytest.FixtureRequest) -> str:
    if request.param == "C" and LOOPS is None:
        pytest.skip("loops in C are not built here: tests/test_native.py says where they must be")
    return str(request.param)


def with_loops(monkeypatch: pytest.MonkeyPatch, compiler: str, *, halves: bool = False) -> None:
    monkeypatch.setattr(minplus_backend, "_state", {"kernels": LOOPS if compiler == "C" else None, "additions": 0.0})
    monkeypatch.setattr(trws_passes, "LOOPS", minplus_backend)  # whole passes, by the kernels above
    monkeypatch.setattr(minplus_backend, "MIN_ADDITIONS_FOR_NUMBA", -np.inf)
    monkeypatch.setattr(cost_tables, "MIN_ADDITIONS_FOR_COMPILED", 0.0)
    monkeypatch.setattr(cost_tables, "MIN_COMPILED_ADDITIONS_FOR_THREADS", 0.0 if halves else np.inf)


def products() -> Iterator[tuple[list[np.ndarray], tuple[int, ...]]]:
    """Sums of arrays that share some dims, and lack others; every result dim is one array's at least."""
    rng = np.random.default_rng(7)
    for _ in range(300):
        sizes = tuple(int(size) for size in rng.integers(1, 14, rng.integers(2, 6)))
        arrays = []
        for _ in range(int(rng.integers(1, 4))):
            shape = (sizes[0], *(size if rng.random() < 0.5 else 1 for size in sizes[1:]))
            arrays.append(np.where(rng.random(shape) < 0.1, np.inf, rng.random(shape)))
        for dim in range(1, len(sizes)):
            if all(array.shape[dim] == 1 for array in arrays):
                shape = (sizes[0], *(size if at == dim else 1 for at, size in enumerate(sizes) if at))
                arrays.append(rng.random(shape))
        yield arrays, sizes


@pytest.mark.usefixtures("numpy_alone")
@pytest.mark.parametrize("halves", [False, True])
def test_minima_of_sums_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, compiler: str, halves: bool) -> None:
    cases = list(products())
    expected = [min_of_sum(*case, lambda: None) for case in cases]
    with_loops(monkeypatch, compiler, halves=halves)
    looped = []
    in_loops = cost_tables._min_of_sum_compiled
    monkeypatch.setattr(cost_tables, "_min_of_sum_compiled", lambda *given: looped.append(1) or in_loops(*given))
    for case, wanted in zip(cases, expected, strict=True):
        found = min_of_sum(*case, lambda: None)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, wanted)
    assert len(looped) > 100


@pytest.mark.usefixtures("numpy_alone")
@pytest.mark.parametrize("whole", [False, True])
def test_messages_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, compiler: str, whole: bool) -> None:
    """One at a time, or whole passes; at two prices of memory."""

    def passed() -> list[object]:
        found: list[object] = []
        for seed in range(20):
            problem = random_problem(
                np.random.default_rng(seed),
                num_variables=8, max_domain=9, edge_probability=0.5, forbidden_probability=0.1, memory_share=None,
            )  # fmt: skip
            checks: list[int] = []
            messages = TrwsMessages(canonical(problem).problem, lambda checks=checks: checks.append(1))
            for price in (0.0, 0.3):
                messages.set_multipliers([price] * messages.problem.num_variables)
                values = [messages.sweep() for _ in range(4)][-1]
                shifts = b"".join(part.tobytes() for pair in messages.shifts for part in pair)
                kept = [each.tolist() for each in messages.kept(1.1 * messages.bound_s)]
                found.append((values, messages.bound_s, messages.priced(values), shifts, kept))
            assert checks
        return found

    expected = passed()
    assert minplus_backend._state["kernels"] is None
    with_loops(monkeypatch, compiler)
    monkeypatch.setattr(trws_passes, "ADDITIONS_BETWEEN_CHECKS", 100.0)
    if not whole:
        monkeypatch.setattr(trws_passes, "MOST_ADDITIONS", 0.0)
    assert passed() == expected
    assert minplus_backend._state["kernels"] is not None or whole


@pytest.mark.usefixtures("numpy_alone")
def test_results_and_certificates_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    problems = [
        random_problem(
            np.random.default_rng(seed),
            num_variables=7, max_domain=6, edge_probability=0.4, forbidden_probability=0.1, memory_share=0.4,
        )
        for seed in range(20)
    ]  # fmt: skip

    def found() -> list[object]:
        results = [search(problem, "exact", SearchOptions()) for problem in problems]
        return [replace(result, trace=(), search_s=0.0) for result in results]

    expected = found()
    with_loops(monkeypatch, compiler)
    assert found() == expected


def test_numba_is_loaded_once_numpy_has_worked_as_long_as_that_takes() -> None:
    program = (
        "import sys; from autosbp import native; native.LOOPS = None\n"
        "from autosbp.search.solvers.minplus_backend import MIN_ADDITIONS_FOR_NUMBA, load_kernels\n"
        "assert load_kernels(0.5 * MIN_ADDITIONS_FOR_NUMBA) is None and 'numba' not in sys.modules\n"
        "assert load_kernels(0.5 * MIN_ADDITIONS_FOR_NUMBA) is not None and 'numba' in sys.modules\n"
        "assert load_kernels(1.0) is not None"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
