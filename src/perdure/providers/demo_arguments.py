"""How the demo model fills a tool's arguments: by their JSON schema, from the words of a step.

Nothing here knows a particular tool. A value is found in the text by the parameter's name, its type, format and limits.
What a required parameter still lacks is invented so that the schema accepts it. Each piece of text is used once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from perdure.providers.demo_text import (
    CONTENT,
    DATE,
    EMAIL,
    ENDS,
    FOLDERS,
    LIST,
    NAME,
    NUMBER,
    PAIR,
    PATH,
    PATHS,
    QUOTED,
    URL,
    WEAK,
    WORD,
    Source,
    content_of,
    invented,
    looks_of,
    plain_word,
    words_of,
)

Schema = Mapping[str, Any]

#: No value was found. None is a value.
MISSING: Final = object()
_DEPTH = 8  # schemas may refer to themselves

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def fill(parameters: Schema, text: str, *, around: str = "", skip: Iterable[str] = ()) -> dict[str, Any]:
    """Arguments that `parameters` accepts, from `text`; a required one that it lacks is looked for in `around`, too.

    `skip` are words that say what to do, not with what: they never become part of a value.
    """
    source = Source(text, skip)
    return _Filling(parameters).object(parameters, source, Source(around, skip, own=False) if around else None, 0)


def satisfied(parameters: Schema, text: str, skip: Iterable[str] = ()) -> bool:
    """Whether `text` has a value for each required parameter, and no parameter takes a list."""
    filling = _Filling(parameters)
    found = filling.found(parameters, Source(text, skip), 0)
    properties = _properties(parameters)
    lists = any(filling.kind(filling.resolve(each)) == "array" for each in properties.values())
    return not lists and all(name in found for name in parameters.get("required", ()))


def _properties(schema: Schema) -> dict[str, Schema]:
    properties = schema.get("properties")
    return cast("dict[str, Schema]", properties) if isinstance(properties, dict) else {}


class _Filling:
    """Filling one tool's arguments: what its references resolve to."""

    def __init__(self, root: Schema) -> None:
        self.root = root

    # -- schemas

    def resolve(self, schema: Any, chain: int = 0) -> Schema:
        """The schema without references, alternatives that are null, and `allOf`."""
        if not isinstance(schema, dict) or chain > _DEPTH:
            return {}
        plain = cast("dict[str, Any]", schema)
        if isinstance(reference := plain.get("$ref"), str):
            found: Any = self.root
            for key in reference.removeprefix("#").strip("/").split("/"):
                found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
            rest = {key: value for key, value in plain.items() if key != "$ref"}
            return {**self.resolve(found, chain + 1), **rest}
        for part in cast("list[Any]", plain.get("allOf") or []):
            plain = {**plain, **self.resolve(part, chain + 1)}
        return plain

    def branches(self, schema: Schema, chain: int = 0) -> list[Schema]:
        """The alternatives of a schema, `null` last; itself where it has none."""
        options: list[Any] = list(schema.get("anyOf") or schema.get("oneOf") or [])
        if isinstance(types := schema.get("type"), list):
            options = [{**schema, "type": each} for each in cast("list[Any]", types)]
        if not options or chain > _DEPTH:
            return [schema]
        found = [branch for each in options for branch in self.branches(self.resolve(each), chain + 1)]
        return sorted(found, key=lambda each: each.get("type") == "null")

    def kind(self, schema: Schema) -> str:
        for key in ("const", "enum"):
            if key in schema:
                return key
        if isinstance(kind := schema.get("type"), str):
            return kind
        return "object" if "properties" in schema else "array" if "items" in schema else "string"

    # -- objects

    def object(self, schema: Schema, source: Source, around: Source | None, depth: int) -> dict[str, Any]:
        found = self.found(schema, source, depth)
        lacking = [name for name in schema.get("required", ()) if name not in found]
        if around is not None and lacking:
            elsewhere = self.found(schema, around, depth)
            found |= {name: elsewhere[name] for name in lacking if name in elsewhere}
        return self.completed(schema, found, source, depth)

    def completed(self, schema: Schema, found: dict[str, Any], source: Source, depth: int) -> dict[str, Any]:
        for name in cast("list[str]", schema.get("required") or []):
            if name not in found:
                found[name] = self.invent(name, self.resolve(_properties(schema).get(name)), source, depth)
        return {name: found[name] for name in [*_properties(schema), *found] if name in found}

    def found(self, schema: Schema, source: Source, depth: int) -> dict[str, Any]:
        """What the text has for the properties: by their names first, then required ones by type, then the others."""
        properties = {name: self.resolve(each) for name, each in _properties(schema).items()}
        required = [name for name in schema.get("required", ()) if name in properties]
        found: dict[str, Any] = {}

        def look(names: Iterable[str], how: Callable[[str, Schema, Source, int], Any]) -> None:
            for name in names:
                if name not in found and (value := how(name, properties[name], source, depth)) is not MISSING:
                    found[name] = value

        look(properties, self.named)
        look(_eager_first(required, properties), self.typed)
        look(properties, self.spare)
        return found

    # -- one value

    def named(self, name: str, schema: Schema, source: Source, depth: int) -> Any:
        """`amount=5`, `amount: 5`, `amount 5`, `to Ann`."""
        spoken = r"[\s_-]*".join(map(re.escape, words_of(name) or [name]))
        value = r"(`[^`]+`|\"[^\"]*\"|'[^']*'|[^\s,;]+)"
        for match in source.matches(re.compile(rf"(?<![\w.-]){spoken}(\s*[=:]\s*|\s+){value}", re.IGNORECASE)):
            text = match[2]
            sure = not match[1].isspace()
            text = text if QUOTED.fullmatch(text) else text.rstrip(".!?")
            if not sure and (plain_word(text) in WEAK or name.lower() in source.skip or self.kind(schema) == "array"):
                continue
            if not sure and NAME.match(text) and (long := NAME.match(source.text, match.start(2))):
                text = long[0]
            for branch in self.branches(schema):
                if (read := self.read(branch, text)) is not MISSING:
                    source.take(match.start(), match.start(2) + len(text))
                    return read
        return MISSING

    def read(self, schema: Schema, text: str) -> Any:
        """The value that one word or quoted text is under a schema."""
        quoted = QUOTED.fullmatch(text)
        plain = content_of(quoted) if quoted else text
        match self.kind(schema):
            case "integer" | "number" as kind:
                return _number(plain, kind, schema) if NUMBER.fullmatch(plain) else MISSING
            case "boolean":
                word = plain_word(plain)
                return word in _TRUE if word in _TRUE | _FALSE else MISSING
            case "enum":
                return next((each for each in schema["enum"] if str(each).lower() == plain.lower()), MISSING)
            case "array":
                items = self.resolve(schema.get("items"))
                values = [self.read(items, each) for each in plain.split(",") if each]
                return _sized(values, schema) if values and MISSING not in values else MISSING
            case "string":
                form = looks_of("", schema)
                return MISSING if form and not form.fullmatch(plain) else _fitted(plain, schema)
            case _:
                return MISSING

    def typed(self, name: str, schema: Schema, source: Source, depth: int) -> Any:
        """The first value of the text that has the right type."""
        for branch in self.branches(schema):
            value = self._typed(name, branch, source, depth)
            if value is not MISSING:
                return value
        return MISSING

    def _typed(self, name: str, schema: Schema, source: Source, depth: int) -> Any:
        match self.kind(schema):
            case "integer" | "number" as kind:
                return self._number(kind, schema, source)
            case "boolean":
                return _or_missing(source.flag(words_of(name)))
            case "const":
                return schema["const"]
            case "enum":
                return _or_missing(source.choice(schema["enum"]))
            case "array":
                return self._array(name, schema, source, depth)
            case "object":
                return self._nested(schema, source, depth + 1)
            case "string":
                return self._string(name, schema, source)
            case _:
                return MISSING

    def spare(self, name: str, schema: Schema, source: Source, depth: int) -> Any:
        """A value for an optional parameter: only what can hardly mean anything else."""
        schema = self.branches(schema)[0]
        match self.kind(schema):
            case "integer" | "number" as kind:
                return self._number(kind, schema, source)
            case "boolean":
                return _or_missing(source.flag(words_of(name)))
            case "enum":
                return _or_missing(source.choice(schema["enum"]))
            case "string":
                sought = looks_of(name, schema)
                found = source.path() if sought is PATH else source.one(sought or QUOTED)
                return MISSING if found is None else _fitted(found, schema)
            case _:
                return MISSING

    def _number(self, kind: str, schema: Schema, source: Source) -> Any:
        for match in source.matches(NUMBER):
            if (value := _number(match[0], kind, schema)) is not MISSING:
                source.take(*match.span())
                return value
        return MISSING

    def _string(self, name: str, schema: Schema, source: Source) -> Any:
        words = set(words_of(name))
        sought = looks_of(name, schema)
        if sought is not None and sought is not PATH:
            found = source.one(sought)
            return MISSING if found is None else _fitted(found, schema)
        found = source.path() if sought or words & ENDS else None
        if found is None:
            found = source.one(QUOTED)
        if found is None and not sought and not words & CONTENT:
            found = source.name()
        if found is None and not sought:
            found = source.rest(PATHS | FOLDERS | words)
        return MISSING if found is None else _fitted(found, schema)

    def _array(self, name: str, schema: Schema, source: Source, depth: int) -> Any:
        items = self.resolve(schema.get("items"))
        single = name.removesuffix("s")
        values: list[Any] = []
        if isinstance(fixed := schema.get("prefixItems"), list):
            for each in cast("list[Any]", fixed):
                values.append(self._or_invent(single, self.resolve(each), source, depth + 1))
            return values
        plain = self.kind(items) == "string" and looks_of(single, items) is None
        if plain and next(source.matches(QUOTED), None) is None and next(source.matches(NAME), None) is None:
            text = source.rest(frozenset(words_of(name)))
            return _sized([each for each in LIST.split(text) if each], schema) if text else MISSING
        while len(values) < 50:
            value = self.typed(single, items, source, depth + 1)
            if value is MISSING:
                break
            values.append(value)
            if self.kind(items) in {"object", "const", "boolean"} or depth > _DEPTH or not self._more(items, source):
                break
        return _sized(values, schema) if values else MISSING

    def _more(self, items: Schema, source: Source) -> bool:
        """Whether another value that is surely one is left: loose words are no list."""
        patterns = (QUOTED, NAME, PATH, URL, EMAIL, DATE) if self.kind(items) == "string" else (NUMBER, WORD)
        return any(next(source.matches(pattern), None) for pattern in patterns)

    def _or_invent(self, name: str, schema: Schema, source: Source, depth: int) -> Any:
        value = self.typed(name, schema, source, depth)
        return self.invent(name, schema, source, depth) if value is MISSING else value

    def _nested(self, schema: Schema, source: Source, depth: int) -> Any:
        if not _properties(schema):
            return self._pairs(schema, source)
        found = self.found(schema, source, depth) if depth <= _DEPTH else {}
        return self.completed(schema, found, source, depth) if found else MISSING

    def _pairs(self, schema: Schema, source: Source) -> Any:
        """An object without known properties: the `key=value` pairs of the text."""
        values = self.resolve(schema.get("additionalProperties"))
        found: dict[str, Any] = {}
        for match in source.matches(PAIR):
            if (value := self.read(values, match[2])) is not MISSING:
                found[match[1]] = value
        return found or MISSING

    def invent(self, name: str, schema: Schema, source: Source, depth: int) -> Any:
        """A value that the schema accepts, where the text has none."""
        if "default" in schema:
            return schema["default"]
        schema = self.branches(schema)[0]
        match self.kind(schema):
            case "const":
                return schema["const"]
            case "enum":
                return next(iter(schema["enum"]), None)
            case "integer" | "number" as kind:
                return _number("1", kind, schema)
            case "boolean":
                return False
            case "null":
                return None
            case "array":
                items = self.resolve(schema.get("items"))
                count = 0 if depth > _DEPTH else schema.get("minItems", 0)
                return [self.invent(f"{name}{at or ''}", items, source, depth + 1) for at in range(count)]
            case "object":
                return {} if depth > _DEPTH else self.completed(schema, {}, source, depth + 1)
            case _:
                return _fitted(invented(name, schema, source.text), schema)


