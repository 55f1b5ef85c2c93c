"""Open questions, as a person is told of them and as a line answers them. Pure."""

from __future__ import annotations

from typing import Any, cast

from perdure.commands.text import as_json, one_line
from perdure.commands.trail import Event
from perdure.errors import InvalidValue, UsageError
from perdure.harness.decisions import decision_of
from perdure.records import decode_json
from perdure.tasks.inspection import QuestionInfo


def question_event(question: QuestionInfo) -> Event:
    """`what` is asked, and the `remedy`; of an approval the `call`, too."""
    what = f"question {question.id} waits for an answer: {asked(question.call, question.payload)}"
    value = "allow" if question.call is not None else "VALUE"
    more = " (or always, deny, edit)" if question.call is not None else ""
    remedy = f"answer it with perdure answer {question.id} {value}{more}, then perdure resume"
    event: Event = {"question": question.id, "payload": question.payload, "what": what, "remedy": remedy}
    if question.call is not None:
        event["call"] = {name: question.call.get(name) for name in ("name", "arguments")}
    return event


def asked(call: Any, payload: Any) -> str:
    """What a question is about, in a line: the call with its arguments, and why it is asked about."""
    if call is None:
        return one_line(as_json(payload), 300)
    why = reasons(payload)
    return one_line(f"{call.get('name')} {as_json(call.get('arguments'))}{f' ({why})' if why else ''}", 400)


def reasons(payload: Any) -> str:
    """Why a call is asked about: a text, what permissions say, or other JSON."""
    if payload is None:
        return ""
    if isinstance(payload, str):
        return payload
    why = cast("dict[str, Any]", payload).get("why") if isinstance(payload, dict) else None
    return ", ".join(map(str, cast("list[Any]", why))) if isinstance(why, list) else as_json(payload)


def told(event: Event) -> str:
    """What a chat says of an open question."""
    if "call" not in event:
        return f"{event['what']}; the next line answers it"
    payload = event["payload"]
    rules = cast("dict[str, Any]", payload).get("always") if isinstance(payload, dict) else None
    always = f", always does so from now on ({', '.join(map(str, cast('list[Any]', rules)))})" if rules else ""
    return (
        f"{event['what']}; y allows it{always}, n REASON does not, edit {{…}} allows it with other arguments; "
        "anything else denies it and is told to the agent"
    )


def answer_of(event: Event, text: str) -> Any:
    """The value that a line answers with. Raises UsageError for a line that decides no call."""
    if "call" not in event:
        try:
            return decode_json(text.encode())
        except (ValueError, InvalidValue):
            return text
    decision_of(text)
    return text


def is_answer(event: Event, text: str) -> bool:
    """Whether a line answers, or means to; anything else is a message."""
    if "call" not in event or text.split(maxsplit=1)[0].lower() in ("edit", "e") or text.startswith("{"):
        return True
    try:
        decision_of(text)
    except UsageError:
        return False
    return True
