"""What one process hands to another is what the other gets, and nothing else can come out of a text."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosbp.errors import InfeasibleError
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.utils import serialization
from autosbp.utils.serialization import serializable

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
    read = serialization.loads(serialization.dumps(value))
    assert repr(read) == repr(value)  # -0.0, 1 and 1.0, lists and tuples are told apart


def test_nan_and_infinity_are_serialized() -> None:
    assert serialization.loads(serialization.dumps([math.inf, -math.inf])) == [math.inf, -math.inf]
    assert math.isnan(serialization.loads(serialization.dumps(math.nan)))


def test_classes_are_made_again() -> None:
    error = InfeasibleError("memory_limit_bytes", 10**9, 2.5e9, "too little", ("stages=4",))
    read = serialization.loads(serialization.dumps(SearchStats(0.5, 3, [1.0, -math.inf], failure=error)))
    assert replace(read, failure=None) == SearchStats(0.5, 3, [1.0, -math.inf])
    assert vars(read.failure) == vars(error) and str(read.failure) == str(error)


@dataclass
class Unknown:
    x: int = 1


def test_unregistered_classes_are_refused() -> None:
    for value in (Unknown(), {1, 2}, b"x", object(), [1, (Unknown(),)]):
        with pytest.raises(TypeError, match="is not serializable"):
            serialization.dumps(value)
    for text in (["Unknown", 1], ["eval", "1"], ["os.system", "true"]):
        with pytest.raises(ValueError, match=text[0]):
            serialization.loads(json.dumps([text, ["list", [0]]]).encode())


NOBODYS = (
    "[]", "1", "{}", '"list"', "[[]]", "[1]", '[["list",[0]]]', '[["list",[1]]]', '[["list",[-1]]]', '[["list",[true]]]',
    '[["list",[0,0]]]', '[["list",[]]]', '[["list",["0"]]]', '[["tuple",1]]', '[["list"]]', '[["list",1,2]]', '[[["list"]]]',
    '[["list",{}]]', '[["list"],["dict",[0],1],["list",[1]]]', '[["SearchStats",1,2,3,4,5,6],["list",[0]]]',
)  # fmt: skip


@pytest.mark.parametrize("text", NOBODYS)
def test_malformed_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="value|list|unknown type|invalid reference|wrong members"):
        serialization.loads(text.encode())


def test_shared_values_are_serialized_once() -> None:
    shared = tuple(range(50))
    text = serialization.dumps([(shared, at) for at in range(1000)])
    assert len(text) < 25 * 1000
    read = serialization.loads(text)
    assert read == [(shared, at) for at in range(1000)] and all(each[0] is read[0][0] for each in read)


def test_a_name_stands_for_one_class() -> None:
    with pytest.raises(TypeError, match="SearchStats"):
        serializable(type("SearchStats", (), {}), "x")


@pytest.mark.parametrize("kept", [0, 1, 9, -1])
def test_a_text_that_is_cut_off_is_a_value_error(kept: int) -> None:
    with pytest.raises(json.JSONDecodeError, match="char"):
        serialization.loads(serialization.dumps({1: (1.5, "a")})[:kept])
