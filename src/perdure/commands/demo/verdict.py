"""What the verifier makes of raw rows and lines: pure functions, one for each promise that perdure makes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.commands.demo.rows import Json, Rows

#: Answers that never finished: kept for people, and no part of the calls and results.
_STOPPED = frozenset({"aborted", "error", "interrupted"})


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model asked for, by its identity: the entry, and its place there."""

    key: str
    conversation: int
    name: str
    arguments: Json


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `unknown`: calls whose outcome a kill left unknown, which were not repeated."""

    accepted: int
    answered: int
    lost: int
    repeated_unsafe: int
    transcript_valid: bool
    payments: int
    calls: int
    unknown: int
    conversations: int
    entries: int
    problems: list[str]

    @property
    def good(self) -> bool:
        """Nothing was lost, repeated or invalid, and everything accepted was answered."""
        broken = self.lost or self.repeated_unsafe or self.problems or not self.transcript_valid
        return not broken and self.answered == self.accepted


def judge(rows: Rows) -> Verdict:
    """Compare what was promised and what happened with what the store says."""
    calls = {call.key: call for entry in rows.entries for call in _calls(entry)}
    results = [message for entry in rows.entries for message in _of_type(entry, "tool")]
    accepted = {str(promise.get("request")): promise for promise in rows.promises}
    lost = [text for promise in accepted.values() if (text := _lost(promise, rows)) is not None]
    repeated = list(_repeated(rows, calls))
    invalid = [*rows.wrong, *_transcripts(rows), *_unintended(rows, calls), *_untrue(rows, calls, results)]
    invalid += [*_strange_submissions(rows, accepted), *_unfinished(rows)]
    return Verdict(
        accepted=len(accepted),
        answered=len(accepted) - len(lost),
        lost=len(lost),
        repeated_unsafe=len(repeated),
        transcript_valid=not invalid,
        payments=len(rows.payments),
        calls=len(calls),
        unknown=sum(result.get("error") == "interrupted" for result in results),
        conversations=len(rows.conversations),
        entries=len(rows.entries),
        problems=[*lost, *repeated, *invalid],
    )


# -- promises ------------------------------------------------------------------------------------


def _lost(promise: Json, rows: Rows) -> str | None:
    """What is missing of an accepted errand; None where it was answered."""
    request = str(promise.get("request"))
    found = rows.submissions.get(request)
    if found is None:
        return f"{request} was accepted, and the store does not know it"
    if found["id"] != promise.get("submission"):
        return f"{request} was accepted as submission {promise.get('submission')}, the store has {found['id']}"
    state = found["state"]
    if state["type"] != "done":
        return f"{request} was accepted, and is {state['type']} {state.get('reason', '')}".rstrip()
    answer = next((entry for entry in rows.entries if entry["id"] == state.get("answer")), None)
    said = [] if answer is None or answer["id"] <= state["entry"] else _of_type(answer, "assistant")
    final = [message for message in said if message.get("stop", "stop") == "stop" and _text(message)]
    if answer is None or not final or answer["conversation"] != found["conversation"]:
        return f"{request} was accepted, and its answer (entry {state.get('answer')}) is not there"
    return None


def _strange_submissions(rows: Rows, accepted: dict[str, Json]) -> Iterator[str]:
    """Each errand is in the transcript once, and nothing is there that nobody asked for."""
    placed = Counter(entry["data"]["submission"] for entry in rows.entries if entry["kind"] == "perdure.user")
    for request, found in rows.submissions.items():
        if request not in accepted:
            yield f"the store has {request}, which was never accepted"
        if placed[found["id"]] != 1:
            yield f"{request} is in the transcript {placed[found['id']]} times"
        key = rows.conversations.get(found["conversation"])
        if request in accepted and key != accepted[request].get("conversation"):
            yield f"{request} was meant for conversation {accepted[request].get('conversation')!r} and went to {key!r}"
    known = {found["id"] for found in rows.submissions.values()}
    yield from (
        f"the transcript has submission {id}, which the store does not know" for id in placed if id not in known
    )


# -- effects -------------------------------------------------------------------------------------


def _repeated(rows: Rows, calls: dict[str, Call]) -> Iterator[str]:
    """Effects that must not be repeated, and were: payments by idempotency key, commands by what they append."""
    for key, times in Counter(payment.get("key") for payment in rows.payments).items():
        if times > 1:
            yield f"payment {key} was made {times} times"
    asked = Counter(_dispatches(call) for call in calls.values() if call.name == "bash")
    for errand, times in Counter(rows.dispatched).items():
        if times > max(asked[errand], 1):
            yield f"the command of {errand} was run {times} times"


def _unintended(rows: Rows, calls: dict[str, Call]) -> Iterator[str]:
    """Effects without an intent in the store."""
    for payment in rows.payments:
        session, _, number = str(payment.get("key")).partition("/")
        task = rows.tasks.get(int(number)) if number.isdigit() and session in rows.sessions else None
        call = None if task is None or task["kind"] != "perdure.tool" else calls.get(str(task["input"]["call"]))
        meant = {"amount": payment.get("amount"), "to": payment.get("to")}
        if call is None or call.name != "pay" or call.arguments != meant:
            yield f"payment {payment.get('key')} has no intent in the store: {meant}"
    asked = {_dispatches(call) for call in calls.values() if call.name == "bash"}
    yield from (f"nobody intended the command of {errand}" for errand in set(rows.dispatched) if errand not in asked)


def _untrue(rows: Rows, calls: dict[str, Call], results: list[Json]) -> Iterator[str]:
    """Results that say that something was done, which was not."""
    paid = {calls_of_task for payment in rows.payments if (calls_of_task := _call_of(payment, rows)) is not None}
    for result in results:
        call = calls.get(result["call"])
        if call is None or result.get("error") is not None:
            continue
        match call.name:
            case "pay":
                done = call.key in paid
            case "bash":
                done = _dispatches(call) in rows.dispatched
            case "write":
                done = rows.files.get(call.arguments["path"]) == call.arguments["content"]
            case _:
                done = False
        if not done:
            yield f"call {call.key} of {call.name} is said to have succeeded, and did not happen: {call.arguments}"


def _call_of(payment: Json, rows: Rows) -> str | None:
    number = str(payment.get("key")).partition("/")[2]
    task = rows.tasks.get(int(number)) if number.isdigit() else None
    return None if task is None else task["input"]["call"]


def _dispatches(call: Call) -> str:
    """The line that a command appends: its last word."""
    return str(call.arguments.get("command")).rpartition(" ")[2]


# -- transcripts ---------------------------------------------------------------------------------


def _transcripts(rows: Rows) -> Iterator[str]:
    """Each call has one result, at once after it; no result without a call; nothing empty; an answer at the end."""
    by_conversation: defaultdict[int, list[Json]] = defaultdict(list)
    for entry in rows.entries:
        by_conversation[entry["conversation"]].append(entry)
    for conversation, entries in by_conversation.items():
        where = f"conversation {rows.conversations.get(conversation)!r}"
        yield from (f"{where}: {text}" for text in _transcript(entries))


def _transcript(entries: list[Json]) -> Iterator[str]:
    waiting: dict[str, str] = {}
    last: Json = {}
    for entry in entries:
        at = f"entry {entry['id']}"
        if entry["seq"] < last.get("seq", 0):
            yield f"{at} belongs to an earlier commit than the one before it"
        for message in entry.get("messages", []):
            if not _text(message) and not _parts(message, "call"):
                yield f"{at} is empty"
            if message["type"] == "tool":
                name = waiting.pop(message["call"], None)
                if name != message["name"]:
                    yield f"{at} is a result for call {message['call']} of {message['name']}, which waits for none"
            elif waiting:
                yield f"{at} comes before the results of {', '.join(waiting)}"
        waiting |= {call.key: call.name for call in _calls(entry)}
        last = entry
    yield from (f"call {key} of {name} has no result" for key, name in waiting.items())
    final = _of_type(last, "assistant")
    if not final or final[-1].get("stop", "stop") != "stop":
        yield f"it ends with entry {last['id']}, which is no answer"


def _unfinished(rows: Rows) -> Iterator[str]:
    """Everything came to rest, and the store was closed in order."""
    for task in rows.tasks.values():
        if task["state"]["type"] != "terminal":
            yield f"task {task['id']} is {task['state']['type']}"
    for key, session in rows.sessions.items():
        if session["open"] or session["owner"] is not None:
            yield f"session {key!r} was not closed"


# -- parts of raw records ------------------------------------------------------------------------


def _calls(entry: Json) -> list[Call]:
    """The calls of an answer that finished, numbered as they stand there."""
    answers = [message for message in _of_type(entry, "assistant") if message.get("stop", "stop") not in _STOPPED]
    found = [part for message in answers for part in _parts(message, "call")]
    return [
        Call(
            key=f"{entry['id']}.{index}",
            conversation=entry["conversation"],
            name=part["name"],
            arguments=part.get("arguments") or {},
        )
        for index, part in enumerate(found)
    ]


def _of_type(entry: Json, kind: str) -> list[Json]:
    return [message for message in entry.get("messages", []) if message["type"] == kind]


def _parts(message: Json, kind: str) -> list[Json]:
    return [part for part in message.get("parts", []) if part["type"] == kind]


def _text(message: Json) -> str:
    texts: list[Any] = [message.get("text", ""), *(part["text"] for part in _parts(message, "text"))]
    return "".join(texts).strip()
