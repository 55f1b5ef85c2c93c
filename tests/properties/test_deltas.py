"""Operations on JSON: what each does, that nothing given is changed, and the same change as plain JSON Patch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.deltas import apply, as_json_patch
from perdure.errors import InvalidValue
from perdure.values import canonical, escape

# Few different keys and short texts, so that operations meet.
TEXT = st.text(st.sampled_from("ab"), max_size=5)
KEYS = st.sampled_from(["a", "b", "", "~", "/", "~1", "0", "-"])
SCALARS = st.none() | st.booleans() | st.integers(0, 3) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=10
)
RFC_6902 = {"add", "remove", "replace", "move", "copy"}


def same(left: Any, right: Any) -> bool:
    return canonical(left) == canonical(right)


# -- a reference, written from the RFC without regard to cost -----------------------------------


def unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def locate(value: Any, path: str) -> tuple[Any, Any]:
    """The container and the key (an index for lists, their length for `-`) of a path that is not empty."""
    *way, last = [unescape(part) for part in path.split("/")[1:]]
    for part in way:
        value = value[int(part)] if isinstance(value, list) else value[part]
    if isinstance(value, list):
        return value, len(value) if last == "-" else int(last)
    return value, last


def read(value: Any, path: str) -> Any:
    if path == "":
        return value
    container, key = locate(value, path)
    return container[key]


def reference(value: Any, op: dict[str, Any]) -> Any:
    """The value after one valid operation, on a deep copy."""
    value, op = copy.deepcopy(value), copy.deepcopy(op)
    kind, path = op["op"], op["path"]
    if kind == "copy":
        return reference(value, {"op": "add", "path": path, "value": read(value, op["from"])})
    if kind == "move":
        if op["from"] == path:
            return value
        moved = read(value, op["from"])
        return reference(
            reference(value, {"op": "remove", "path": op["from"]}), {"op": "add", "path": path, "value": moved}
        )
    if kind == "append":
        op["value"] = read(value, path) + op["value"]
    elif kind == "truncate":
        found = read(value, path)
        op["value"] = found[max(0, len(found) - op["keep"]) :]
    if path == "":
        return op["value"]
    container, key = locate(value, path)
    if kind == "remove":
        del container[key]
    elif kind == "add" and isinstance(container, list):
        container.insert(key, op["value"])
    else:
        container[key] = op["value"]
    return value


# -- operations that fit ------------------------------------------------------------------------


def places(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every path that something stands at."""
    found = [(path, value)]
    members: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        found += places(member, f"{path}/{escape(str(key))}")
    return found


def openings(value: Any) -> list[str]:
    """Paths at which something can be added."""
    found = [""]
    for path, member in places(value):
        if isinstance(member, dict):
            found += [f"{path}/{key}" for key in ("a", "b", "~0", "~1")]
        elif isinstance(member, list):
            found += [f"{path}/{at}" for at in (*range(len(member) + 1), "-")]
    return found


@st.composite
def fitting(draw: st.DrawFn, value: Any) -> dict[str, Any]:
    here = places(value)
    kind = draw(st.sampled_from(["add", "remove", "replace", "move", "copy", "append", "truncate"]))
    if kind in {"append", "truncate"}:
        kinds = str if kind == "append" else str | list
        candidates = [path for path, member in here if isinstance(member, kinds)]
        if candidates:
            rest = {"value": draw(TEXT)} if kind == "append" else {"keep": draw(st.integers(0, 5))}
            return {"op": kind, "path": draw(st.sampled_from(candidates)), **rest}
        kind = "add"
    if kind == "remove" and len(here) > 1:
        return {"op": "remove", "path": draw(st.sampled_from(here[1:]))[0]}
    if kind == "replace":
        return {"op": "replace", "path": draw(st.sampled_from(here))[0], "value": draw(VALUES)}
    if kind == "copy":
        return {"op": "copy", "from": draw(st.sampled_from(here))[0], "path": draw(st.sampled_from(openings(value)))}
    if kind == "move" and len(here) > 1:
        source = draw(st.sampled_from(here[1:]))[0]
        without = reference(value, {"op": "remove", "path": source})
        # Where the target of a move is meant is decided after the removal, so it may lie "inside" the old place.
        targets = [path for path in openings(without) if not path.startswith(f"{source}/")]
        return {"op": "move", "from": source, "path": draw(st.sampled_from(targets))}
    return {"op": "add", "path": draw(st.sampled_from(openings(value))), "value": draw(VALUES)}


