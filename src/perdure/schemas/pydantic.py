"""Tool schemas from plain functions: signature and type hints give the types, the docstring gives the words.

Loaded by name: pydantic and griffe cost more than everything else that perdure imports.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast, get_type_hints

import griffe
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from perdure.errors import InvalidArguments, UsageError
from perdure.schema import Described
from perdure.values import clean_text

#: How many wrong arguments one message names, and how much of a given value it shows.
MOST_PROBLEMS = 10
MOST_GIVEN = 80
MOST_MESSAGE = 300

Json = dict[str, Any]


class PydanticSchema:
    """Describes functions with pydantic, and validates what models send as laxly as it can without guessing.

    Arguments that the model leaves out are left out: the function's own defaults apply.
    """

    def describe(self, function: Callable[..., Any], *, skip: tuple[str, ...] = ()) -> Described:
        """Raises `UsageError` for a function that JSON cannot call; the message names the parameter and the remedy."""
        name = _name(function)
        parameters = _parameters(function, name, skip)
        words = _words(inspect.getdoc(function) or "")
        model, aliases = _model(name, parameters, words.parameters)
        schema = _schema(model, name)
        return Described(
            name=name,
            description=words.description,
            parameters=schema,
            validate=functools.partial(_validate, model, aliases, name, schema),
        )


# -- the function -------------------------------------------------------------------------------


def _unwrapped(function: Callable[..., Any]) -> Any:
    """Where the annotations stand: below decorators, partials, and the call method of an object."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(cast("functools.partial[Any]", inner).func)
    if not inspect.isroutine(inner) and not inspect.isclass(inner):
        inner = inspect.unwrap(type(inner).__call__)
    return inner


def _name(function: Callable[..., Any]) -> str:
    for candidate in (function, _unwrapped(function)):
        name = getattr(candidate, "__name__", None)
        if isinstance(name, str) and name.isidentifier() and name != "__call__":
            return name
    raise UsageError(f"{function!r} has no name that a model could call: write it with `def`")


class _Parameter(NamedTuple):
    name: str
    annotation: Any
    required: bool
    default: Any


def _parameters(function: Callable[..., Any], name: str, skip: tuple[str, ...]) -> list[_Parameter]:
    given = [each for each in inspect.signature(function).parameters.values() if each.name not in skip]
    for each in given:
        if each.kind is each.VAR_POSITIONAL or each.kind is each.VAR_KEYWORD:
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            raise UsageError(f"{name}() takes {stars}{each.name}: give each argument a name, or take one list or dict")
        if each.kind is each.POSITIONAL_ONLY:
            raise UsageError(f"{name}() takes {each.name} by position only: models call by name, remove the `/`")
    hints = _hints(function, name, {each.name for each in given})
    return [
        _Parameter(each.name, hints.get(each.name, Any), each.default is each.empty, each.default) for each in given
    ]


def _hints(function: Callable[..., Any], name: str, wanted: set[str]) -> dict[str, Any]:
    """Hints of the wanted parameters only: others may name what is imported for type checkers alone."""
    inner = _unwrapped(function)
    owner = inner.__init__ if inspect.isclass(inner) else inner
    annotations = cast("dict[str, Any]", getattr(owner, "__annotations__", {}))
    bare = SimpleNamespace(__annotations__={key: value for key, value in annotations.items() if key in wanted})
    try:
        return get_type_hints(bare, globalns=getattr(owner, "__globals__", {}), include_extras=True)
    except NameError as error:
        raise UsageError(
            f"a type hint of {name}() cannot be resolved ({error}): define that type in the module, not in a function"
        ) from error


# -- the docstring ------------------------------------------------------------------------------


class _Words(NamedTuple):
    description: str
    parameters: dict[str, str]


_QUIET: dict[Any, Any] = {
    style: {"warnings": False} for style in (griffe.Parser.google, griffe.Parser.numpy, griffe.Parser.sphinx)
}


def _words(docstring: str) -> _Words:
    """Description and parameters of a docstring in the style of Google, numpy or Sphinx, whichever it is in."""
    text: list[str] = []
    parameters: dict[str, str] = {}
    parsed = griffe.Docstring(docstring)
    for section in griffe.parse_auto(parsed, default=griffe.Parser.google, per_style_options=cast("Any", _QUIET)):
        match section:
            case griffe.DocstringSectionText():
                text.append(section.value.strip())
            case griffe.DocstringSectionAdmonition():
                text.append(f"{section.title}: {section.value.contents.strip()}")
            case griffe.DocstringSectionParameters() | griffe.DocstringSectionOtherParameters():
                parameters |= {each.name.lstrip("*"): " ".join(each.description.split()) for each in section.value}
            case _:
                pass
    return _Words(clean_text("\n\n".join(part for part in text if part)), parameters)


# -- the model and its schema -------------------------------------------------------------------


