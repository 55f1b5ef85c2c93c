"""What enters: strict copies, coerced tool results, cleaned text, parsed arguments."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidValue
from perdure.values import MAX_DEPTH, JsonProxy, canonical, clean, clean_text, coerce, digest, encode, parse_object

#: Any text, surrogates and NUL included.
WILD_TEXT = st.text(st.characters(codec=None) | st.sampled_from("\0\ud800\udfff\U0001f600\\u"), max_size=8)
CLEAN_TEXT = WILD_TEXT.map(clean_text)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)


def trees(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        SCALARS | text,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=12,
    )


#: Anything that a tool may return, sensible or not.
ANYTHING = st.recursive(
    SCALARS
    | WILD_TEXT
    | st.floats()
    | st.integers()
    | st.binary(max_size=8)
    | st.decimals()
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
    | st.complex_numbers()
    | st.builds(object)
    | st.builds(iter, st.just([1]))
    | st.just(len)
    | st.just(int),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(WILD_TEXT | st.integers() | st.none() | st.booleans(), inner, max_size=3)
        | st.sets(st.text(max_size=2) | st.integers(), max_size=3)
        | st.lists(inner, max_size=3).map(deque)
    ),
    max_leaves=8,
)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types: 1, 1.0 and True are three values."""
    return canonical(left) == canonical(right)


# -- text ---------------------------------------------------------------------------------------


@given(WILD_TEXT)
def test_clean_text_always_encodes_and_holds_no_nul(text):
    cleaned = clean_text(text)

    cleaned.encode()
    assert "\0" not in cleaned


@given(WILD_TEXT)
def test_cleaning_text_twice_changes_nothing_more(text):
    assert clean_text(clean_text(text)) == clean_text(text)


@pytest.mark.slow
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_text_without_nul_and_surrogates_is_left_alone(text):
    assert clean_text(text) is text


@pytest.mark.parametrize(
    "text, cleaned",
    [
        ("h\0i\0", "h␀i␀"),
        ("é\0", "é␀"),
        ("bad \ud835 end", "bad \ufffd end"),
        ("\udc97\udcff", "\ufffd\ufffd"),
        ("x\ude00\ud83d", "x\ufffd\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\u0000 and \ud800", r"\u0000 and \ud800"),
    ],
)
def test_each_bad_character_is_replaced_and_spelled_out_escapes_stay(text, cleaned):
    assert clean_text(text) == cleaned


# -- the strict door ----------------------------------------------------------------------------


@pytest.mark.slow
@given(trees(CLEAN_TEXT))
def test_clean_json_comes_back_equal_through_its_encoding(value):
    assert same(msgspec.json.decode(encode(clean(value))), value)


@pytest.mark.slow
@given(trees(WILD_TEXT))
def test_whatever_json_with_bad_text_is_given_its_clean_copy_encodes_and_is_stable(value):
    try:
        cleaned = clean(value)
    except InvalidValue:  # two keys become one
        return

    assert same(clean(cleaned), cleaned)
    assert digest(msgspec.json.decode(encode(cleaned))) == digest(cleaned)


def test_a_clean_copy_shares_no_container_with_what_was_given():
    given_value = {"items": [{"name": "a"}]}

    copy: Any = clean(given_value)
    given_value["items"][0]["name"] = "changed"

    assert copy == {"items": [{"name": "a"}]}


def test_tuples_become_lists():
    assert clean({"pair": (1, ("a",))}) == {"pair": [1, ["a"]]}


def test_keys_are_cleaned_like_text():
    assert clean({"a\0": {"\ud800": 1}}) == {"a␀": {"\ufffd": 1}}


@pytest.mark.parametrize("value", [{"a\0": 1, "a␀": 2}, {"a␀": 1, "a\0": 2}])
def test_two_keys_that_become_one_are_refused(value):
    with pytest.raises(InvalidValue, match="/x/a␀: two keys are the same"):
        clean({"x": value})


class Color(enum.Enum):
    RED = "red"


class Shade(enum.StrEnum):
    DARK = "dark"


class Level(enum.IntEnum):
    HIGH = 3


class MyFloat(float):
    pass


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value, remedy",
    [
        (math.nan, "use None or text"),
        (math.inf, "use None or text"),
        (-math.inf, "use None or text"),
        (2**64, "use text"),
        (-(2**63) - 1, "use text"),
        (Color.RED, "use its .value"),
        (Shade.DARK, "use its .value"),
        (Level.HIGH, "use its .value"),
        (MyFloat(1.5), r"use float\(...\)"),
        (defaultdict(int), r"use dict\(...\)"),
        (Counter("aa"), r"use dict\(...\)"),
        (OrderedDict(), r"use dict\(...\)"),
        (Point(1, 2), r"use list\(...\)"),
        ({1, 2}, r"use list\(...\)"),
        (decimal.Decimal("1.5"), r"use str\(...\)"),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), r"use its .isoformat\(\)"),
        (datetime.time(1, 2), r"use its .isoformat\(\)"),
        (b"bytes", "use decoded text, or base64"),
        (object(), "give None, bool, int"),
        ((i for i in range(3)), "give None, bool, int"),
        ({1: "a"}, r"use str\(...\)"),
        ({Shade.DARK: "a"}, r"use str\(...\)"),
    ],
)
def test_what_would_not_come_back_equal_is_refused_with_its_place_and_a_remedy(value, remedy):
    with pytest.raises(InvalidValue, match=rf"^/items/1/a~1b: .*{remedy}"):
        clean({"items": [0, {"a/b": value}]})


