"""What a look at the store has to go by: operations between two values of which only these are known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.deltas import apply
from perdure.values import canonical
from perdure.views.difference import difference

KEYS = st.sampled_from(["a", "b", "~", "/"])
SCALARS = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([1.0, 0.0]) | st.text("ab", max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10
)


@pytest.mark.slow
@given(VALUES, VALUES)
def test_the_operations_lead_from_the_one_value_to_the_other(before: Any, after: Any):
    assert canonical(apply(before, difference(before, after))) == canonical(after)


@pytest.mark.slow
@given(VALUES)
def test_between_equal_values_there_are_none(value: Any):
    assert list(difference(value, apply(value, []))) == []


@pytest.mark.parametrize(
    "before, after, ops",
    [
        ({"text": "ab"}, {"text": "abc"}, [("append", "/text", "c")]),
        ({"text": ""}, {"text": "abc"}, [("replace", "/text", "abc")]),
        ([1, 2, 3], [2, 3, 4, 5], [("truncate", "", 2), ("add", "/-", 4), ("add", "/-", 5)]),
        ([], [1], [("add", "/-", 1)]),
        ([{"a": 1}], [{"a": 1}, {"b": 2}], [("add", "/-", {"b": 2})]),
        ([1, 2], [3, 1, 2], [("replace", "", [3, 1, 2])]),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": True}}, [("remove", "/c", None), ("replace", "/a/b", True)]),
        ({"a/b": 1}, {"a/b": 2, "~": 3}, [("replace", "/a~1b", 2), ("add", "/~0", 3)]),
    ],
)
def test_what_grew_is_appended_and_a_window_that_slid_truncated(before: Any, after: Any, ops: list[Any]):
    found = [(op["op"], op["path"], op.get("value", op.get("keep"))) for op in difference(before, after)]
    assert found == ops