@st.composite
def changes(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]], Any]:
    """A value, operations that fit one after another, and the value they lead to by the reference."""
    original = value = draw(VALUES)
    ops: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 6))):
        ops.append(draw(fitting(value)))
        value = reference(value, ops[-1])
    return original, ops, value


@pytest.mark.slow
@given(changes())
def test_operations_do_what_the_reference_does(change):
    original, ops, expected = change

    assert same(apply(original, ops), expected)


@pytest.mark.slow
@given(changes())
def test_neither_the_value_nor_the_operations_are_changed(change):
    original, ops, _ = change
    before = copy.deepcopy((original, ops))

    apply(original, ops)
    as_json_patch(original, ops)

    assert same((original, ops), before)


@pytest.mark.slow
@given(changes(), st.integers(0, 6))
def test_operations_may_be_applied_in_batches(change, split):
    original, ops, expected = change

    assert same(apply(apply(original, ops[:split]), ops[split:]), expected)


@pytest.mark.slow
@given(changes())
def test_the_translation_is_json_patch_alone_and_leads_to_the_same_value(change):
    original, ops, expected = change

    patch = as_json_patch(original, ops)

    assert {op["op"] for op in patch} <= RFC_6902
    value = original
    for op in patch:
        value = reference(value, op)
    assert same(value, expected)


# -- examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, op, result",
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"op": "add", "path": "/a", "value": 2}, {"a": 2}),
        ([1, 3], {"op": "add", "path": "/1", "value": 2}, [1, 2, 3]),
        ([1], {"op": "add", "path": "/-", "value": 2}, [1, 2]),
        ([1], {"op": "add", "path": "/1", "value": 2}, [1, 2]),
        ({"-": 1, "0": 2}, {"op": "remove", "path": "/-"}, {"0": 2}),
        ({"": {"/": {"~": 1}}}, {"op": "replace", "path": "//~1/~0", "value": 2}, {"": {"/": {"~": 2}}}),
        ({"~1": 1}, {"op": "remove", "path": "/~01"}, {}),
        ({"a": [1, 2]}, {"op": "move", "from": "/a/0", "path": "/a/1"}, {"a": [2, 1]}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/a"}, {"a": 1}),
        ({"a": [1]}, {"op": "copy", "from": "/a", "path": "/a/0"}, {"a": [[1], 1]}),
        ({"t": "ab"}, {"op": "append", "path": "/t", "value": "c"}, {"t": "abc"}),
        ("ab", {"op": "append", "path": "", "value": "c"}, "abc"),
        ({"t": [1, 2, 3]}, {"op": "truncate", "path": "/t", "keep": 2}, {"t": [2, 3]}),
        ({"t": "abc"}, {"op": "truncate", "path": "/t", "keep": 2}, {"t": "bc"}),
        ([1, 2], {"op": "truncate", "path": "", "keep": 0}, []),
        ([1, 2], {"op": "truncate", "path": "", "keep": 9}, [1, 2]),
        ({"a": 1}, {"op": "replace", "path": "", "value": None}, None),
    ],
)
def test_each_operation_does_one_thing(value, op, result):
    assert same(apply(value, [op]), result)


def test_what_did_not_change_is_shared():
    value = {"changed": {"n": 1}, "same": {"big": [1, 2, 3]}}

    after = apply(value, [{"op": "replace", "path": "/changed/n", "value": 2}])

    assert after["same"] is value["same"]
    assert value["changed"] == {"n": 1}


def test_a_copy_is_independent_of_its_source_within_one_batch():
    ops = [
        {"op": "add", "path": "/a/0", "value": 0},
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "add", "path": "/b/-", "value": 9},
        {"op": "add", "path": "/a/-", "value": 1},
    ]

    assert apply({"a": []}, ops) == {"a": [0, 1], "b": [0, 9]}


