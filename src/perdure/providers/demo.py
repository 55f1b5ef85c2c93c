"""The demo model: offline, deterministic, and able to use tools that it has never seen.

It understands nothing. It cuts the prompt into steps, picks for each step the offered tool whose words it shares, fills
the arguments by the tool's JSON schema, and ends with what the tools answered. perdure runs on it where no other model
is set up, and the demo, the crash suite and the tutorial drive it; so each of its answers says what it is.

It keeps no state: what is done is what the messages show, so it goes on after a restart as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise

import msgspec

from perdure.clock import Clock, SystemClock
from perdure.errors import ModelError, UsageError
from perdure.messages import AssistantMessage, Message, Text, ToolMessage, UserMessage, calls_of, text_of
from perdure.model import (
    CallDelta,
    CallStart,
    Finished,
    Heartbeat,
    ModelEvent,
    Request,
    StopReason,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from perdure.providers.demo_plan import Controls, Step, plan

LABEL = "(demo model)"
UNKNOWN_TOOL = "no_such_tool"

_OPTIONS = ("slow", "sleep", "window")
_KINDS = ("auth", "quota", "invalid")
_CONTROLS = frozenset(
    {"fail", "rate", "overflow", "hang", "silent", "pulse", "cut", "length", "garbage", "unknown", "refuse", "think"}
    | {"sleep", "slow", *_KINDS}
)
_PIECE = 24  # characters of a delta
_CLIP = 200  # characters of a result in the summary
_CHARS_PER_TOKEN = 4
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


class DemoModel:
    """A model by rules. Write control words into a prompt to see what bad days do.

    They concern the step that they stand in, until its result is there. `=n` limits a word to the first n attempts of a
    request, which the model knows from `options["attempt"]`, counted from 1.

    - `demo:fail` `demo:fail=2`: a retryable error. `demo:auth`, `demo:quota`, `demo:invalid`: one that no retry helps.
    - `demo:rate=2.5`: the first attempt is rate limited and told to wait 2.5 seconds.
    - `demo:overflow`: the input does not fit; `demo:overflow=500`: as long as it has more than 500 tokens.
    - `demo:cut`: the stream ends in the middle. `demo:hang`: it falls silent in the middle, `demo:silent`: before its
      first event, `demo:pulse`: only heartbeats come.
    - `demo:length`: the output limit is met inside the last call, or the text. `demo:refuse`: the answer is a refusal.
    - `demo:garbage`: the arguments are no JSON. `demo:unknown`: the call is for a tool that does not exist.
    - `demo:think`: thinking comes first. `demo:sleep=0.5`: seconds before the answer, `demo:slow=0.05`: before each
      delta.

    A user message that begins with `[` or `<` is a note, not a task. `slow`, `sleep` and `window` are the model's own
    defaults; `window` is its context in tokens, and what does not fit overflows.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        name: str = "demo",
        slow: float = 0.0,
        sleep: float = 0.0,
        window: int | None = None,
    ) -> None:
        self.name = name
        self.context_window = window
        self._clock = clock or SystemClock()
        self._slow = slow
        self._sleep = sleep

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        """Answer; raises `ModelError` where a control word or the window asks for it."""
        size = _tokens(request)
        answer = _answer(request)
        controls, attempt = answer.controls, int(request.options.get("attempt", 1))
        if _applies("silent", controls, attempt):
            await asyncio.get_running_loop().create_future()
        while _applies("pulse", controls, attempt):
            await self._clock.sleep(1.0)
            yield Heartbeat()
        if delay := controls.get("sleep") or self._sleep:
            await self._clock.sleep(delay)
        self._refuse(size, controls, attempt)
        events = list(_events(answer, size, self.name))
        last = None
        if _applies("cut", controls, attempt):
            last = len(events) // 2
        elif _applies("hang", controls, attempt):
            last = min(3, len(events) - 1)
        slow = controls.get("slow") or self._slow
        for event in events[:last]:
            if slow and not isinstance(event, CallStart | Finished):
                await self._clock.sleep(slow)
            yield event
        if _applies("hang", controls, attempt):
            await asyncio.get_running_loop().create_future()

    def _refuse(self, size: int, controls: Controls, attempt: int) -> None:
        if _applies("fail", controls, attempt):
            raise ModelError(f"the demo model was told to fail (attempt {attempt})", kind="retryable")
        if "rate" in controls and attempt == 1:
            raise ModelError("the demo model was told to be rate limited", kind="rate_limited", after=controls["rate"])
        for kind in _KINDS:
            if _applies(kind, controls, attempt):
                raise ModelError(f"the demo model was told to refuse the request ({kind})", kind=kind)
        limits = [self.context_window, int(controls["overflow"] or 0) if "overflow" in controls else None]
        for limit in limits:
            if limit is not None and size > limit:
                raise ModelError(f"the input has {size} tokens, the demo model takes {limit}", kind="overflow")


