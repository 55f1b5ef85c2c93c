"""From entries to what the model sees: a total pure function (K14), whose result keeps the rules of `valid`.

Transcripts are stored as things happened: results as they finished, answers that were stopped, calls without a result.
Providers refuse most of that, and one refused message would end a conversation for good (I11 to I22).
So a request is never built from stored messages directly, and stored messages are never rewritten to please a provider.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, groupby

import msgspec

from perdure.messages import (
    AssistantMessage,
    AssistantPart,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
    call_key,
    calls_of,
    text_of,
    user,
)
from perdure.records import Entry

#: Ends the text of an answer that was stopped, where that text is offered to the model (I25).
INTERRUPTED = "[interrupted]"
#: Stands in front of a transcript that would begin with an answer.
BEGINNING = "[The conversation goes on from here.]"
#: Ends a transcript that would end with an answer: providers refuse to be asked nothing.
CONTINUE = "[Go on.]"
EMPTY_INPUT = "[empty message]"
EMPTY_IMAGE = "[A picture was left out: there is nothing in it.]"
EMPTY_OUTPUT = "[no output]"
LEFT_OUT = "[The result was left out.]"
OUTCOME_UNKNOWN = (
    "[No result: this call was interrupted. Its outcome is unknown: it may have happened. Check before you repeat it.]"
)

#: What marks an answer that never finished; everything else came from the provider as the answer's end.
STOPPED = frozenset({"aborted", "error", "interrupted"})

#: What every provider takes as the name of a tool.
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


def wire_id(entry: int, index: int) -> str:
    """The id under which a call goes to providers, the same on every repetition (I18, I21)."""
    return f"call_{entry}_{index}"


@lru_cache(maxsize=8192)  # a transcript is rendered again for every round, and making these texts is half of the cost
def _ids(entry: int, index: int) -> tuple[str, str]:
    return call_key(entry, index), wire_id(entry, index)


def render(entries: Sequence[Entry], *, model: str) -> tuple[Message, ...]:
    """The messages of a request to `model` for an active transcript, given in its order. Never raises, always `valid`.

    - The newest edit of an entry decides its messages; a result that an edit took away is said to be left out.
    - An answer is followed by the results of its calls, in call order: the first result of a call counts, a missing one
      becomes an error that says that the outcome is unknown, a result without a call is dropped.
    - A stopped answer keeps the calls that have a result. Without one, its text is offered as an answer that ends with
      `INTERRUPTED`, unless its round was answered: some entry of the same `data["run"]` completed that or a later
      `data["round"]`.
    - Thinking goes only to the model that made it, and only when complete.
    - Arguments that were no JSON object are sent as `{}`, names that no provider takes are cleaned, empty content
      becomes a note in brackets, neighbouring answers become one.
    """
    return rendered(entries, model=model).request()


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """What `render` made of a transcript, so that it need not begin anew when the transcript has grown."""

    model: str
    first: Entry | None
    last: Entry | None
    count: int  #: entries
    messages: list[Message]
    settled: bool  #: nothing that may follow changes what was made of it

    def request(self) -> tuple[Message, ...]:
        """The messages: the first one is the user's, and the last one is no answer."""
        out = self.messages
        beginning = () if out and isinstance(out[0], UserMessage) else (user(BEGINNING),)
        end = (user(CONTINUE),) if not out or isinstance(out[-1], AssistantMessage) else ()
        if not out:
            return end
        return (*beginning, *out, *end)

    def begins(self, entries: Sequence[Entry], model: str) -> bool:
        """Whether a transcript is this one and more. Entries are only ever added at its end, but for its first one."""
        count = self.count
        return (
            self.settled
            and 0 < count <= len(entries)
            and entries[0] is self.first
            and entries[count - 1] is self.last
            and model == self.model
        )


def rendered(entries: Sequence[Entry], *, model: str, before: Rendered | None = None) -> Rendered:
    """See `render`. With `before`, only what came after it is looked at, where that is possible."""
    if before is not None and before.begins(entries, model):
        if before.count == len(entries):
            return before
        more = _rendered(entries[before.count :], model)
        touching = bool(more.messages) and all(
            isinstance(message, AssistantMessage) for message in (before.messages[-1], more.messages[0])
        )
        if more.settled and not touching:
            return Rendered(model, before.first, entries[-1], len(entries), before.messages + more.messages, True)
    return _rendered(entries, model)


