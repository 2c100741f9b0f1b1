"""Messages about values are short, however large the value, and take no long time to write."""

from __future__ import annotations

from typing import Any

import pytest

from autosbp.errors import InputError, abbreviated_repr


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1.5,
        "it's",
        b"x",
        [],
        (),
        {},
        [1, "a", [2.0]],
        (1,),
        (1, 2),
        {"a": [1, (2,)], 3: None},
        {"k": {"l": [{}]}},
    ],
)
def test_a_small_value_is_shown_as_it_is(value: object) -> None:
    assert abbreviated_repr(value) == repr(value)


@pytest.mark.parametrize(
    "value", ["x" * 500, [["y" * 300]], list(range(1000)), {str(number): number for number in range(99)}]
)
def test_a_large_value_is_shown_by_its_beginning(value: object) -> None:
    assert abbreviated_repr(value) == repr(value)[:197] + "..."


def test_values_without_an_end_are_cut_short() -> None:
    shared: Any = ["x"]
    for _ in range(60):
        shared = [shared] * 10  # its repr has 10^60 letters
    within: list[Any] = []
    within.append(within)
    deep: Any = 1
    for _ in range(100_000):
        deep = {"a": deep}
    for value in (shared, within, deep):
        assert len(abbreviated_repr(value)) == 200
    assert abbreviated_repr(10**5000) == "an integer of 16610 bits"
    assert len(str(InputError("field", shared, "expected less"))) < 300


def test_an_error_shows_the_beginning_of_a_long_field() -> None:
    error = InputError("a" * 5000, 1, "expected another")
    assert len(error.field) == 300 and len(str(error)) < 400