def open_model(spec: str, clock: Clock | None = None) -> DemoModel:
    """The model that `demo` or `demo:slow=0.05,window=8000` names. Raises `UsageError` for any other option."""
    word, _, rest = spec.partition(":")
    options: dict[str, float] = {}
    for option in filter(None, rest.split(",")):
        name, _, value = option.partition("=")
        if name not in _OPTIONS:
            raise UsageError(f"the demo model has no option {name!r}; it has {', '.join(_OPTIONS)}: demo:slow=0.05")
        try:
            options[name] = float(value)
        except ValueError:
            raise UsageError(f"{name}={value} of the demo model is no number; write {name}=1") from None
    if word != "demo":
        raise UsageError(f"{spec!r} does not name the demo model; write demo, or demo:slow=0.05")
    window = int(options.pop("window", 0)) or None
    return DemoModel(clock, name=spec, window=window, **options)


# -- what to answer -----------------------------------------------------------------------------


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    calls: tuple[tuple[str, str], ...] = ()  #: names and the JSON of the arguments
    stop: StopReason = "stop"
    controls: Controls = {}


class _Seen(msgspec.Struct, kw_only=True):
    """The present run as the messages show it."""

    prompts: list[str]
    calls: list[str]  #: the names called, in order
    results: list[ToolMessage]
    news: list[ToolMessage]  #: the results of the newest round


def _seen(messages: Sequence[Message]) -> _Seen:
    """A run begins with the first input after an answer without calls."""
    seen = _Seen(prompts=[], calls=[], results=[], news=[])
    for message in messages[_beginning(messages) :]:
        if isinstance(message, UserMessage):
            if _prompts(message):
                seen.prompts.append(text_of(message))
        elif isinstance(message, ToolMessage):
            seen.results.append(message)
            seen.news.append(message)
        else:
            calls = calls_of(message)
            seen.calls += [call.name for call in calls]
            seen.news = []
    return seen


def _beginning(messages: Sequence[Message]) -> int:
    """Where the present run begins, looked for from its end: what was said before it costs nothing."""
    first: int | None = None
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, UserMessage):
            first = at if _prompts(message) else first
        elif isinstance(message, AssistantMessage):
            if first is not None and not calls_of(message):
                return first
            first = None
    return 0


def _prompts(message: UserMessage) -> bool:
    """Whether it asks for something: notes of perdure begin with a bracket."""
    return not text_of(message).startswith(("[", "<"))


def _answer(request: Request) -> _Answer:
    if request.options.get("purpose") == "compaction":
        return _Answer(text=_notes("\n".join(map(text_of, request.messages))))
    seen = _seen(request.messages)
    steps: list[Step] = []
    for prompt in seen.prompts:
        after = steps[-1].stage + 1 if steps else 0
        steps += [msgspec.structs.replace(step, stage=step.stage + after) for step in plan(prompt, request.tools)]
    left = _left(steps, seen.calls)
    stage = next((step.stage for step in left if step.tool), None)
    now = [step for step in left if step.stage == stage and step.tool] if stage is not None else left
    controls: Controls = {}
    for step in now:
        controls |= step.controls
    if "refuse" in controls:
        return _Answer(text=f"{LABEL} I refuse, as I was told to.", stop="refusal", controls=controls)
    if stage is None:
        offered = [tool.name for tool in request.tools]
        return _Answer(text=_summary(seen, left, offered), stop=_stop("stop", controls), controls=controls)
    total = sum(step.tool is not None for step in steps)
    done = total - sum(step.tool is not None for step in left)
    numbers = ", ".join(str(done + at) for at in range(1, len(now) + 1))
    lines = [*_complaints(seen.news), f"Step {numbers} of {total}: {'; '.join(step.text for step in now)}"]
    return _Answer(
        text=f"{LABEL} " + "\n".join(lines),
        calls=tuple((_called(step), _arguments(step)) for step in now),
        stop=_stop("tool_calls", controls),
        controls=controls,
    )


def _notes(record: str) -> str:
    """Instead of a summary: what was asked, each by its first line."""
    lines = record.splitlines()
    before = [line for line in lines if line.startswith("- ")]
    asked = [_clip(after) for line, after in pairwise(lines) if line == "[The person]"]
    return "\n".join([f"{LABEL} I understand nothing, but I was told:", *before, *(f"- {text}" for text in asked)])


