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
from autosbp.search.searchers import loops, message_passes, tables
from autosbp.search.searchers.messages import Messages
from autosbp.search.searchers.pruning import canonical
from autosbp.search.searchers.tables import min_of_sum
from autosbp.testing.searchers import random_problem


@pytest.fixture
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_state", {"kernels": None, "additions": 0.0})
    monkeypatch.setattr(loops, "_is_imported", lambda: False)
    monkeypatch.setattr(message_passes, "LOOPS", None)


@pytest.fixture(params=["C", "numba"])
def compiler(request: pytest.FixtureRequest) -> str:
    if request.param == "C" and LOOPS is None:
        pytest.skip("loops in C are not built here: tests/test_native.py says where they must be")
    return str(request.param)


def with_loops(monkeypatch: pytest.MonkeyPatch, compiler: str, *, halves: bool = False) -> None:
    monkeypatch.setattr(loops, "_state", {"kernels": LOOPS if compiler == "C" else None, "additions": 0.0})
    monkeypatch.setattr(message_passes, "LOOPS", loops)  # whole passes, by the kernels above
    monkeypatch.setattr(loops, "WORTH_LOADING", -np.inf)
    monkeypatch.setattr(tables, "IN_LOOPS", 0.0)
    monkeypatch.setattr(tables, "IN_HALVES_OF_LOOPS", 0.0 if halves else np.inf)


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
    in_loops = tables._in_loops
    monkeypatch.setattr(tables, "_in_loops", lambda *given: looped.append(1) or in_loops(*given))
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
            messages = Messages(canonical(problem).problem, lambda checks=checks: checks.append(1))
            for price in (0.0, 0.3):
                messages.reprice([price] * messages.problem.num_variables)
                values = [messages.sweep() for _ in range(4)][-1]
                shifts = b"".join(part.tobytes() for pair in messages.shifts for part in pair)
                kept = [each.tolist() for each in messages.kept(1.1 * messages.bound_s)]
                found.append((values, messages.bound_s, messages.priced(values), shifts, kept))
            assert checks
        return found

    expected = passed()
    assert loops._state["kernels"] is None
    with_loops(monkeypatch, compiler)
    monkeypatch.setattr(message_passes, "CHECKED", 100.0)
    if not whole:
        monkeypatch.setattr(message_passes, "MOST_ADDITIONS", 0.0)
    assert passed() == expected
    assert loops._state["kernels"] is not None or whole


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
        "from autosbp.search.searchers.loops import WORTH_LOADING, kernels\n"
        "assert kernels(0.5 * WORTH_LOADING) is None and 'numba' not in sys.modules\n"
        "assert kernels(0.5 * WORTH_LOADING) is not None and 'numba' in sys.modules\n"
        "assert kernels(1.0) is not None"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
