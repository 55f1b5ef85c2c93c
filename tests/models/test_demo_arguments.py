"""The demo model fills what any schema requires, validly, whatever the text says."""

from __future__ import annotations

import datetime
import enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import UUID4, BaseModel, Field, create_model

from perdure.providers.demo_arguments import fill


class Part(BaseModel):
    name: str
    size: int = Field(ge=1, le=10)


class Node(BaseModel):
    label: str
    children: list[Node]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


TYPES: list[Any] = [
    int,
    float,
    bool,
    str,
    int | None,
    str | None,
    int | str,
    list[str],
    list[int],
    list[Color],
    set[int],
    tuple[int, str],
    dict[str, int],
    dict[str, str],
    Part,
    Part | None,
    list[Part],
    Node,
    Cat | Dog,
    Color,
    Literal["fast", "slow"],
    Literal[1, 2],
    None,
    Any,
    datetime.date,
    datetime.datetime,
    UUID4,
    Annotated[int, Field(ge=3, le=7)],
    Annotated[int, Field(multiple_of=5)],
    Annotated[float, Field(gt=0, lt=1)],
    Annotated[str, Field(min_length=3, max_length=5)],
    Annotated[list[int], Field(min_length=2, max_length=3)],
]
_NAMES = "path content amount to city count recursive mode when items options url a b query maxItems is_ok text"
NAMES = _NAMES.split()
_WORDS = "write hello to a.txt 5 3.7 -2 Ann berlin fast red cat not recursive and , true ok I'm 1,000 path/to/x"
WORDS = [
    *_WORDS.split(),
    *["`ls -l`", '"quoted text"', "New York", "2026-12-24", "ann@x.com", "https://x.org/y", "count=4", "amount: 12"],
    *["mode slow", "label x", "name Bob", "size 99", "\u2026", ""],
]

fields = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from(TYPES), st.booleans()), max_size=5)
texts = st.lists(st.sampled_from(WORDS), max_size=10).map(" ".join)


@pytest.mark.slow
@given(fields, texts, texts)
def test_arguments_are_valid_for_any_schema_and_any_text(fields: dict[str, Any], text: str, around: str):
    definitions: Any = {name: (type, ... if needed else None) for name, (type, needed) in fields.items()}
    model: type[BaseModel] = create_model("Tool", **definitions)

    arguments = fill(model.model_json_schema(), text, around=around)

    model.model_validate(arguments)
    assert {name for name, (_, needed) in fields.items() if needed} <= arguments.keys()


def schema(**properties: Any) -> dict[str, Any]:
    required = [name for name, each in properties.items() if "default" not in each]
    return {"type": "object", "properties": properties, "required": required}


STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}

FILLED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a default is left out": (schema(count={"type": "integer", "default": 1}), "roll the dice", {}),
    "a default gives way to a number": (schema(count={"type": "integer", "default": 1}), "roll 3 dice", {"count": 3}),
    "a value by its name": (schema(a=INTEGER, b=INTEGER), "b=1, a: 2", {"a": 2, "b": 1}),
    "a value after its name": (schema(limit=INTEGER, offset=INTEGER), "offset 5 limit 7", {"limit": 7, "offset": 5}),
    "a number moves into its limits": (schema(n={"type": "integer", "maximum": 9}), "take 500", {"n": 9}),
    "no integer from a fraction": (schema(n=INTEGER), "take 3.7", {"n": 1}),
    "an enum by its word": (schema(unit={"enum": ["celsius", "kelvin"]}), "in kelvin please", {"unit": "kelvin"}),
    "an enum without a word": (schema(unit={"enum": ["celsius", "kelvin"]}), "the weather", {"unit": "celsius"}),
    "a flag that is named": (schema(recursive={"type": "boolean"}), "list recursively", {"recursive": True}),
    "a flag that is not wanted": (schema(force={"type": "boolean"}), "do not force it", {"force": False}),
    "a flag that nobody speaks of": (schema(force={"type": "boolean"}), "delete it", {"force": False}),
    "a list of quoted texts": (
        schema(tags={"type": "array", "items": STRING}),
        "'a b' and 'c'",
        {"tags": ["a b", "c"]},
    ),
    "a list of numbers": (schema(ns={"type": "array", "items": INTEGER}), "sum 1, 2 and 3", {"ns": [1, 2, 3]}),
    "a list of words": (
        schema(tags={"type": "array", "items": STRING}),
        "red, green and blue",
        {"tags": ["red", "green", "blue"]},
    ),
    "a list of paths": (
        schema(files={"type": "array", "items": STRING}),
        "a.txt b/c.md",
        {"files": ["a.txt", "b/c.md"]},
    ),
    "an object inside": (
        schema(who=schema(name=STRING, age=INTEGER)),
        "name Ann, age 30",
        {"who": {"name": "Ann", "age": 30}},
    ),
    "a reference": (
        {**schema(who={"$ref": "#/$defs/Who"}), "$defs": {"Who": schema(name=STRING)}},
        "greet Ann",
        {"who": {"name": "Ann"}},
    ),
    "pairs for a free object": (
        schema(env={"type": "object", "additionalProperties": STRING}),
        "with HOME=/root and LANG=C",
        {"env": {"HOME": "/root", "LANG": "C"}},
    ),
    "nothing or something": (schema(n={"anyOf": [INTEGER, {"type": "null"}]}), "take none", {"n": 1}),
    "a constant": (schema(v={"const": 2}), "anything", {"v": 2}),
    "a format": (schema(when={"type": "string", "format": "date"}), "on 2026-12-24", {"when": "2026-12-24"}),
    "a pattern": (schema(code={"type": "string", "pattern": "^[A-Z]{3}$"}), "fly to BER now", {"code": "BER"}),
    "a camel-cased name": (schema(maxItems=INTEGER, top=INTEGER), "top 3, max items 9", {"maxItems": 9, "top": 3}),
    "an invented path": (schema(path=STRING), "write something", {"path": "demo.txt"}),
    "no schema at all": ({}, "anything", {}),
}


@pytest.mark.parametrize("parameters, text, arguments", FILLED.values(), ids=FILLED.keys())
def test_arguments_come_from_the_words(parameters: dict[str, Any], text: str, arguments: dict[str, Any]):
    assert fill(parameters, text) == arguments


def test_a_required_value_that_the_step_lacks_comes_from_around_it():
    parameters = schema(amount=INTEGER, to=STRING, note={"type": "integer", "default": 0})

    assert fill(parameters, "Bob", around="pay 5 to Ann and Bob, note 7") == {"amount": 5, "to": "Bob"}