def _left(steps: Sequence[Step], calls: Sequence[str]) -> list[Step]:
    """The steps that no call was made for: a call is for the first step of its tool, else for the first at all."""
    left = list(steps)
    for name in calls:
        same = (step for step in left if step.tool and _NOT_IN_NAME.sub("_", _called(step))[:64] == name)
        step = next(same, left[0] if left else None)
        if step is not None:
            left.remove(step)
    return left


def _called(step: Step) -> str:
    return UNKNOWN_TOOL if "unknown" in step.controls else step.tool or ""


def _arguments(step: Step) -> str:
    text = msgspec.json.encode(step.arguments).decode()
    if "garbage" in step.controls:
        return text[: max(1, len(text) // 2)] + '"'
    return text


def _stop(stop: StopReason, controls: Controls) -> StopReason:
    return "length" if "length" in controls else stop


def _complaints(results: Sequence[ToolMessage]) -> Iterator[str]:
    for result in results:
        if result.error == "interrupted":
            yield f"{result.name} was interrupted: it may have happened, so I do not repeat it."
        elif result.error is not None:
            yield f"{result.name} failed ({result.error}): {_clip(result.text)} I go on without it."


def _summary(seen: _Seen, talk: Sequence[Step], offered: Sequence[str]) -> str:
    lines: list[str] = []
    if seen.results:
        failed = sum(result.error is not None for result in seen.results)
        total = len(seen.results)
        lines.append(f"{total - failed} of {total} done:" if failed else f"{total} done:")
        for at, result in enumerate(seen.results, 1):
            error = f" failed ({result.error})" if result.error else ""
            lines.append(f"{at}. {result.name}{error}: {_clip(result.text)}")
    said = "; ".join(step.text for step in talk if step.text)
    if said:
        tools = f"The tools here are: {', '.join(offered)}." if offered else "No tools are offered here."
        lines.append(f'I work offline and understand nothing; no tool fits "{_clip(said)}". {tools}')
    unknown = sorted({f"demo:{word}" for step in talk for word in step.controls if word not in _CONTROLS})
    if unknown:
        lines.append(f"I do not know {', '.join(unknown)}; I know {', '.join(sorted(_CONTROLS))}.")
    return f"{LABEL} " + ("\n".join(lines) or "There is nothing to do.")


def _clip(text: str) -> str:
    line = " ".join(text[: 2 * _CLIP].split())
    return line if len(line) <= _CLIP else line[:_CLIP] + "\u2026"


# -- streaming it -------------------------------------------------------------------------------


def _applies(word: str, controls: Controls, attempt: int) -> bool:
    """Whether a control word holds for this attempt: `=n` limits it to the first n."""
    if word not in controls:
        return False
    most = controls[word]
    return most is None or attempt <= most


def _pieces(text: str) -> Iterator[str]:
    size = max(1, min(_PIECE, (len(text) + 1) // 2))
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _events(answer: _Answer, size: int, name: str) -> Iterator[ModelEvent]:
    cut = answer.stop == "length"
    text, calls = answer.text, list(answer.calls)
    if cut and calls:
        calls[-1] = (calls[-1][0], calls[-1][1][: len(calls[-1][1]) // 2])
    elif cut:
        text = text[: len(text) * 2 // 3]
    if "think" in answer.controls:
        yield ThinkingDelta("Which tool shares ")
        yield ThinkingDelta("most words with this?", signature=f"{name}:thought", done=True)
    for piece in _pieces(text):
        yield TextDelta(piece)
    for index, (tool, arguments) in enumerate(calls):
        yield CallStart(index, tool, f"call_{index}")  # the same ids in each round, as some models do (I21)
        for piece in _pieces(arguments):
            yield CallDelta(index, piece)
    output = (len(text) + sum(len(arguments) for _, arguments in calls)) // _CHARS_PER_TOKEN + 1
    yield Finished(answer.stop, Usage(input=size, output=output, cost=0.0))


def _tokens(request: Request) -> int:
    """An estimate from the characters, enough to make sums and limits work."""
    size = len(request.system)
    for message in request.messages:
        if isinstance(message, ToolMessage):
            size += len(message.text)
            continue
        size += sum(len(part.text) for part in message.parts if isinstance(part, Text))
        if isinstance(message, AssistantMessage):
            size += sum(len(msgspec.json.encode(call.arguments)) for call in calls_of(message))
    size += sum(len(tool.description) + 40 * len(tool.parameters.get("properties", ())) for tool in request.tools)
    return size // _CHARS_PER_TOKEN + 1