def _rendered(entries: Sequence[Entry], model: str) -> Rendered:
    edited = _edited(entries)
    results, answered, stopped = _results(entries, edited)
    rendering = _Rendering(results, answered, model)
    out = rendering.messages
    for entry in entries:
        messages = edited.get(entry.id, entry.messages) if edited else entry.messages
        indexes: Iterator[int] | None = None
        for message in messages:
            if type(message) is UserMessage:
                out.append(_clean_user(message))
            elif type(message) is AssistantMessage:
                if indexes is None:
                    indexes = _indexes(entry.messages, messages) if edited else count()
                rendering.place(entry, message, indexes)
    if rendering.neighbours:
        out = list(_merged(out))
    settled = bool(out) and not (edited or stopped or rendering.missing) and rendering.matched == len(results)
    first, last = (entries[0], entries[-1]) if entries else (None, None)
    return Rendered(model, first, last, len(entries), out, settled)


# -- before rendering: edits, results, answered rounds ------------------------------------------


def _edited(entries: Iterable[Entry]) -> dict[int, tuple[Message, ...]]:
    """The messages that the newest edit gives to each edited entry. Edits reach back only."""
    newest: dict[int, int] = {}
    edited: dict[int, tuple[Message, ...]] = {}
    for entry in entries:
        for edit in entry.edits:
            if edit.entry < entry.id and newest.get(edit.entry, 0) <= entry.id:
                newest[edit.entry] = entry.id
                edited[edit.entry] = edit.messages or ()
    return edited


def _results(
    entries: Iterable[Entry], edited: Mapping[int, tuple[Message, ...]]
) -> tuple[dict[str, ToolMessage], dict[int, int], bool]:
    """The result of each call by its key, the last completed round of each run that matters, and whether an answer was
    stopped.
    """
    results: dict[str, ToolMessage] = {}
    stopped = False
    for entry in entries:
        for message in edited.get(entry.id, entry.messages) if edited else entry.messages:
            if type(message) is AssistantMessage:
                stopped = stopped or message.stop in STOPPED
            elif type(message) is ToolMessage:
                results.setdefault(message.call, message)
    if edited:
        for gone in (message for entry in entries if entry.id in edited for message in entry.messages):
            if isinstance(gone, ToolMessage) and gone.call not in results:
                results[gone.call] = ToolMessage(call=gone.call, name=gone.name, text=LEFT_OUT, error=gone.error)
    return results, _answered(entries) if stopped else {}, stopped


def _answered(entries: Iterable[Entry]) -> dict[int, int]:
    """The last round that each run completed, as it was stored: an edit does not bring a stopped answer back."""
    answered: dict[int, int] = {}
    for entry in entries:
        for message in entry.messages:
            if isinstance(message, AssistantMessage) and message.stop not in STOPPED:
                run, number = _round(entry)
                if run is not None and answered.get(run, -1) < number:
                    answered[run] = number
    return answered


def _round(entry: Entry) -> tuple[int | None, int]:
    data = entry.data
    if not isinstance(data, dict):
        return None, 0
    run, number = data.get("run"), data.get("round")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return run if isinstance(run, int) else None, number if isinstance(number, int) else 0


def _indexes(original: Iterable[Message], shown: Iterable[Message]) -> Iterator[int]:
    """Which call of the stored entry each shown one is: by place when none came or went, else by what it asks for."""
    before = [call for message in original for call in calls_of(message)]
    after = [call for message in shown for call in calls_of(message)]
    if len(before) == len(after):
        return count()
    free = list(range(len(before)))
    fresh = count(len(before))
    indexes: list[int] = []
    for call in after:
        asked = (call.name, call.arguments, call.raw)
        same = [index for index in free if (before[index].name, before[index].arguments, before[index].raw) == asked]
        indexes.append(same[0] if same else next(fresh))
        free = [index for index in free if index not in same[:1]]
    return iter(indexes)


# -- answers ------------------------------------------------------------------------------------