def test_the_path_of_the_caller_stands_before_the_place():
    with pytest.raises(InvalidValue, match=r"^/doc/todos/0: "):
        clean([math.nan], path="/doc/todos")


def test_as_deep_as_allowed_is_taken_and_one_deeper_is_refused():
    assert clean(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(InvalidValue, match="inside one another"):
        clean(nested(MAX_DEPTH + 1))
    with pytest.raises(InvalidValue, match="inside one another"):
        clean(nested(1), depth=MAX_DEPTH)


def test_a_cycle_is_refused():
    cycle: dict[str, Any] = {}
    cycle["self"] = [cycle]

    with pytest.raises(InvalidValue, match="or a cycle"):
        clean(cycle)


def test_the_message_of_a_refusal_is_short_and_encodes_even_with_bad_keys():
    with pytest.raises(InvalidValue) as caught:
        clean({"\ud800\0" * 1000: math.nan})

    str(caught.value).encode()
    assert len(str(caught.value)) < 300


class Standing(JsonProxy):
    def lend(self) -> Any:
        return {"a": [1]}


@pytest.mark.parametrize("door", [clean, coerce])
def test_a_proxy_is_copied_as_what_it_stands_for(door):
    assert door([Standing()]) == [{"a": [1]}]


# -- canonical bytes ----------------------------------------------------------------------------


@pytest.mark.slow
@given(st.dictionaries(CLEAN_TEXT, trees(CLEAN_TEXT), max_size=5), st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_order_of_keys(value, random):
    keys = list(value)
    random.shuffle(keys)

    assert digest({key: value[key] for key in keys}) == digest(value)


def test_the_digest_tells_numbers_of_different_types_apart():
    assert len({digest(1), digest(1.0), digest(True), digest("1"), digest(None)}) == 5


def test_the_digest_is_that_of_every_release():
    value = {"b": [1, 2.5, None, True], "a": "é␀"}

    assert canonical(value) == '{"a":"é␀","b":[1,2.5,null,true]}'.encode()
    assert digest(value) == "e915b5c58e3b74dc74693873c213895e62a7154e7b22f0a53ecb6d521a63714f"


# -- what tools return --------------------------------------------------------------------------


@pytest.mark.slow
@given(trees(CLEAN_TEXT))
def test_coercing_json_is_cleaning_it(value):
    assert same(coerce(value), clean(value))


@pytest.mark.slow
@given(ANYTHING)
def test_coerce_gives_clean_json_or_refuses_and_never_fails_otherwise(value):
    try:
        result = coerce(value)
    except InvalidValue as refusal:
        str(refusal).encode()
        return

    assert same(clean(result), result)
    encode(result)


@dataclasses.dataclass
class Invoice:
    total: decimal.Decimal
    lines: list[Any]
    kind: ClassVar[str] = "not a field"


class Stored(msgspec.Struct, tag="stored", rename="camel"):
    first_name: str
    left_out: str | msgspec.UnsetType = msgspec.UNSET


class Model(pydantic.BaseModel):
    when: datetime.date
    price: float = 1.5


class Stone(enum.Enum):
    BIRTHDAY = datetime.date(2026, 1, 2)


@pytest.mark.parametrize(
    "value, result",
    [
        (decimal.Decimal("1.50"), "1.50"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "2026-01-02T03:04:05+00:00"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.time(3, 4), "03:04:00"),
        (datetime.timedelta(days=1, seconds=3.5), "P1DT3.5S"),
        (Color.RED, "red"),
        (Shade.DARK, "dark"),
        (Level.HIGH, 3),
        (Stone.BIRTHDAY, "2026-01-02"),
        (MyFloat(1.5), 1.5),
        (b"text", "text"),
        (bytearray(b"a\0b"), "a␀b"),
        (memoryview(b"\xff\xfe"), {"base64": "//4="}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({Color.RED}), ["red"]),
        (Invoice(decimal.Decimal("9"), [(1, 2)]), {"total": "9", "lines": [[1, 2]]}),
        (Stored("Ann"), {"type": "stored", "firstName": "Ann"}),
        (Model(when=datetime.date(2026, 1, 2)), {"when": "2026-01-02", "price": 1.5}),
        (pathlib.PurePosixPath("/tmp/x"), "/tmp/x"),
        (UserDict(a=1), {"a": 1}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        ({"a": 1}.keys(), ["a"]),
        (Point(1, 2), [1, 2]),
        (2**64, "18446744073709551616"),
        ({1: "a", None: "b", False: "c"}, {"1": "a", "null": "b", "false": "c"}),
        ({Color.RED: 1, 2.5: 2}, {"red": 1, "2.5": 2}),
    ],
)
def test_each_type_has_its_rule(value, result):
    assert same(coerce(value), result)


class Hostile:
    """Fails whatever is asked of it."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __iter__(self):
        raise RuntimeError("no iter")

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


class Classless:
    @property
    def __class__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("no class")


class Unhashed(type):
    def __hash__(cls):
        raise RuntimeError("no hash")


class TypeUnhashed(metaclass=Unhashed):
    pass


class EndlessModel:
    def model_dump(self, mode):
        return self


class FailingModel:
    def model_dump(self, mode):
        raise ValueError("\ud800 inside")


class FailingMapping(UserDict):
    def __iter__(self):
        raise OSError("gone")


WITHOUT_RULE = {
    "NaN": math.nan,
    "NaN as Decimal": decimal.Decimal("NaN"),
    "infinite Decimal": decimal.Decimal("-Infinity"),
    "generator": (i for i in range(3)),
    "object": object(),
    "failing repr": Hostile(),
    "model that dumps itself": EndlessModel(),
    "model that fails to dump": FailingModel(),
    "mapping that fails to iterate": FailingMapping(),
    "class": Invoice,
    "dataclass with a missing field": Invoice.__new__(Invoice),
    "set without order": {1, "a"},
    "keys that become one": {1: "a", "1": "b"},
    "tuple as key": {(1, 2): "a"},
    "function": len,
    "too many digits": 10**5000,
    "endless range": range(10**12),
    "200 deep": nested(200),
    "complex": 1j,
}


@pytest.mark.parametrize("value", WITHOUT_RULE.values(), ids=WITHOUT_RULE)
def test_a_tool_result_without_a_rule_is_refused_with_its_place(value):
    with pytest.raises(InvalidValue, match=r"^/rows/1"):
        coerce({"rows": [0, value]})


@pytest.mark.parametrize("hostile", [Classless, TypeUnhashed])
def test_even_a_value_whose_class_fails_is_refused(hostile):
    with pytest.raises(InvalidValue):
        coerce({"rows": [hostile()]})
    with pytest.raises(InvalidValue):
        clean({"rows": [hostile()]})


@given(st.uuids())
def test_a_uuid_becomes_its_text(value):
    assert coerce(value) == str(value)


def test_a_cycle_in_a_tool_result_is_refused():
    cycle: list[Any] = []
    cycle.append(cycle)

    with pytest.raises(InvalidValue, match="or a cycle"):
        coerce(cycle)


# -- arguments from a model ---------------------------------------------------------------------


@pytest.mark.slow
@given(st.dictionaries(CLEAN_TEXT, trees(CLEAN_TEXT), max_size=4), st.booleans())
def test_an_encoded_object_parses_to_itself(value, ascii_only):
    assert same(parse_object(json.dumps(value, ensure_ascii=ascii_only)), value)


@given(st.text(st.sampled_from('{}[]",:0123eE+-.truefalsn \n\\\0\ud800'), max_size=30))
def test_any_text_parses_to_clean_json_or_is_refused(text):
    try:
        value = parse_object(text)
    except InvalidValue as refusal:
        str(refusal).encode()
        return

    assert same(clean(value), value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"line 1, column 1"),
        ('{"a": 1', r"line 1, column 8"),
        ('{"a": 1,}', r"not valid JSON: .*line 1, column 9"),
        ('{"a":\n [1,]}', r"not valid JSON: .*line 2, column 5"),
        ('{"a": 1} x', r"line 1, column 10"),
        ('{"NaN": "NaN",\n "b": NaN}', r"NaN is no JSON number \(line 2, column 7\)"),
        ('{"a": -Infinity}', r"-Infinity is no JSON number \(line 1, column 7\)"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
        ("{'a': 1}", "line 1, column 2"),
        ('{"a": "\n"}', "Invalid control character"),
        ('{"a": 1e999}', "^/a: inf is no JSON number"),
        ('{"a": 18446744073709551616}', "^/a: .*64 bits"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "inside one another"),
        ("[" * 100_000, "inside one another"),
        ("[1]", "expected a JSON object such as {}, got an array"),
        ("null", "got null"),
        ('"text"', "got a string"),
    ],
)
def test_what_is_not_one_json_object_is_refused_with_the_place(text, message):
    with pytest.raises(InvalidValue, match=message) as caught:
        parse_object(text)
    assert len(str(caught.value)) < 300


def test_arguments_are_cleaned():
    assert parse_object(r'{"a\u0000": "\ud835", "b": "\\u0000"}') == {"a␀": "\ufffd", "b": r"\u0000"}
