"""The operations of a draft: compact, and worth no more than what was done."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from perdure.deltas import Draft, apply
from perdure.values import canonical


def document() -> dict[str, Any]:
    return {"title": "plan", "items": [{"done": False}, {"done": True}], "tags": ["a", "b", "c"]}


def leads_to(original: Any, draft: Draft) -> bool:
    return canonical(apply(original, draft.ops)) == canonical(draft.value)


@pytest.mark.parametrize(
    "writes, ops",
    [
        ([lambda r: r.append_text("title", "a"), lambda r: r.append_text("title", "b")], [("append", "/title", "ab")]),
        (
            [lambda r: r.__setitem__("title", "x"), lambda r: r.append_text("title", "y")],
            [("replace", "/title", "xy")],
        ),
        ([lambda r: r.__setitem__("title", 1), lambda r: r.__setitem__("title", 2)], [("replace", "/title", 2)]),
        ([lambda r: r.__setitem__("new", 1), lambda r: r.__setitem__("new", 2)], [("add", "/new", 2)]),
        ([lambda r: r.__setitem__("new", 1), lambda r: r.__delitem__("new")], []),
        ([lambda r: r.append_text("title", "a"), lambda r: r.__setitem__("title", "x")], [("replace", "/title", "x")]),
        ([lambda r: r["items"].append(1), lambda r: r.__delitem__("items")], [("remove", "/items", None)]),
        ([lambda r: r["items"].append(1), lambda r: r.clear()], [("replace", "", {})]),
        ([lambda r: r["tags"].truncate(2), lambda r: r["tags"].truncate(1)], [("truncate", "/tags", 1)]),
        ([lambda r: r["tags"].__delitem__(slice(2))], [("truncate", "/tags", 1)]),
        ([lambda r: r["tags"].append("d")], [("add", "/tags/-", "d")]),
        ([lambda r: r.truncate("title", 2)], [("truncate", "/title", 2)]),
        ([lambda r: r.__setitem__("title", "plan")], []),
        ([lambda r: r["items"][1].__setitem__("done", True)], []),
        ([lambda r: r.append_text("title", "")], []),
        ([lambda r: r.truncate("title", 4), lambda r: r["tags"].truncate(3)], []),
        ([lambda r: r["tags"].sort(), lambda r: r["tags"].extend([]), lambda r: r.update({})], []),
        ([lambda r: r["tags"].insert(1, "x"), lambda r: r["tags"].__setitem__(1, "y")], [("add", "/tags/1", "y")]),
        (
            [lambda r: r["tags"].__delitem__(1), lambda r: r["tags"].__setitem__(1, "y")],
            [("remove", "/tags/1", None), ("replace", "/tags/1", "y")],
        ),
        (
            [lambda r: r.__setitem__("title", 1), lambda r: r.__setitem__("titles", 2)],
            [("replace", "/title", 1), ("add", "/titles", 2)],
        ),
        (
            [lambda r: r.__setitem__("titles", 1), lambda r: r.__setitem__("title", 2)],
            [("add", "/titles", 1), ("replace", "/title", 2)],
        ),
    ],
    ids=itertools.count(),
)
def test_operations_are_recorded_compactly(writes, ops):
    draft = Draft(document())
    for write in writes:
        write(draft.root)

    recorded = [(op["op"], op["path"], op.get("value", op.get("keep"))) for op in draft.ops]
    assert recorded == ops
    assert leads_to(document(), draft)


def test_true_one_and_the_two_zeros_are_different_values():
    draft = Draft({"a": 1, "b": 0.0})

    draft.root["a"] = True
    draft.root["b"] = -0.0

    assert canonical(draft.value) == canonical({"a": True, "b": -0.0})
    assert leads_to({"a": 1, "b": 0.0}, draft)


def test_what_is_stored_grows_with_the_change_and_not_with_the_value():
    large = {"log": ["line"] * 10_000, "text": "x" * 100_000, "n": 0}
    draft = Draft(large)

    draft.root["log"].append("more")
    draft.root.append_text("text", "y")
    draft.root.truncate("log", 100)
    draft.root["n"] = 1

    assert len(canonical(draft.ops)) < 250
    assert leads_to(large, draft)
