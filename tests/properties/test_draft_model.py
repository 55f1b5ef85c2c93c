"""Drafts against ordinary dicts and lists: any changes, in any order, through any part."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from perdure.deltas import Draft, apply, plain
from perdure.errors import HandleExpired
from perdure.values import encode


def same(left: Any, right: Any) -> bool:
    """Equal in value, type and the order of keys."""
    return encode(left) == encode(right)


TEXT = st.text(st.sampled_from("ab"), max_size=3)
KEYS = st.sampled_from(["a", "b", "c", "/"])
SCALARS = st.none() | st.booleans() | st.integers(0, 2) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
ROOTS = (
    st.dictionaries(KEYS, VALUES, max_size=3)
    | st.lists(VALUES, max_size=4)
    | st.sampled_from([[[[]], [[]], [[]]], {"a": [{}, [], {}, []], "b": {"a": {"a": []}}}, [["a"], {"b": ["b"]}]])
)
BOUNDS = st.none() | st.integers(-5, 5)
SLICES = st.builds(slice, BOUNDS, BOUNDS, st.sampled_from([None, 1, 2, -1, -2]))
CONTAINERS = (dict, list)
LARGE = 1000


class Drafts(RuleBasedStateMachine):
    """A draft and a model of ordinary dicts and lists, changed alike.

    A handle is a part and the model's container for it. It is attached as long as the container is reached from the
    model's root by identity.
    """

    handles = Bundle("handles")

    @initialize(target=handles, original=ROOTS)
    def begin(self, original):
        self.original = original
        self.before = copy.deepcopy(original)
        self.model = copy.deepcopy(original)
        self.draft = Draft(original)
        return self.draft.root, self.model

    def attached(self, container, inside=None):
        inside = self.model if inside is None else inside
        members = inside.values() if isinstance(inside, dict) else inside
        return inside is container or any(
            self.attached(container, member) for member in members if isinstance(member, CONTAINERS)
        )

    def write(self, handle, act, *given):
        """Does the same to a part and to its model; `given` are handles or values to write with."""
        part, container = handle
        if len(encode([each[1] if isinstance(each, tuple) else each for each in given])) > LARGE:
            return  # a root that is put into itself again and again doubles each time
        to_part = [each[0] if isinstance(each, tuple) else each for each in given]
        # What is written is a copy, except an item into its own place.
        to_model = [copy.deepcopy(each[1] if isinstance(each, tuple) else each) for each in given]
        if not self.attached(container):
            before = copy.deepcopy(container)
            with pytest.raises(HandleExpired):
                act(part, *to_part)
            assert part == before
            return
        expected = failure = None
        try:
            expected = act(container, *to_model)
        except (KeyError, IndexError, ValueError) as error:
            failure = type(error)
        if failure is not None:
            with pytest.raises(failure):
                act(part, *to_part)
            return
        assert act(part, *to_part) == expected or expected is container

    # -- handles

    @rule(target=handles, handle=handles)
    def read(self, handle):
        part, container = handle
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        inner = [key for key in keys if isinstance(container[key], CONTAINERS)]
        return multiple(*((part[key], container[key]) for key in inner))

    @rule(handle=consumes(handles))
    def forget(self, handle):
        pass

    # -- objects and lists

    @rule(handle=handles, key=KEYS, value=VALUES)
    def set_member(self, handle, key, value):
        if isinstance(handle[1], dict):
            self.write(handle, lambda target, value: target.__setitem__(key, value), value)

    @rule(handle=handles, other=handles, key=KEYS)
    def set_member_to_alias(self, handle, other, key):
        if isinstance(handle[1], dict) and handle[1].get(key) is not other[1]:
            self.write(handle, lambda target, value: target.__setitem__(key, value), other)

    @rule(handle=handles, key=KEYS)
    def set_member_to_itself(self, handle, key):
        part, container = handle
        if isinstance(container, dict) and isinstance(container.get(key), CONTAINERS) and self.attached(container):
            part[key] = part[key]

    @rule(handle=handles, key=KEYS)
    def delete_or_pop_member(self, handle, key):
        if isinstance(handle[1], dict):
            self.write(handle, lambda target: target.pop(key))

    @rule(handle=handles, members=st.dictionaries(KEYS, VALUES, max_size=2), other=handles)
    def update(self, handle, members, other):
        if isinstance(handle[1], dict):
            self.write(handle, lambda target, alias: target.update(members, c=alias), other)

    @rule(handle=handles, key=KEYS, value=VALUES)
    def set_default(self, handle, key, value):
        if isinstance(handle[1], dict):
            self.write(handle, lambda target, value: target.setdefault(key, value), value)

    @rule(handle=handles)
    def pop_item_or_last(self, handle):
        if isinstance(handle[1], dict):
            self.write(handle, lambda target: target.popitem())
        else:
            self.write(handle, lambda target: target.pop())

    @rule(handle=handles)
    def clear(self, handle):
        self.write(handle, lambda target: target.clear())

    @rule(handle=handles, text=TEXT, data=st.data())
    def append_text(self, handle, text, data):
        part, container = handle
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        texts = [key for key in keys if isinstance(container[key], str)]
        if texts and self.attached(container):
            key = data.draw(st.sampled_from(texts))
            part.append_text(key, text)
            container[key] += text

    @rule(handle=handles, keep=st.integers(0, 3), data=st.data())
    def truncate(self, handle, keep, data):
        part, container = handle
        if not self.attached(container):
            return
        if isinstance(container, list):
            part.truncate(keep)
            del container[: max(0, len(container) - keep)]
            return
        windows = [key for key, member in container.items() if isinstance(member, str | list)]
        if windows:
            key = data.draw(st.sampled_from(windows))
            part.truncate(key, keep)
            if isinstance(container[key], str):
                container[key] = container[key][max(0, len(container[key]) - keep) :]
            else:
                del container[key][: max(0, len(container[key]) - keep)]

    # -- lists

    @rule(handle=handles, value=VALUES)
    def append(self, handle, value):
        if isinstance(handle[1], list):
            self.write(handle, lambda target, value: target.append(value), value)

    @rule(handle=handles, at=st.integers(-5, 5), other=handles)
    def insert_alias(self, handle, at, other):
        if isinstance(handle[1], list):
            self.write(handle, lambda target, value: target.insert(at, value), other)

    @rule(handle=handles, at=st.integers(-4, 4), value=VALUES)
    def set_item(self, handle, at, value):
        if isinstance(handle[1], list):
            self.write(handle, lambda target, value: target.__setitem__(at, value), value)

    @rule(handle=handles, at=st.integers(-4, 4))
    def delete_item(self, handle, at):
        if isinstance(handle[1], list):
            self.write(handle, lambda target: target.__delitem__(at))

    @rule(handle=handles, start=st.integers(-4, 4), to=st.integers(-4, 4))
    def move_item(self, handle, start, to):
        if isinstance(handle[1], list):
            self.write(handle, lambda target: target.insert(to, copy.deepcopy(target.pop(start))))

    @rule(handle=handles, values=st.lists(VALUES, max_size=3))
    def extend(self, handle, values):
        if isinstance(handle[1], list):
            self.write(handle, lambda target, values: target.extend(values), values)

    @rule(handle=handles, where=SLICES, values=st.lists(VALUES, max_size=3))
    def set_slice(self, handle, where, values):
        if isinstance(handle[1], list):
            self.write(handle, lambda target, values: target.__setitem__(where, values), values)

    @rule(handle=handles, where=SLICES)
    def delete_slice(self, handle, where):
        if isinstance(handle[1], list):
            self.write(handle, lambda target: target.__delitem__(where))

    @rule(handle=handles)
    def reverse(self, handle):
        if isinstance(handle[1], list):
            self.write(handle, lambda target: target.reverse())

    @rule(handle=handles, backwards=st.booleans())
    def sort(self, handle, backwards):
        if isinstance(handle[1], list):
            self.write(handle, lambda target: target.sort(key=len_of, reverse=backwards))

    @rule(handle=handles)
    def keep_the_containers(self, handle):
        """The usual way to filter: a list of parts is assigned to the list's own content."""
        part, container = handle
        if isinstance(container, list) and self.attached(container):
            part[:] = [item for item in part if type(item) not in {str, int, bool, type(None)}]
            container[:] = [copy.deepcopy(item) for item in container if isinstance(item, CONTAINERS)]

    # -- laws

    @rule()
    def take(self):
        """The value and the operations are taken, and nothing that happens later reaches them."""
        value, ops = self.draft.value, self.draft.ops
        self.taken = [*getattr(self, "taken", []), (value, ops, copy.deepcopy(self.model))][-3:]

    @invariant()
    def the_draft_reads_like_the_model(self):
        if hasattr(self, "draft"):
            assert same(plain(self.draft.root), self.model)

    @invariant()
    def the_operations_lead_from_the_original_to_the_model(self):
        if hasattr(self, "draft"):
            assert same(apply(self.original, self.draft.ops), self.model)
            assert same(self.original, self.before)

    @invariant()
    def what_was_taken_stays(self):
        for value, ops, model in getattr(self, "taken", []):
            assert same(value, model)
            assert same(apply(self.original, ops), model)

    def teardown(self):
        if hasattr(self, "draft"):
            assert same(self.draft.value, self.model)


def len_of(item):
    """An order for any JSON, the same for a part and for what it stands for."""
    return len(item) if hasattr(item, "__len__") else 0


TestDrafts = pytest.mark.slow(Drafts.TestCase)
Drafts.TestCase.settings = settings(max_examples=60, stateful_step_count=40, phases=set(Phase) - {Phase.explain})