def _model(name: str, parameters: list[_Parameter], words: dict[str, str]) -> tuple[type[BaseModel], dict[str, str]]:
    """The model, and which parameter each of its fields is: names like `schema` or `_x` cannot be fields themselves."""
    fields: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for index, each in enumerate(parameters):
        field = f"argument_{index}"
        aliases[field] = each.name
        more: Json = {"alias": each.name}
        if words.get(each.name):
            more["description"] = clean_text(words[each.name])
        fields[field] = (each.annotation, Field(**more) if each.required else Field(each.default, **more))
    config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    try:
        return create_model(name, __config__=config, **fields), aliases
    except (PydanticUserError, TypeError) as error:
        raise UsageError(
            f"{name}() has {_culprit(parameters)}a type that JSON cannot carry: {_first(error)}"
        ) from error


def _culprit(parameters: list[_Parameter]) -> str:
    for each in parameters:
        try:
            create_model("Probe", probe=(each.annotation, ...))
        except (PydanticUserError, TypeError):
            return f"in {each.name} "
    return ""


class _Untitled(GenerateJsonSchema):
    """Without titles, which repeat the names, and without a word about defaults that are no JSON."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's own declaration)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schema(model: type[BaseModel], name: str) -> Json:
    try:
        schema = model.model_json_schema(schema_generator=_Untitled)
    except PydanticUserError as error:
        raise UsageError(f"{name}() has a type that JSON cannot carry: {_first(error)}") from error
    schema.pop("description", None)
    return _without_titles(schema)


_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})
_ONE_SCHEMA = frozenset({"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"})
_SOME_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})


def _without_titles(schema: Any) -> Any:
    """The schema without `title` keywords. A property that is named so, and what stands in defaults, stays."""
    if not isinstance(schema, dict):
        return schema
    result: Json = {}
    for key, value in cast("Json", schema).items():
        if key in _OF_SCHEMAS:
            result[key] = {name: _without_titles(each) for name, each in value.items()}
        elif key in _ONE_SCHEMA:
            result[key] = _without_titles(value)
        elif key in _SOME_SCHEMAS:
            result[key] = [_without_titles(each) for each in value]
        elif key != "title":
            result[key] = value
    return result


def _first(error: Exception) -> str:
    return str(error).splitlines()[0]


# -- what a model sends -------------------------------------------------------------------------


def _validate(model: type[BaseModel], aliases: dict[str, str], name: str, schema: Json, arguments: Json) -> Json:
    try:
        valid = model.model_validate(arguments)
    except ValidationError as error:
        problems = _problems(error, schema)
    except Exception as error:  # a validator of the tool's own types broke: to the model it is a wrong argument
        problems = [f"{type(error).__name__}: {_clipped(str(error), MOST_MESSAGE)}"]
    else:
        return {alias: getattr(valid, field) for field, alias in aliases.items() if field in valid.model_fields_set}
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS:] = [f"and {len(problems) - MOST_PROBLEMS} more"]
    raise InvalidArguments(clean_text(f"wrong arguments for {name}:\n" + "\n".join(f"- {each}" for each in problems)))


def _problems(error: ValidationError, schema: Json) -> list[str]:
    return list(dict.fromkeys(_problem(cast("Json", each), schema) for each in error.errors(include_url=False)))


def _problem(detail: Json, schema: Json) -> str:
    loc = cast("tuple[int | str, ...]", detail["loc"])
    place = _clipped(".".join(str(part) for part in loc), MOST_GIVEN)
    properties: Json = schema.get("properties", {})
    match detail["type"]:
        case "missing" if len(loc) == 1:
            return f"{place}: missing, expected {_expected(properties.get(place, {}), schema)}"
        case "missing":
            return f"{place}: missing"
        case "extra_forbidden":
            known = f"expected only {', '.join(properties)}" if properties else "it takes no arguments"
            return f"{place}: unknown; {known}" if len(loc) == 1 else f"{place}: unknown"
        case _:
            said = _clipped(detail["msg"], MOST_MESSAGE)
            return f"{place}: {said[:1].lower()}{said[1:]}; given {_given(detail['input'])}"


def _expected(schema: Json, root: Json) -> str:
    """A type in a few words: "integer", "array of string", "one of "a", "b""."""
    if "$ref" in schema:
        return _expected(root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), root | {"$defs": {}})
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(each, ensure_ascii=False) for each in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_expected(each, root) for each in schema[key]))
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return f"array of {_expected(schema['items'], root)}"
    return str(schema.get("type", "any value"))


def _given(value: Any) -> str:
    """A value as JSON, clipped without writing all of it first."""
    text = ""
    for piece in _pieces(value, depth=3):
        text += piece
        if len(text) > MOST_GIVEN:
            return text[:MOST_GIVEN] + "…"
    return text


def _pieces(value: Any, depth: int) -> Iterator[str]:
    match value:
        case str():
            yield json.dumps(value[: MOST_GIVEN + 1], ensure_ascii=False)
        case dict() | list() if depth == 0:
            yield "…"
        case dict():
            yield "{"
            for index, (key, each) in enumerate(cast("Json", value).items()):
                yield f"{', ' if index else ''}{json.dumps(str(key)[:MOST_GIVEN], ensure_ascii=False)}: "
                yield from _pieces(each, depth - 1)
            yield "}"
        case list():
            yield "["
            for index, each in enumerate(cast("list[Any]", value)):
                yield ", " if index else ""
                yield from _pieces(each, depth - 1)
            yield "]"
        case None | bool() | int() | float():
            yield json.dumps(value)
        case _:
            yield type(value).__name__


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
