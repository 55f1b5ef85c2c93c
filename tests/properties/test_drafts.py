"""Drafts read and write like dicts and lists, and their operations say what was done."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest

from perdure.deltas import Draft, apply, plain
from perdure.errors import HandleExpired, InvalidValue, UsageError
from perdure.values import MAX_DEPTH, canonical, clean, coerce


def same(left: Any, right: Any) -> bool:
    return canonical(left) == canonical(right)


def todos() -> dict[str, Any]:
    return {
        "title": "plan",
        "items": [{"text": "one", "done": False}, {"text": "two", "done": True}, {"text": "three", "done": False}],
        "tags": ["a", "b", "c"],
        "nested": {"deep": {"list": [[1], [2]]}},
    }


class Change:
    """A draft of a document, and what a plain copy of the document would be."""

    def __init__(self, original: Any) -> None:
        self.before = copy.deepcopy(original)
        self.original = original
        self.draft = Draft(original)
        self.root: Any = self.draft.root

    def check(self, expected: Any) -> None:
        assert same(plain(self.root), expected)
        assert same(self.draft.value, expected)
        assert same(apply(self.original, self.draft.ops), expected)
        assert same(self.original, self.before)


@pytest.fixture
def change() -> Change:
    return Change(todos())


# -- reading ------------------------------------------------------------------------------------


def test_a_draft_reads_like_the_value(change):
    root = change.root

    assert root == todos()
    assert root["title"] == "plan"
    assert root["items"][-1]["text"] == "three"
    assert root["tags"][1:] == ["b", "c"]
    assert [item["done"] for item in root["items"]] == [False, True, False]
    assert dict(root) == todos()
    assert list(root) == list(root.keys()) == ["title", "items", "tags", "nested"]
    assert dict(root["nested"].items()) == {"deep": {"list": [[1], [2]]}}
    assert list(root["items"][0].values()) == ["one", False]
    assert "tags" in root
    assert "b" in root["tags"]
    assert {"text": "two", "done": True} in root["items"]
    assert root.get("missing", 5) == 5
    assert (len(root), len(root["tags"]), root["tags"].index("c"), root["tags"].count("a")) == (4, 3, 2, 1)
    assert list(reversed(root["tags"])) == ["c", "b", "a"]
    assert bool(root)
    assert root != {}
    assert change.draft.ops == []


def test_reading_again_gives_the_same_part(change):
    assert change.root["items"] is change.root["items"]
    assert change.root["items"][0] is change.root["items"][-3]


@pytest.mark.parametrize(
    "read, error",
    [
        (lambda root: root["missing"], KeyError),
        (lambda root: root[5], KeyError),
        (lambda root: root["tags"][3], IndexError),
        (lambda root: root["tags"][-4], IndexError),
        (lambda root: root["tags"]["a"], TypeError),
        (lambda root: root.pop("missing"), KeyError),
        (lambda root: root["tags"].pop(7), IndexError),
        (lambda root: root["tags"].remove("z"), ValueError),
        (lambda root: root.append_text("missing", "x"), KeyError),
        (lambda root: root.__delitem__("missing"), KeyError),
        (lambda root: root["tags"].__setitem__(3, "x"), IndexError),
        (lambda root: hash(root), TypeError),
    ],
    ids=itertools.count(),
)
def test_what_dict_or_list_would_refuse_is_refused_the_same_way(change, read, error):
    with pytest.raises(error):
        read(change.root)
    change.check(todos())


def test_a_part_shows_itself_also_when_its_time_is_over(change):
    tags = change.root["tags"]

    shown = repr(tags)
    change.draft.close()

    assert shown == "DraftList(['a', 'b', 'c'])"
    assert repr(tags) == "<DraftList, expired>"


def test_only_objects_and_lists_are_drafted():
    assert Draft([1]).root == [1]
    with pytest.raises(InvalidValue, match="a str cannot be drafted"):
        Draft("text")


# -- writing ------------------------------------------------------------------------------------

WRITES = {
    "set": lambda root: root.__setitem__("title", "new"),
    "set a new member": lambda root: root.__setitem__("x/~", {"y": [1]}),
    "delete": lambda root: root.__delitem__("items"),
    "update": lambda root: root.update({"title": "x"}, tags=[], more=1),
    "update by pairs": lambda root: root.update([("title", "x")]),
    "merge": lambda root: root.__ior__({"title": "x"}),
    "setdefault of something new": lambda root: root.setdefault("log", []).append(1),
    "setdefault of something there": lambda root: root.setdefault("tags", []).append(1),
    "pop": lambda root: root.pop("title"),
    "pop with default": lambda root: root.pop("missing", None),
    "popitem": lambda root: root.popitem(),
    "clear": lambda root: root.clear(),
    "clear a list": lambda root: root["tags"].clear(),
    "nested set": lambda root: root["items"][1].__setitem__("done", False),
    "append": lambda root: root["items"].append({"text": "four"}),
    "extend": lambda root: root["tags"].extend(x for x in "de"),
    "extend by itself": lambda root: root["tags"].extend(root["tags"]),
    "insert first": lambda root: root["tags"].insert(0, "z"),
    "insert before the first": lambda root: root["tags"].insert(-9, "z"),
    "insert beyond the last": lambda root: root["tags"].insert(9, "z"),
    "pop the last": lambda root: root["tags"].pop(),
    "pop the first": lambda root: root["tags"].pop(0),
    "remove": lambda root: root["items"].remove({"text": "two", "done": True}),
    "reverse": lambda root: root["items"].reverse(),
    "sort": lambda root: root["tags"].sort(reverse=True),
    "sort by key": lambda root: root["items"].sort(key=lambda item: item["text"]),
    "delete an item": lambda root: root["tags"].__delitem__(-1),
    "slice, same length": lambda root: root["tags"].__setitem__(slice(0, 2), ["x", "y"]),
    "slice, longer": lambda root: root["tags"].__setitem__(slice(1, 2), ["x", "y", "z"]),
    "slice, shorter": lambda root: root["tags"].__setitem__(slice(1, 3), ["x"]),
    "slice, whole": lambda root: root["tags"].__setitem__(slice(None), ["x"]),
    "slice, backwards": lambda root: root["tags"].__setitem__(slice(2, 1), ["x"]),
    "slice, stepped": lambda root: root["tags"].__setitem__(slice(None, None, 2), ["x", "y"]),
    "slice, stepping back": lambda root: root["tags"].__setitem__(slice(None, None, -1), ["x", "y", "z"]),
    "slice deleted": lambda root: root["tags"].__delitem__(slice(1, None)),
    "slice deleted at the front": lambda root: root["tags"].__delitem__(slice(2)),
    "slice deleted, stepped": lambda root: root["tags"].__delitem__(slice(None, None, 2)),
    "slice deleted, stepping back": lambda root: root["tags"].__delitem__(slice(None, None, -2)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_draft_writes_like_the_value(change, write):
    expected = todos()

    returned, modelled = write(change.root), write(expected)

    change.check(expected)
    assert returned == modelled or write is WRITES["merge"]


def test_in_place_operators_keep_their_part(change):
    expected = todos()
    first = change.root["items"][0]

    change.root["items"] += [{"text": "four"}]
    expected["items"] += [{"text": "four"}]
    change.root["nested"] |= {"more": 1}
    expected["nested"] |= {"more": 1}
    change.root["items"][0] |= {"done": True}
    expected["items"][0] |= {"done": True}
    first["text"] = "still here"
    expected["items"][0]["text"] = "still here"

    change.check(expected)


def test_values_are_copied_when_they_are_assigned(change):
    given = {"list": [1]}

    change.root["x"] = given
    given["list"].append(2)
    change.root["x"]["list"].append(3)

    assert given == {"list": [1, 2]}
    change.check(todos() | {"x": {"list": [1, 3]}})


def test_values_and_keys_are_cleaned(change):
    change.root["k\0"] = ["\ud800", ("a\0",)]
    change.root["tags"].append("\0")

    change.check(todos() | {"k␀": ["\ufffd", ["a␀"]], "tags": ["a", "b", "c", "␀"]})
    assert "k\0" in change.root
    assert change.root["k\0"] == ["\ufffd", ["a␀"]]


@pytest.mark.parametrize(
    "write, place",
    [
        (lambda root: root.__setitem__("title", math.nan), "/title: "),
        (lambda root: root["nested"].__setitem__("a/b", {"c": [1, object()]}), "/nested/a~1b/c/1: "),
        (lambda root: root["items"][1].update({"text": "changed", "done": {1: 2}}), "/items/1/done: "),
        (lambda root: root["tags"].append({1}), "/tags/3: "),
        (lambda root: root["tags"].insert(1, b""), "/tags/1: "),
        (lambda root: root["tags"].extend(["fine", math.inf]), "/tags/4: "),
        (lambda root: root["tags"].__setitem__(slice(1, 3), ["fine", 2**70]), "/tags/2: "),
        (lambda root: root.__setitem__(5, "x"), "the value itself: a key is int"),
        (lambda root: root["nested"].__setitem__(("a",), "x"), "/nested: a key is tuple"),
        (lambda root: root.append_text("items", "x"), "/items: append_text adds a str to a str"),
        (lambda root: root.append_text("title", 5), "/title: append_text adds a str to a str"),
        (lambda root: root.truncate("nested", 5), "/nested: truncate keeps the end of a list or text"),
    ],
    ids=itertools.count(),
)
def test_a_value_that_is_not_json_is_refused_with_its_place_before_anything_changes(change, write, place):
    with pytest.raises(InvalidValue, match=f"^{place}"):
        write(change.root)

    change.check(todos())
    assert change.draft.ops == []


@pytest.mark.parametrize("keep", [-1, True, 1.5, "1"])
def test_a_window_of_no_size_is_refused(change, keep):
    with pytest.raises(UsageError, match="0 or more"):
        change.root["tags"].truncate(keep)
    with pytest.raises(UsageError, match="0 or more"):
        change.root.truncate("title", keep)


def test_the_bound_on_depth_counts_from_the_root():
    value: Any = []
    for _ in range(MAX_DEPTH - 3):
        value = [value]
    change = Change({"a": {}})

    change.root["a"]["x"] = value  # root, a, and MAX_DEPTH - 2 lists
    with pytest.raises(InvalidValue, match="inside one another"):
        change.root["a"]["y"] = [value]
    with pytest.raises(InvalidValue, match="inside one another"):
        change.root["a"]["z"] = change.root["a"]
    with pytest.raises(InvalidValue, match="inside one another"):
        change.root["a"].update(y=[value])
    with pytest.raises(InvalidValue, match="inside one another"):
        change.root["a"].setdefault("list", []).extend([value])
    change.root["a"].pop("list")

    change.check({"a": {"x": value}})


# -- aliases and moves --------------------------------------------------------------------------


def test_assigning_a_part_elsewhere_copies_what_it_holds_now(change):
    expected = todos()

    change.root["copy"] = change.root["items"]
    change.root["copy"][0]["text"] = "changed in the copy"
    change.root["items"][1]["text"] = "changed in the original"

    expected["copy"] = copy.deepcopy(expected["items"])
    expected["copy"][0]["text"] = "changed in the copy"
    expected["items"][1]["text"] = "changed in the original"
    change.check(expected)


def test_parts_inside_plain_values_are_copied(change):
    items = change.root["items"]

    change.root["items"] = [item for item in items if not item["done"]]
    change.root["summary"] = {"first": change.root["items"][0], "tags": (change.root["tags"],)}

    expected = todos()
    del expected["items"][1]
    expected["summary"] = {"first": {"text": "one", "done": False}, "tags": [["a", "b", "c"]]}
    change.check(expected)


def test_a_part_of_another_draft_is_copied(change):
    change.root["other"] = Draft({"a": [1]}).root["a"]

    change.check(todos() | {"other": [1]})


def test_the_root_can_be_put_into_itself_once(change):
    change.root["self"] = change.root
    change.root["self"]["title"] = "inner"

    change.check(todos() | {"self": todos() | {"title": "inner"}})


def test_items_are_swapped(change):
    items = change.root["items"]

    items[0], items[2] = items[2], items[0]

    expected = todos()
    expected["items"][0], expected["items"][2] = expected["items"][2], expected["items"][0]
    change.check(expected)


def test_an_item_is_moved_by_popping_and_inserting(change):
    items = change.root["items"]

    item = items.pop(2)
    item["text"] = "moved"
    items.insert(0, item)

    expected = todos()
    expected["items"].insert(0, expected["items"].pop(2) | {"text": "moved"})
    change.check(expected)


def test_what_was_popped_is_a_plain_copy(change):
    popped = change.root.pop("items")
    popped[0]["text"] = "changed"

    assert type(popped) is list
    change.check({key: value for key, value in todos().items() if key != "items"})


def test_a_draft_can_be_cleaned_and_coerced(change):
    change.root["tags"].append("d")

    assert clean(change.root["tags"]) == coerce(change.root["tags"]) == ["a", "b", "c", "d"]


# -- parts that lost their place ----------------------------------------------------------------

REMOVALS = {
    "deleted": lambda items: items.__delitem__(1),
    "popped": lambda items: items.pop(1),
    "replaced": lambda items: items.__setitem__(1, {"text": "other"}),
    "replaced by an equal value": lambda items: items.__setitem__(1, {"text": "two", "done": True}),
    "cleared": lambda items: items.clear(),
    "truncated": lambda items: items.truncate(1),
    "sliced out": lambda items: items.__delitem__(slice(0, 2)),
    "sliced over": lambda items: items.__setitem__(slice(1, 2), [1, 2]),
    "wholly replaced": lambda items: items.__setitem__(slice(None), [1]),
}


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
def test_a_part_whose_place_is_gone_writes_nothing_any_more(change, remove):
    items, expected = change.root["items"], todos()
    items[1]["sub"] = {"list": []}
    expected["items"][1]["sub"] = {"list": []}
    part, inner = items[1], items[1]["sub"]["list"]

    remove(items)
    if remove is REMOVALS["truncated"]:
        del expected["items"][:2]
    else:
        remove(expected["items"])

    for write in (lambda: part.update(text="late"), lambda: inner.append(1), lambda: part["sub"].clear()):
        with pytest.raises(HandleExpired, match="detached"):
            write()
    change.check(expected)


def test_a_part_whose_parent_is_gone_writes_nothing_any_more(change):
    inner = change.root["nested"]["deep"]["list"][0]

    del change.root["nested"]

    with pytest.raises(HandleExpired, match="detached"):
        inner.append(2)


def test_a_detached_part_still_reads_what_it_last_held(change):
    part = change.root["items"][1]
    part["text"] = "last words"

    del change.root["items"][1]

    assert part == {"text": "last words", "done": True}
    change.root["kept"] = part
    assert change.root["kept"]["text"] == "last words"


def test_a_part_of_a_detached_part_writes_nothing_either(change):
    part = change.root["nested"]

    change.root["nested"] = {"deep": {"list": []}}

    with pytest.raises(HandleExpired, match="detached"):
        part["deep"]["list"].append(1)


@pytest.mark.parametrize(
    "shift",
    [
        lambda items: items.insert(0, {"text": "zero"}),
        lambda items: items.insert(2, {"text": "just before"}),
        lambda items: items.__setitem__(slice(1, 3), ["x", items[2]]),
        lambda items: items.__delitem__(0),
        lambda items: items.pop(0),
        lambda items: items.__delitem__(slice(0, 2)),
        lambda items: items.__setitem__(slice(0, 1), [1, 2, 3]),
        lambda items: items.__setitem__(slice(0, 2), []),
        lambda items: items.reverse(),
        lambda items: items.sort(key=lambda item: item["text"]),
        lambda items: items.append({"text": "four"}),
    ],
    ids=itertools.count(),
)
def test_a_part_follows_its_item(change, shift):
    items, expected = change.root["items"], todos()
    part, model = items[2], expected["items"][2]

    shift(items)
    shift(expected["items"])
    part["text"] = model["text"] = "followed"

    change.check(expected)


def test_a_part_follows_its_item_when_the_window_slides(change):
    part = change.root["items"][2]

    change.root.truncate("items", 2)
    part["text"] = "followed"

    expected = todos()
    expected["items"] = expected["items"][-2:]
    expected["items"][1]["text"] = "followed"
    change.check(expected)


# -- the end ------------------------------------------------------------------------------------


def test_after_closing_every_read_and_write_is_refused(change):
    root, items, item = change.root, change.root["items"], change.root["items"][0]
    detached = change.root["tags"]
    del change.root["tags"]
    running = iter(root)
    next(running)
    change.draft.close()

    uses = [
        lambda: root["title"],
        lambda: root.get("title"),
        lambda: len(root),
        lambda: "title" in root,
        lambda: list(root),
        lambda: next(running),
        lambda: root == {},
        lambda: bool(root),
        lambda: root.__setitem__("title", "late"),
        lambda: root.update(title="late"),
        lambda: root.pop("title"),
        lambda: root.pop("missing", None),
        lambda: root.setdefault("title", "late"),
        lambda: root.clear(),
        lambda: root.append_text("title", "late"),
        lambda: root.truncate("items", 1),
        lambda: list(items),
        lambda: items[0],
        lambda: items[:],
        lambda: items.append("late"),
        lambda: items.extend([]),
        lambda: items.pop(),
        lambda: items.sort(key=str),
        lambda: items.truncate(1),
        lambda: items.__setitem__(slice(None), []),
        lambda: items.__delitem__(slice(None)),
        lambda: item["text"],
        lambda: item.__delitem__("text"),
        lambda: detached[0],
        lambda: detached.append("late"),
        lambda: plain(item),
        lambda: clean([item]),
    ]
    for use in uses:
        with pytest.raises(HandleExpired, match="new commit"):
            use()
    expected = {key: value for key, value in todos().items() if key != "tags"}
    assert same(change.draft.value, expected)
    assert change.draft.ops == [{"op": "remove", "path": "/tags"}]


def test_the_value_that_was_taken_is_not_reached_by_later_changes(change):
    change.root["items"][0]["text"] = "first"
    taken, ops = change.draft.value, change.draft.ops

    change.root["items"][0]["text"] = "second"
    change.root["items"].append("third")

    assert taken["items"][0]["text"] == "first"
    assert len(taken["items"]) == 3
    assert same(apply(todos(), ops), taken)


def test_an_operation_is_not_reached_by_later_changes(change):
    lists = change.root["nested"]["deep"]["list"]
    change.root["new"] = {"list": [1]}
    change.root["new"]["list"].append(2)
    lists[0].append("before")
    lists.reverse()
    lists[1].append("after")

    assert change.draft.ops[0] == {"op": "add", "path": "/new", "value": {"list": [1]}}
    change.check(todos() | {"new": {"list": [1, 2]}, "nested": {"deep": {"list": [[2], [1, "before", "after"]]}}})


def test_operations_that_were_taken_are_not_reached_by_later_ones(change):
    change.root["new"] = "a"
    first = change.draft.ops
    change.root["new"] = "b"
    second = change.draft.ops
    change.root.append_text("new", "c")

    assert [ops[0]["value"] for ops in (first, second, change.draft.ops)] == ["a", "b", "bc"]


def test_a_container_is_copied_once_however_often_it_is_changed(change):
    tags = change.root["tags"]

    tags.append("d")
    once = tags.lend()
    tags.append("e")

    assert tags.lend() is once
    assert once is not change.original["tags"]
