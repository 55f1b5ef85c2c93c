"""How the demo model plans: a prompt becomes steps, a step becomes the call of the tool whose words it shares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec

from perdure.model import ToolSpec
from perdure.providers.demo_arguments import fill, satisfied
from perdure.providers.demo_text import PATH, QUOTED, WEAK, WORD, values_only, words_of

CONTROL = re.compile(r"(?<!\w)demo:([a-z]+)(?:=(\d+(?:\.\d+)?))?")

_LONGEST = 100_000  # characters of a prompt that are read
_MOST = 50  # steps of a prompt
_LISTED = 500  # characters of a step in which commas are looked at
_STAGE = re.compile(
    r"\n\s*(?:[-*\u2022]\s+|\d{1,2}[.)]\s+)?"
    r"|[,;.]?\s+(?i:and\s+)?(?i:then)\b,?\s*"
    r"|[,;.]\s*(?i:and\s+)?(?i:next|finally|afterwards|after that|lastly)\b,?\s*"
    r"|;\s*"
    r"|(?<=[.!?])\s+(?=[A-Z\ue000]|demo:)"
)
_LEAD = re.compile(r"^(?:[-*\u2022]\s+|\d{1,2}[.)]\s+|(?i:first|please|and)\b[,:]?\s*)+")
_JOINT = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+")
_PARALLEL = re.compile(r"\b(?:in parallel|at the same time|simultaneously|concurrently|at once|both)\b", re.IGNORECASE)
_FILLER = WEAK | {"them", "those", "all", "run", "make", "happen", "steps"}
_HIDDEN = re.compile("\ue000(\\d+)\ue001")
#: Words that people use where a tool says another.
_SYNONYMS = {
    **dict.fromkeys(["create", "save", "store", "put"], "write"),
    **dict.fromkeys(["show", "open", "view", "print", "display"], "read"),
    **dict.fromkeys(["execute", "start", "call", "launch"], "run"),
    **dict.fromkeys(["change", "replace", "modify", "rename"], "edit"),
    **dict.fromkeys(["transfer", "give"], "pay"),
    **dict.fromkeys(["find", "look", "query"], "search"),
    **dict.fromkeys(["remove", "erase"], "delete"),
}

Controls = dict[str, float | None]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the prompt asks for. Steps of one `stage` go in one round; without a tool it is only talk."""

    text: str
    stage: int = 0
    tool: str | None = None
    arguments: dict[str, Any] = {}
    controls: Controls = {}