def _eager_first(names: Iterable[str], properties: Mapping[str, Schema]) -> list[str]:
    """Parameters that want one kind of value before those that take any text."""

    def loose(name: str) -> int:
        schema = properties[name]
        if schema.get("type") != "string" or "enum" in schema or looks_of(name, schema) is not None:
            return 0
        return 2 if CONTENT & set(words_of(name)) else 1

    return sorted(names, key=loose)


def _or_missing(value: Any) -> Any:
    return MISSING if value is None else value


def _number(text: str, kind: str, schema: Schema) -> Any:
    """The number, moved into the schema's limits; an integer only from a whole number."""
    value = float(text.replace(",", ""))
    if kind == "integer" and value != int(value):
        return MISSING
    number: float = int(value) if kind == "integer" or (value == int(value) and "." not in text) else value
    step = schema.get("multipleOf") or (1 if kind == "integer" else 0.5)
    low, high = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        low = above + step
    if (below := schema.get("exclusiveMaximum")) is not None:
        high = below - step
    number = number if low is None or number >= low else low
    number = number if high is None or number <= high else high
    if (multiple := schema.get("multipleOf")) and number % multiple:
        number = (number // multiple + 1) * multiple
        number = number if high is None or number <= high else number - multiple
    return number


def _fitted(text: str, schema: Schema) -> str:
    """The text within the schema's lengths, and a part of it that has the schema's pattern, if there is one."""
    if isinstance(pattern := schema.get("pattern"), str):
        with suppress(re.error):  # JSON schema's patterns are another dialect
            text = next((each for each in (text, *text.split()) if re.search(pattern, each)), text)
    text = text[: schema.get("maxLength")]
    return text.ljust(schema.get("minLength", 0), ".")


def _sized(values: list[Any], schema: Schema) -> list[Any]:
    if schema.get("uniqueItems"):
        values = [value for at, value in enumerate(values) if value not in values[:at]]
    least = schema.get("minItems", 0)
    return (values + values[-1:] * least)[: max(least, min(len(values), schema.get("maxItems", len(values))))]
