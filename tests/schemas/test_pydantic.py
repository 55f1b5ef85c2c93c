"""Functions as tools: what a model is told, and how what it sends back is taken."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from perdure.errors import InvalidArguments, UsageError
from perdure.schema import Described
from perdure.schemas.pydantic import PydanticSchema

if TYPE_CHECKING:
    from nowhere import OnlyForCheckers  # pyright: ignore[reportMissingImports]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Order(BaseModel):
    """An order."""

    title: str
    at: Point
    tags: list[str] = []


class Tree(BaseModel):
    name: str
    below: list[Tree] = []


def described(function: Callable[..., Any], *, skip: tuple[str, ...] = ()) -> Described:
    return PydanticSchema().describe(function, skip=skip)


def refusal(tool: Described, **arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        tool.validate(arguments)
    return str(caught.value)


def pay(amount: int, to: str, note: str = "none") -> str:
    """Pay someone.

    The money leaves at once.

    Args:
        amount: How much,
            in cents.
        to: Whom.

    Returns:
        A receipt.
    """
    return f"{amount} {to} {note}"


# -- what a model is told -----------------------------------------------------------------------


def test_a_function_gives_its_name_its_description_and_its_parameters() -> None:
    tool = described(pay)

    assert tool.name == "pay"
    assert tool.description == "Pay someone.\n\nThe money leaves at once."
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "amount": {"type": "integer", "description": "How much, in cents."},
            "to": {"type": "string", "description": "Whom."},
            "note": {"type": "string", "default": "none"},
        },
        "required": ["amount", "to"],
        "additionalProperties": False,
    }


def test_numpy_docstrings_are_understood() -> None:
    def measure(length: float, unit: str = "m") -> None:
        """Measure.

        Parameters
        ----------
        length : float
            How long.
        unit
            Of what.
        """

    tool = described(measure)

    assert tool.description == "Measure."
    assert {name: each["description"] for name, each in tool.parameters["properties"].items()} == {
        "length": "How long.",
        "unit": "Of what.",
    }


def test_sphinx_docstrings_are_understood() -> None:
    def measure(length: float) -> None:
        """Measure.

        :param length: How long.
        :returns: nothing
        """

    tool = described(measure)

    assert tool.description == "Measure."
    assert tool.parameters["properties"]["length"]["description"] == "How long."


def test_a_function_without_docstring_and_hints_is_described_all_the_same() -> None:
    def bare(x, y=1):
        return x, y

    tool = described(bare)

    assert tool.description == ""
    assert tool.parameters["properties"] == {"x": {}, "y": {"default": 1}}
    assert tool.parameters["required"] == ["x"]


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def now() -> str:
        return ""

    assert described(now).parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert described(now).validate({}) == {}


def test_skipped_parameters_are_left_out_whatever_their_hint_is() -> None:
    def tool(call: OnlyForCheckers, city: str) -> None:
        pass

    assert list(described(tool, skip=("call",)).parameters["properties"]) == ["city"]


def test_titles_are_left_out_except_where_title_is_a_name() -> None:
    def file(title: str, order: Order) -> None:
        pass

    schema = described(file).parameters

    assert schema["properties"]["title"] == {"type": "string"}
    assert "title" in schema["$defs"]["Order"]["properties"]
    assert "title" not in schema
    assert all("title" not in each for each in schema["$defs"].values())


def test_references_lead_to_definitions() -> None:
    def plant(tree: Tree, orders: dict[str, Order]) -> None:
        pass

    schema = described(plant).parameters

    text = json.dumps(schema)
    assert set(schema["$defs"]) == {"Tree", "Order", "Point"}
    assert all(f'"#/$defs/{name}"' in text for name in schema["$defs"])
    assert schema["$defs"]["Tree"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Tree"}


def test_words_and_bounds_in_annotations_count() -> None:
    def page(size: Annotated[int, Field(ge=1, le=100, description="Lines.")] = 10) -> None:
        pass

    assert described(page).parameters["properties"]["size"] == {
        "type": "integer", "minimum": 1, "maximum": 100, "description": "Lines.", "default": 10,
    }  # fmt: skip


def test_a_default_that_is_no_json_is_not_shown_and_still_applies() -> None:
    marker = object()

    def tool(x: Any = marker) -> Any:
        return x

    assert described(tool).parameters["properties"] == {"x": {}}
    assert described(tool).validate({}) == {}


def test_methods_partials_and_callable_objects_are_functions_too() -> None:
    class Shop:
        def sell(self, item: str) -> None:
            pass

        def __call__(self, item: str) -> None:
            pass

    assert list(described(Shop().sell).parameters["properties"]) == ["item"]
    assert described(functools.partial(pay, note="x")).name == "pay"
    with pytest.raises(UsageError, match="write it with `def`"):
        described(Shop())


@pytest.mark.parametrize("name", ["schema", "json", "model_config", "copy", "_private", "self_", "validate"])
def test_any_parameter_name_will_do(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def tool({name}: int): pass", scope)

    tool = described(scope["tool"])

    assert tool.validate({name: "5"}) == {name: 5}
    assert f"- {name}: missing, expected integer" in refusal(tool)


def refused_at_describe() -> list[tuple[Callable[..., Any], str]]:
    def stars(*paths: str) -> None: ...
    def double(**options: str) -> None: ...
    def slash(a: int, /, b: int) -> None: ...
    def unknown(a: Missing) -> None: ...  # pyright: ignore[reportUndefinedVariable]  # noqa: F821
    def foreign(a: int, db: threading_like) -> None: ...
    def callback(then: Callable[[int], int]) -> None: ...

    return [
        (stars, r"stars\(\) takes \*paths: give each argument a name"),
        (double, r"double\(\) takes \*\*options"),
        (slash, r"slash\(\) takes a by position only.*remove the `/`"),
        (unknown, r"unknown\(\) cannot be resolved.*Missing"),
        (foreign, r"foreign\(\) has in db a type that JSON cannot carry"),
        (callback, r"callback\(\) has a type that JSON cannot carry"),
    ]


class threading_like:
    pass


@pytest.mark.parametrize("function, message", refused_at_describe(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_function_that_json_cannot_call_is_refused_with_the_remedy(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        described(function)


# -- what a model sends -------------------------------------------------------------------------


def test_arguments_come_out_as_the_function_wants_them() -> None:
    def tool(n: int, f: float, b: bool, c: Colour, p: Point, o: Order, l: list[int], d: dict[str, Point]) -> None:  # noqa: E741
        pass

    valid = described(tool).validate(
        {
            "n": "5", "f": "1.5", "b": "true", "c": "blue", "p": {"x": "1"}, "o": {"title": "t", "at": {"x": 2}},
            "l": ["1", 2.0], "d": {"a": {"x": 1, "y": 2}},
        }
    )  # fmt: skip

    assert valid == {
        "n": 5, "f": 1.5, "b": True, "c": Colour.BLUE, "p": Point(1), "o": Order(title="t", at=Point(2)),
        "l": [1, 2], "d": {"a": Point(1, 2)},
    }  # fmt: skip


def test_a_number_where_text_is_asked_for_is_taken_as_text() -> None:
    assert described(pay).validate({"amount": 1, "to": 4711}) == {"amount": 1, "to": "4711"}


def test_what_is_left_out_is_left_to_the_functions_own_default() -> None:
    assert described(pay).validate({"amount": 1, "to": "ann"}) == {"amount": 1, "to": "ann"}


def test_optional_takes_null() -> None:
    def tool(a: Optional[int] = 3, b: int | None = None) -> None:  # noqa: UP045
        pass

    assert described(tool).validate({"a": None}) == {"a": None}


def test_a_refusal_names_each_wrong_missing_and_unknown_argument() -> None:
    message = refusal(described(pay), amount="five", colour="red")

    assert message.splitlines() == [
        "wrong arguments for pay:",
        '- amount: input should be a valid integer, unable to parse string as an integer; given "five"',
        "- to: missing, expected string",
        "- colour: unknown; expected only amount, to, note",
    ]


def test_a_refusal_says_what_is_expected_of_a_missing_argument() -> None:
    def tool(a: list[int], b: Literal["x", "y"], c: Colour, d: int | None, e: Order) -> None:
        pass

    assert refusal(described(tool)).splitlines()[1:] == [
        "- a: missing, expected array of integer",
        '- b: missing, expected one of "x", "y"',
        '- c: missing, expected one of "red", "blue"',
        "- d: missing, expected integer or null",
        "- e: missing, expected object",
    ]


def test_a_refusal_names_the_place_inside_an_argument() -> None:
    def tool(orders: list[Order]) -> None:
        pass

    message = refusal(described(tool), orders=[{"title": "t", "at": {"x": "far"}}, {"title": "t"}])

    assert (
        '- orders.0.at.x: input should be a valid integer, unable to parse string as an integer; given "far"' in message
    )
    assert "- orders.1.at: missing" in message


def test_a_refusal_is_bounded_whatever_was_sent() -> None:
    def tool(numbers: list[int], name: int) -> None:
        pass

    message = refusal(
        described(tool), numbers=["x" * 10_000] * 1000, name={"k" * 1000: [["deep" * 1000]]}, **{"u" * 9999: 1}
    )

    assert len(message) < 4000
    assert "and 992 more" in message


def test_a_refusal_carries_no_character_that_cannot_be_stored() -> None:
    def tool(name: Literal["a"]) -> None:
        pass

    refusal(described(tool), name="\ud835\0").encode()
    assert "\0" not in refusal(described(tool), name="\0")


def test_a_validator_that_breaks_is_a_refusal_to_the_model() -> None:
    class Broken(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def check(cls, value: int) -> int:
            raise RuntimeError("no database")

    def tool(it: Any) -> None:
        pass

    tool.__annotations__["it"] = Broken
    assert "RuntimeError: no database" in refusal(described(tool), it={"x": 1})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def everything(a: int, b: list[Colour], c: Order | None = None, d: dict[str, float] | str = "") -> None:
    pass


EVERYTHING = PydanticSchema().describe(everything)


@given(st.dictionaries(st.sampled_from("abcde"), JSON_VALUES))
def test_any_object_is_taken_or_refused(arguments: dict[str, Any]) -> None:
    try:
        outcome = EVERYTHING.validate(arguments)
    except InvalidArguments as refused:
        outcome = str(refused)

    assert len(outcome) < 5000 if isinstance(outcome, str) else outcome.keys() == arguments.keys()
