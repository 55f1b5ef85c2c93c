"""Where something like a text stands in a file, and what is different: for a model that copied it wrongly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from perdure.harness.output import clip
from perdure.values import clean_text

#: How large a file may be to be searched for what is near, and how many places are named.
HINTED = 4 * 1024 * 1024
MOST_PLACES = 10
#: How long a text may be to be searched for in each way, in characters.
MOST_OLD = 8 * 1024
#: How much of the file is shown at the first place.
MOST_LINES, MOST_CHARACTERS = 20, 1200

#: Characters that look like another one that is meant.
_ALIKE = str.maketrans(
    "\u2018\u2019\u201a\u201b\u2032\u201c\u201d\u201e\u201f\u2033"
    "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u00a0\u2007\u202f\u2009\u3000",
    "'''''\"\"\"\"\"-------     ",
)


class _Way(NamedTuple):
    """One way in which a text may differ from what stands in the file."""

    name: str
    find: Callable[[str, str], Iterator[tuple[int, int]]]


def listed(numbers: list[int], count: int) -> str:
    """ "1, 2, 3 and 7 more"."""
    more = f" and {count - MOST_PLACES:,} more" if count > MOST_PLACES else ""
    return ", ".join(str(number) for number in numbers[:MOST_PLACES]) + more


def near(content: bytes, old: str, new: str) -> str:
    """What a model is told about the place that it may have meant; begins with "; "."""
    if len(content) > HINTED:
        return "; search for it, and copy the text from the file"
    text = content.decode("utf-8", "replace").replace("\r\n", "\n")
    for way in _WAYS if len(old) <= MOST_OLD else ():
        places = list(way.find(text, old))
        if places:
            starts = [text.count("\n", 0, start) + 1 for start, _ in places[:MOST_PLACES]]
            where = listed(starts, len(places))
            found = text[places[0][0] : places[0][1]]
            told = f"; lines that differ only in {way.name} begin at {where}{_indentation(text, places[0][0], old)}"
            return told + _shown(text, starts[0], found.count("\n") + 1)
    if new.strip() and new in text:
        line = text.count("\n", 0, text.index(new)) + 1
        return f"; new stands there already, at line {line}: the edit may have been made before"
    return _by_its_first_line(text, old)


def _by_its_first_line(text: str, old: str) -> str:
    lines = [" ".join(line.split()) for line in text.split("\n")]
    wanted = [" ".join(line.split()) for line in old.strip("\n").split("\n")]
    first = wanted[0]
    starts = [index + 1 for index, line in enumerate(lines) if first and line == first]
    if starts and len(wanted) > 1:
        told = f"; its first line stands at {listed(starts, len(starts))}, but what follows differs"
        return told + _shown(text, starts[0], len(wanted))
    there = set(lines)
    known = max((line for line in wanted if len(line) > 10 and line in there), key=len, default=None)
    if known is None:
        return "; read the file again and copy the text from it"
    at, within = lines.index(known) + 1, wanted.index(known) + 1
    around = max(1, at + 1 - within)
    told = f"; its line {within} stands at {at}, but what is around it differs"
    return told + _shown(text, around, len(wanted))


def _shown(text: str, first: int, count: int) -> str:
    """Lines of the file as they are."""
    lines = text.split("\n", first + min(count, MOST_LINES) - 1)[first - 1 : first - 1 + min(count, MOST_LINES)]
    return f". There the file has:\n{clip(clean_text(chr(10).join(lines)), MOST_CHARACTERS)}"


def _indentation(text: str, start: int, old: str) -> str:
    """How the first line is indented, where that is what differs."""
    begin = text.rfind("\n", 0, start) + 1
    there, given = _margin(text[begin:]), _margin(old)
    if there == given or text[begin:start].strip() or old != old.lstrip("\n"):
        return ""
    return f" (indented by {_spelled(there)}, in old by {_spelled(given)})"


def _margin(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" \t"))]


def _spelled(margin: str) -> str:
    parts = [(margin.count("\t"), "tab"), (margin.count(" "), "space")]
    return " and ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in parts if count) or "nothing"


# -- ways in which it may differ ----------------------------------------------------------------


def _in_white_space(text: str, old: str, flags: int = 0) -> Iterator[tuple[int, int]]:
    words = old.split()
    if words:
        pattern = re.compile(r"\s+".join(map(re.escape, words)), flags)
        yield from (found.span() for found in pattern.finditer(text))


def _in_look(text: str, old: str) -> Iterator[tuple[int, int]]:
    plain = old.translate(_ALIKE)
    yield from (found.span() for found in re.finditer(re.escape(plain), text.translate(_ALIKE)))


def _in_look_and_space(text: str, old: str) -> Iterator[tuple[int, int]]:
    yield from _in_white_space(text.translate(_ALIKE), old.translate(_ALIKE))


def _in_case(text: str, old: str) -> Iterator[tuple[int, int]]:
    yield from _in_white_space(text, old, re.IGNORECASE)


def _in_escapes(text: str, old: str) -> Iterator[tuple[int, int]]:
    """What was escaped once more than it should be."""
    meant = re.sub(r"\\([nt\"'\\])", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), old)
    if meant != old:
        yield from _in_white_space(text, meant)


_WAYS = (
    _Way("white space", _in_white_space),
    _Way("quotes, dashes or spaces of another kind", _in_look),
    _Way("white space and in quotes, dashes or spaces of another kind", _in_look_and_space),
    _Way("upper and lower case", _in_case),
    _Way("backslashes, which old has too many of,", _in_escapes),
)