@pytest.mark.parametrize(
    "op, message",
    [
        ({"op": "remove", "path": "/nope"}, r"operation 1, op 'remove' path '/nope', .* no member 'nope'"),
        ({"op": "replace", "path": "/list/2", "value": 1}, "'2' is no index below 2"),
        ({"op": "replace", "path": "/list/-", "value": 1}, "'-' is no index"),
        ({"op": "add", "path": "/list/3", "value": 1}, "'3' is no index below 3"),
        ({"op": "add", "path": "/list/01", "value": 1}, "'01' is no index"),
        ({"op": "add", "path": "/list/+1", "value": 1}, "is no index"),
        ({"op": "add", "path": "/list/\u0661", "value": 1}, "is no index"),
        ({"op": "add", "path": "/list/" + "9" * 5000, "value": 1}, "is no index"),
        ({"op": "add", "path": "/text/a", "value": 1}, "neither object nor list"),
        ({"op": "add", "path": "/list/0/a/b", "value": 1}, "neither object nor list"),
        ({"op": "remove", "path": ""}, "the whole value cannot be removed"),
        ({"op": "add", "path": "list", "value": 1}, "JSON pointer"),
        ({"op": "add", "path": 5, "value": 1}, "JSON pointer"),
        ({"op": "add", "path": "/~2", "value": 1}, "a ~ in a path is written ~0"),
        ({"op": "move", "from": "", "path": "/list/-"}, "nothing can be moved into itself"),
        ({"op": "move", "from": "/list", "path": "/list/0"}, "nothing can be moved into itself"),
        ({"op": "move", "from": "/nope", "path": "/nope"}, "no member 'nope'"),
        ({"op": "copy", "from": "/nope", "path": "/b"}, "no member 'nope'"),
        ({"op": "append", "path": "/list", "value": "x"}, "append adds text to text"),
        ({"op": "append", "path": "/text", "value": 1}, "append adds text to text"),
        ({"op": "truncate", "path": "/text", "keep": -1}, "0 or more"),
        ({"op": "truncate", "path": "/text", "keep": True}, "0 or more"),
        ({"op": "truncate", "path": "", "keep": 1}, "the end of a list or text"),
        ({"op": "test", "path": "/text", "value": 1}, "operation 1 is malformed"),
        ({"op": "add", "path": "/b"}, "operation 1 is malformed"),
        ({"op": [], "path": "/b"}, "operation 1 is malformed"),
        ({}, "operation 1 is malformed"),
        ("add", "operation 1 is malformed: a str"),
    ],
)
@pytest.mark.parametrize("entrance", [apply, as_json_patch])
def test_an_operation_that_does_not_fit_is_refused_and_named(entrance, op, message):
    value = {"text": "abc", "list": [1, 2]}
    fitting_op = {"op": "add", "path": "/first", "value": 1}

    with pytest.raises(InvalidValue, match=message):
        entrance(value, [fitting_op, op])

    assert value == {"text": "abc", "list": [1, 2]}


@pytest.mark.parametrize(
    "value, op, patch",
    [
        ({"t": "ab"}, {"op": "append", "path": "/t", "value": "c"}, [{"op": "replace", "path": "/t", "value": "abc"}]),
        ([1, 2, 3], {"op": "truncate", "path": "", "keep": 2}, [{"op": "remove", "path": "/0"}]),
        (
            {"l": [1, 2, 3]},
            {"op": "truncate", "path": "/l", "keep": 1},
            [{"op": "replace", "path": "/l", "value": [3]}],
        ),
        ({"t": "abc"}, {"op": "truncate", "path": "/t", "keep": 1}, [{"op": "replace", "path": "/t", "value": "c"}]),
        ({"t": "abc"}, {"op": "truncate", "path": "/t", "keep": 3}, []),
        ({"t": 1}, {"op": "remove", "path": "/t"}, [{"op": "remove", "path": "/t"}]),
    ],
)
def test_append_and_truncate_are_translated(value, op, patch):
    assert as_json_patch(value, [op]) == patch


def test_a_translated_operation_is_not_reached_by_those_that_follow():
    ops = [
        {"op": "add", "path": "/2/-", "value": 2},
        {"op": "truncate", "path": "", "keep": 1},
        {"op": "add", "path": "/0/-", "value": 3},
    ]

    patch = as_json_patch([[], [], [1]], ops)

    assert patch[1] == {"op": "replace", "path": "", "value": [[1, 2]]}