class _Words(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool is found by: the weight of each stem, and the stems that say what to do."""

    weights: dict[str, int]
    verbs: frozenset[str]


def plan(prompt: str, tools: Sequence[ToolSpec]) -> list[Step]:
    """The steps of a prompt, in order. The same for the same prompt and tools."""
    planner = _Planner(tools)
    hidden = _Hidden()
    steps: list[Step] = []
    stage = 0
    sendable = prompt[:_LONGEST].encode("utf-8", "replace").decode()
    for text, parallel, controls in _stages(hidden.hide(sendable)):
        for step in planner.steps(text, parallel, hidden):
            steps.append(msgspec.structs.replace(step, stage=stage, controls=controls))
            stage += not parallel
        stage += parallel
    return steps[:_MOST]


class _Hidden:
    """Quoted texts, out of the way while the text around them is cut."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def hide(self, text: str) -> str:
        def keep(match: re.Match[str]) -> str:
            self.texts.append(match[0])
            return f"\ue000{len(self.texts) - 1}\ue001"

        plain = QUOTED.sub(keep, _HIDDEN.sub(" ", text))
        return re.sub(r"\s*\n\s*", "\n", re.sub(r"[^\S\n]+", " ", plain))

    def show(self, text: str) -> str:
        return _HIDDEN.sub(lambda match: self.texts[int(match[1])], text)


def _stages(text: str) -> list[tuple[str, bool, Controls]]:
    """What is done one after the other: its text, whether its parts go at once, and its control words.

    Control words that stand alone belong to what follows, or to the last stage; "do both at once" to all before it.
    """
    stages: list[tuple[str, bool, Controls]] = []
    waiting: Controls = {}
    for piece in _STAGE.split(text):
        controls: Controls = {match[1]: float(match[2]) if match[2] else None for match in CONTROL.finditer(piece)}
        words, parallel = _PARALLEL.subn(" ", _LEAD.sub("", CONTROL.sub(" ", piece).strip()))
        words = _LEAD.sub("", words.strip(" ,;"))
        said = {word.lower() for word in WORD.findall(words)}
        if not said and "\ue000" not in words:
            waiting |= controls
        elif parallel and said <= _FILLER and stages:
            merged: Controls = {}
            for stage in stages:
                merged |= stage[2]
            stages = [(", and ".join(stage[0] for stage in stages), True, merged | waiting | controls)]
            waiting = {}
        else:
            stages.append((words, bool(parallel), waiting | controls))
            waiting = {}
    if waiting and stages:
        stages[-1] = (*stages[-1][:2], stages[-1][2] | waiting)
    elif waiting:
        stages = [("", False, waiting)]
    return stages


class _Planner:
    """Planning with one set of tools."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.words = {
            tool.name: _words(tool.name, tool.description, tuple(tool.parameters.get("properties") or ()))
            for tool in tools
        }
        self.verbs = frozenset(_SYNONYMS).union(*(words.verbs for words in self.words.values()))

    def steps(self, text: str, parallel: bool, hidden: _Hidden) -> Iterator[Step]:
        before: str | None = None
        whole = hidden.show(text)
        for part in self.parts(text, parallel, hidden):
            tool = self.choose(part, hidden) or before
            said = hidden.show(part)
            if tool is None:
                yield Step(text=said)
                continue
            before = tool
            skip = self.skipped(tool, said)
            arguments = fill(
                self.tools[tool].parameters, said, around=whole[:_LISTED] if whole != said else "", skip=skip
            )
            yield Step(text=said, tool=tool, arguments=arguments)

    def parts(self, text: str, parallel: bool, hidden: _Hidden) -> Iterator[str]:
        """The text cut at commas and "and", where what follows is another call and not more of the same one."""
        begin = 0
        for joint in _JOINT.finditer(text[:_LISTED]):
            left = text[begin : joint.start()]
            right = text[joint.end() :]
            following = _JOINT.split(right)[0]
            if self.another(left, following, parallel, hidden):
                yield left
                begin = joint.end()
        yield text[begin:]

    def another(self, left: str, right: str, parallel: bool, hidden: _Hidden) -> bool:
        words = WORD.findall(right.lower())
        if words and words[0] not in WEAK and _stem(words[0]) in self.verbs:
            return True
        tool = self.choose(left, hidden)
        shown = hidden.show(right)
        if parallel:
            return len(words) <= 4 or self.choose(right, hidden) is not None
        if tool is None or not values_only(shown):
            return tool is not None and self.choose(right, hidden) not in {None, tool} and len(words) > 2
        said = hidden.show(left)
        return satisfied(self.tools[tool].parameters, said, self.skipped(tool, said))

    def choose(self, text: str, hidden: _Hidden) -> str | None:
        """The tool that shares most words with the text; none if none shares any that count."""
        for name in self.tools:
            if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", hidden.show(text)) and len(name) > 3:
                return name
        plain = PATH.sub(" ", text)
        words = [word for word in WORD.findall(plain.lower()) if not word.isdigit()]
        stems = {_stem(word) for word in words if word not in WEAK}
        stems |= {_stem(first + second) for first, second in pairwise(words)}
        stems |= {_stem(_SYNONYMS[word]) for word in words if word in _SYNONYMS}
        first = next((_stem(word) for word in words if word not in WEAK), "")
        best, chosen = 0, None
        for name, known in self.words.items():
            score = sum(known.weights.get(stem, 0) for stem in stems)
            score += 2 if first in known.verbs else 0
            if "\ue000" in text and score and {"command", "code", "cmd", "query"} & known.weights.keys():
                score += 1
            if score > best:
                best, chosen = score, name
        return chosen

    def skipped(self, tool: str, text: str) -> frozenset[str]:
        """The words of the text that only say which tool to use."""
        verbs = self.words[tool].verbs
        words = WORD.findall(text.lower())
        found = {word for word in words if _stem(word) in verbs or _stem(_SYNONYMS.get(word, "")) in verbs}
        for first, second in pairwise(words):
            if _stem(first + second) in verbs:
                found |= {first, second}
        return frozenset(found)


@lru_cache(maxsize=512)
def _words(name: str, description: str, parameters: tuple[str, ...]) -> _Words:
    """The name counts most, then the first word of the description, then its other words and the parameters."""
    weights: dict[str, int] = {}
    summary = [word for word in WORD.findall(description.split("\n\n")[0].lower())[:40] if word not in WEAK]
    for parameter in parameters:
        weights.update(dict.fromkeys(map(_stem, words_of(parameter)), 1))
    weights.update(dict.fromkeys(map(_stem, summary), 1))
    verbs = {_stem(word) for word in words_of(name) if word not in WEAK}
    weights.update(dict.fromkeys(map(_stem, summary[:1]), 2))
    weights.update(dict.fromkeys(verbs, 3))
    weights[_stem(name.lower())] = 3
    return _Words(weights=weights, verbs=frozenset({*verbs, _stem(name.lower()), *map(_stem, summary[:1])}))


def _stem(word: str) -> str:
    """`writes`, `writing` and `write` as one."""
    word = word.lower()
    for ending in ("ing", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word
