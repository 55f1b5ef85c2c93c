"""How the demo model reads a prompt: the patterns of values in a text, each piece of which is used once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

QUOTED = re.compile(r"`([^`]+)`|\"([^\"]*)\"|\u201c([^\u201d]*)\u201d|(?<!\w)'([^']*)'(?!\w)")
URL = re.compile(r"https?://[^\s\"'`<>]+[^\s\"'`<>.,;:!?)]")
EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
UUID = re.compile(r"(?<![\w-])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])")
DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:\d\d)?)?")
PATH = re.compile(
    r"(?<![\w@/.~-])(?!(?:e\.g|i\.e|and/or)\b)(?:"
    r"(?:~|\.{1,2})?/[\w.-]*[\w-](?:/[\w.-]*[\w-])*/?"  # /etc/hosts, ./a, ~/b
    r"|[\w-][\w.-]*(?:/[\w.-]*[\w-])+/?"  # src/a.py
    r"|\.?[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,7}\b"  # a.txt
    r")(?!@)"
)
NUMBER = re.compile(r"(?<![\w./-])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w.-]*\d|\w*[/:]\d)")
NAME = re.compile(r"(?<![\w./-])[A-Z][\w'-]*(?: [A-Z][\w'-]*)*(?![\w/-]*[./]\w)")
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
PAIR = re.compile(r"\b(\w+)\s*[=:]\s*(`[^`]+`|\"[^\"]*\"|'[^']*'|[^\s,;]+)")
LIST = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+|\s+or\s+")

_NO = frozenset({"no", "not", "without", "non", "never", "don't"})
_WEAK = """
    a an the to of in into on at by for from with as is are be it its this that these those and or please can could
    would you me my i we us our now then first named called using use via so what which who how much many there do does
"""
#: Words that lead to a value or away from it, but are none.
WEAK = frozenset(_WEAK.split())

#: Words in the names of parameters that tell what they take.
PATHS = frozenset({"path", "file", "filename", "filepath", "paths", "files"})
ENDS = frozenset({"source", "src", "destination", "dst", "target"})
FOLDERS = frozenset({"dir", "directory", "folder", "cwd", "workdir"})
CONTENT = frozenset({"content", "contents", "text", "body", "message", "note", "comment", "data", "input", "prompt"})


def values_only(text: str) -> bool:
    """Whether `text` is one value and nothing else: quoted, a number, a path, a name."""
    text = text.strip().rstrip(".!?")
    return any(pattern.fullmatch(text) for pattern in (QUOTED, NUMBER, PATH, URL, EMAIL, DATE, NAME))


class Source:
    """A text whose pieces are used once: `used` are the spans that became values. Loose words count if it is `own`."""

    def __init__(self, text: str, skip: Iterable[str] = (), *, own: bool = True) -> None:
        self.text = text
        self.own = own
        self.skip = frozenset(skip)
        self.used: list[tuple[int, int]] = []

    def take(self, start: int, end: int) -> None:
        self.used.append((start, end))

    def free(self, start: int, end: int) -> bool:
        return all(end <= begin or stop <= start for begin, stop in self.used)

    def matches(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        return (match for match in pattern.finditer(self.text) if self.free(*match.span()))

    def one(self, pattern: re.Pattern[str]) -> str | None:
        """The first free match, used up; its only group if it has groups."""
        for match in self.matches(pattern):
            self.take(*match.span())
            return content_of(match)
        return None

    def path(self) -> str | None:
        """A path that stands for itself before one inside a longer quoted text."""
        quoted = [match.span() for match in self.matches(QUOTED)]
        inside: list[re.Match[str]] = []
        for match in self.matches(PATH):
            around = next((span for span in quoted if span[0] < match.start() and match.end() < span[1]), None)
            if around is not None and match.end() - match.start() + 2 < around[1] - around[0]:
                inside.append(match)
                continue
            self.take(*(around or match.span()))
            return match[0]
        for match in inside:
            self.take(*match.span())
            return match[0]
        return None

    def name(self) -> str | None:
        """A capitalised word that does not merely begin the text."""
        for match in self.matches(NAME):
            words = match[0].split(" ")
            if match.start() == 0 or words[0].lower() in self.skip:
                words = words[1:]
            if words and words[0].lower() not in WEAK:
                self.take(*match.span())
                return " ".join(words)
        return None

    def rest(self, weak: frozenset[str]) -> str | None:
        """The first words between what was used, without the words that lead to it and away from it."""
        if not self.own:
            return None
        spans = sorted(self.used)
        bounds = [0, *(bound for span in spans for bound in span), len(self.text)]
        for start, end in zip(bounds[::2], bounds[1::2], strict=True):
            words = list(re.finditer(r"\S+", self.text[start:end]))
            while words and plain_word(words[0][0]) in self.skip | weak | WEAK:
                words.pop(0)
            while words and plain_word(words[-1][0]) in weak | WEAK:
                words.pop()
            if words:
                first, last = start + words[0].start(), start + words[-1].end()
                self.take(first, last)
                return self.text[first:last].strip(" ,;:.!?") or None
        return None

    def choice(self, values: Iterable[Any]) -> Any:
        """The first of the values that the text names; None if it names none."""
        for value in values:
            if value is None or value == "" or isinstance(value, bool | list | dict):
                continue
            spoken = re.compile(rf"(?<![\w.]){re.escape(str(value))}(?!\w|\.\w)", re.IGNORECASE)
            if self.one(spoken) is not None:
                return value
        return None

    def flag(self, words: Iterable[str]) -> bool | None:
        """Whether the text wants what the words name, or says that it does not; None if it does not name it."""
        stem = r"[\s_-]*".join(map(re.escape, words))
        found = next(self.matches(re.compile(rf"(?<![\w.-]){stem}\w*", re.IGNORECASE)), None) if stem else None
        return None if found is None else not _NO & set(self.text[: found.start()].lower().split()[-2:])


def content_of(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group is not None), match[0])


def plain_word(word: str) -> str:
    return word.strip(".,;:!?()").lower()


def words_of(name: str) -> list[str]:
    """`maxItems`, `max_items` and `max-items` as `max`, `items`."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


def looks_of(name: str, schema: Mapping[str, Any]) -> re.Pattern[str] | None:
    """What a text parameter looks like, by its format or its name; None is any text."""
    words = set(words_of(name))
    match schema.get("format"):
        case "email":
            return EMAIL
        case "uri" | "url":
            return URL
        case "date" | "date-time":
            return DATE
        case "uuid" | "uuid4":
            return UUID
        case _:
            pass
    if words & {"url", "uri", "link"}:
        return URL
    if words & {"email", "mail"}:
        return EMAIL
    return PATH if words & (PATHS | FOLDERS) else None


def invented(name: str, schema: Mapping[str, Any], text: str) -> str:
    """A text for a parameter that the prompt says nothing of."""
    words = set(words_of(name))
    match schema.get("format"):
        case "date":
            return "2026-01-01"
        case "date-time":
            return "2026-01-01T00:00:00Z"
        case "email":
            return "demo@example.com"
        case "uri" | "url":
            return "https://example.com/"
        case "uuid" | "uuid4":
            return "00000000-0000-4000-8000-000000000000"
        case _:
            pass
    if words & FOLDERS:
        return "."
    if words & PATHS:
        return "demo.txt"
    return text.strip() or "demo"
