"""What one process hands to another is what the other gets, and nothing else can come out of a text."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosbp import handed
from autosbp.errors import InfeasibleError
from autosbp.handed import handed_over
from autosbp.search.space import best

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.text(), st.integers()), inner)
        | st.dictionaries(st.text(), st.integers()).map(Counter)
    ),
)


@given(VALUES)
def test_values_read_back_equal_type_by_type(value: object) -> None:
    read = handed.loads(handed.dumps(value))
    assert repr(read) == repr(value)  # -0.0, 1 and 1.0, lists and tuples are told apart


def test_floats_without_a_number_are_handed_over() -> None:
    assert handed.loads(handed.dumps([math.inf, -math.inf])) == [math.inf, -math.inf]
    assert math.isnan(handed.loads(handed.dumps(math.nan)))


def test_classes_are_made_again() -> None:
    tally = best.Tally(0.5, 3, [1.0, -math.inf])
    error = InfeasibleError("memory_limit_bytes", 10**9, 2.5e9, "too little", ("stages=4",))
    read = handed.loads(handed.dumps(best.Walked(None, (error,), tally)))
    assert read.tally == tally and read.walk is None
    assert vars(read.failures[0]) == vars(error) and str(read.failures[0]) == str(error)


@dataclass
class Unknown:
    x: int = 1


def test_what_is_not_declared_is_refused() -> None:
    for value in (Unknown(), {1, 2}, b"x", object(), [1, (Unknown(),)]):
        with pytest.raises(TypeError, match="cannot be handed to another process"):
            handed.dumps(value)
    for text in (["Unknown", 1], ["eval", "1"], ["os.system", "true"]):
        with pytest.raises(ValueError, match=text[0]):
            handed.loads(json.dumps([text, ["list", [0]]]).encode())


NOBODYS = (
    "[]", "1", "{}", '"list"', "[[]]", "[1]", '[["list",[0]]]', '[["list",[1]]]', '[["list",[-1]]]', '[["list",[true]]]',
    '[["list",[0,0]]]', '[["list",[]]]', '[["list",["0"]]]', '[["tuple",1]]', '[["list"]]', '[["list",1,2]]', '[[["list"]]]',
    '[["list",{}]]', '[["list"],["dict",[0],1],["list",[1]]]', '[["Tally",1,2,3,4,5],["list",[0]]]',
)  # fmt: skip


@pytest.mark.parametrize("text", NOBODYS)
def test_a_text_that_nobody_wrote_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="value|list|handed over"):
        handed.loads(text.encode())


def test_what_is_met_several_times_is_told_and_made_once() -> None:
    shared = tuple(range(50))
    text = handed.dumps([(shared, at) for at in range(1000)])
    assert len(text) < 25 * 1000
    read = handed.loads(text)
    assert read == [(shared, at) for at in range(1000)] and all(each[0] is read[0][0] for each in read)


def test_a_name_stands_for_one_class() -> None:
    with pytest.raises(TypeError, match="Tally"):
        handed_over(type("Tally", (), {}), "x")


@pytest.mark.parametrize("kept", [0, 1, 9, -1])
def test_a_text_that_is_cut_off_is_a_value_error(kept: int) -> None:
    with pytest.raises(json.JSONDecodeError, match="char"):
        handed.loads(handed.dumps({1: (1.5, "a")})[:kept])