class _Rendering:
    """`messages` is valid so far, but may begin or end with an answer; `neighbours`: two answers touch; `missing`: a
    call had no result; `matched`: how many results had a call.
    """

    __slots__ = ("answered", "matched", "messages", "missing", "model", "neighbours", "results")

    def __init__(self, results: Mapping[str, ToolMessage], answered: Mapping[int, int], model: str) -> None:
        self.messages: list[Message] = []
        self.neighbours = False
        self.missing = False
        self.matched = 0
        self.results = results
        self.answered = answered
        self.model = model

    def place(self, entry: Entry, message: AssistantMessage, indexes: Iterator[int]) -> None:
        """Append an answer with the results of its calls, or what is left of it. `indexes` number the entry's calls."""
        stopped = message.stop in STOPPED
        if not stopped and _plain(message.parts):
            self._append(message)
            return
        parts: list[AssistantPart] = []
        replies: list[ToolMessage] = []
        said = False
        for part in message.parts:
            if isinstance(part, Text):
                if part.text and not part.text.isspace():
                    parts.append(part)
                    said = True
            elif isinstance(part, ToolCall):
                key, id = _ids(entry.id, next(indexes))
                result = self.results.get(key)
                if result is None:
                    self.missing = True
                else:
                    self.matched += 1
                if result is not None or not stopped:
                    name = _wire_name(part.name)
                    parts.append(ToolCall(name=name, arguments=part.arguments or {}, provider_id=id))
                    replies.append(_clean_result(result, id, name))
            elif part.complete and part.model == self.model and thought(part):
                parts.append(part)
        if stopped and not replies:
            self._place_stopped(entry, message)
        elif not stopped and not replies and len(parts) == len(message.parts) and said:
            self._append(message)
        elif said or replies:
            stop = "tool_calls" if stopped else message.stop
            self._append(AssistantMessage(parts=tuple(parts), stop=stop, model=message.model))
            self.messages += replies

    def _place_stopped(self, entry: Entry, message: AssistantMessage) -> None:
        run, number = _round(entry)
        text = text_of(message)
        if text and not text.isspace() and (run is None or self.answered.get(run, -1) < number):
            marked = Text(text=f"{text}\n\n{INTERRUPTED}")
            self._append(AssistantMessage(parts=(marked,), model=message.model))

    def _append(self, answer: AssistantMessage) -> None:
        self.neighbours = self.neighbours or (bool(self.messages) and isinstance(self.messages[-1], AssistantMessage))
        self.messages.append(answer)


def _merged(messages: Iterable[Message]) -> Iterator[Message]:
    """Neighbouring answers as one: many providers want roles to alternate."""
    for alike, group in groupby(messages, key=type):
        if alike is not AssistantMessage:
            yield from group
            continue
        answers = [message for message in group if isinstance(message, AssistantMessage)]
        parts = tuple(part for answer in answers for part in answer.parts)
        yield AssistantMessage(parts=parts, stop=answers[-1].stop, model=answers[-1].model)


# -- other messages -----------------------------------------------------------------------------


def _plain(parts: Sequence[UserPart | AssistantPart]) -> bool:
    """One text with something in it: nearly all that people and models say."""
    if len(parts) != 1:
        return False
    part = parts[0]
    return type(part) is Text and bool(part.text) and not part.text.isspace()


def _clean_user(message: UserMessage) -> UserMessage:
    if _plain(message.parts) or (message.parts and all(map(filled, message.parts))):
        return message
    parts = [_clean_part(part) for part in message.parts if isinstance(part, Image) or filled(part)]
    return UserMessage(parts=tuple(parts) or (Text(text=EMPTY_INPUT),))


def _clean_part(part: UserPart) -> UserPart:
    return part if filled(part) else Text(text=EMPTY_IMAGE)


def filled(part: UserPart) -> bool:
    """There is something in it."""
    if isinstance(part, Image):
        return bool(part.base64) and part.media_type.startswith("image/")
    return bool(part.text) and not part.text.isspace()


def thought(part: Thinking) -> bool:
    """A signature without text is how some models hide their reasoning; neither is nothing."""
    return bool(part.text) or part.signature is not None


def _clean_result(result: ToolMessage | None, id: str, name: str) -> ToolMessage:
    if result is None:
        return ToolMessage(call=id, name=name, text=OUTCOME_UNKNOWN, error="interrupted")
    text = result.text
    if not text or text.isspace():
        text = EMPTY_OUTPUT
    return ToolMessage(call=id, name=name, text=text, error=result.error)


@lru_cache(maxsize=1024)
def _wire_name(name: str) -> str:
    """Models invent names; one that no provider takes would block every later request (I20)."""
    if TOOL_NAME.fullmatch(name):
        return name
    return _NOT_IN_NAME.sub("_", name)[:64] or "unnamed"
