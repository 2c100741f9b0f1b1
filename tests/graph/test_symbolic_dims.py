from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosbp.errors import GraphError, InputError
from autosbp.graph.symbolic_dims import MAX_DIM_SIZE, evaluate, symbols_of


@pytest.mark.parametrize(
    ("dim", "symbols", "value"),
    [(7, set(), 7), ("batch", {"batch"}, 5), ("32*batch", {"batch"}, 160), ("2*batch+seq * 3+1", {"batch", "seq"}, 32)],
)
def test_a_dim_is_a_sum_of_products(dim: int | str, symbols: set[str], value: int) -> None:
    assert symbols_of(dim) == symbols
    assert evaluate(dim, {"batch": 5, "seq": 7}) == value


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), min_size=1, max_size=4))
def test_evaluating_agrees_with_arithmetic(terms: list[list[int]]) -> None:
    text = "+".join("*".join(map(str, term)) for term in terms)
    assert evaluate(text, {}) == eval(text)  # noqa: S307


@pytest.mark.parametrize("dim", ["", "batch-1", "batch/2", "Batch", "2**3", "batch+", "__import__('os')", "a" * 300])
def test_other_expressions_are_refused(dim: str) -> None:
    with pytest.raises(GraphError, match="dim"):
        symbols_of(dim)


def test_a_symbol_without_a_value_is_named() -> None:
    with pytest.raises(InputError, match=r"symbols\.seq"):
        evaluate("batch*seq", {"batch": 2})


def test_a_size_beyond_the_limit_is_refused() -> None:
    with pytest.raises(InputError, match=str(MAX_DIM_SIZE)):
        evaluate("batch*batch", {"batch": 2**21})
