"""Asking hooks (H24, H40): supervised, with a time limit, outside of commits. What they break is reported and kept.

Each function asks the hooks of one name in order. A hook that fails is passed over, but for `before_tool`, which has
its own rule at the gate.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from perdure.errors import PerdureError, StorageError
from perdure.harness.gate import MOST_TOLD, told
from perdure.harness.hooks import (
    AnswerReceived,
    CallReturned,
    CompactionToDo,
    HookName,
    Refuse,
    Replace,
    RequestToSend,
    RoundDone,
    Summary,
)
from perdure.harness.loadout import Hook, Loadout
from perdure.harness.output import clip
from perdure.harness.stored import FAILURES, REQUEST
from perdure.harness.supervision import Supervised
from perdure.harness.valid import valid
from perdure.messages import AssistantMessage, Message, ToolErrorCode, UserMessage, user
from perdure.model import Request
from perdure.records import ConversationId, TaskId
from perdure.session.transaction import Transaction
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction, TaskTransaction
from perdure.values import clean, clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class NoAnswer(Exception):
    """A hook said what is no answer of its kind."""


async def ask(harness: Harness, hook: Hook, seen: object, task: TaskId) -> object:
    """What a hook says. Raises what it raised, TimeUp, CancelledWithin or Broke; being told to stop passes through."""
    asked = Supervised(harness.watch, _said(hook, seen), seconds=hook.seconds)
    try:
        return await asked.result()
    except Exception:
        if not asked.child.done():  # it ignores its time limit
            harness.scheduler.leave_behind(asked.child, task)
        raise


async def _said(hook: Hook, seen: object) -> object:
    value: object = hook.function(seen)
    return await value if inspect.isawaitable(value) else value


# -- the hooks of each name ---------------------------------------------------------------------


async def pinned_request(
    harness: Harness, invocation: Invocation, loadout: Loadout, request: Request, pin: dict[str, Any]
) -> Request:
    """The request as before_request hooks want it, committed before it is sent: a retry and a recovered one are the
    same request, whatever the hooks would say by then (H11).
    """
    hooks = loadout.hooks("before_request")
    of = [pin["round"], pin["cutoff"]]
    kept = await harness.line.memory.loaded(("task", invocation.id), (REQUEST.kind, ""))
    if kept is not None and kept.value.get("of") == of:
        return _with(request, kept.value)
    if not hooks:
        return request
    messages, place = request.messages, (invocation.conversation, invocation.id)
    for hook in hooks:
        seen = RequestToSend(
            conversation=invocation.conversation,
            run=invocation.id,
            round=pin["round"],
            model=request.model,
            messages=copied(messages),
            system=request.system,
            tools=tuple(tool.name for tool in request.tools),
        )
        try:
            messages = _messages(await ask(harness, hook, seen, invocation.id), messages, request.model)
        except Exception as error:
            await report(harness, place, hook, "before_request", error)
    change = _change(request.messages, messages)

    async def body(tx: InvocationTransaction) -> None:
        draft = await tx.doc(REQUEST, invocation.id)
        draft["of"], draft["change"] = of, change

    await invocation.record(body)
    return msgspec.structs.replace(request, messages=messages)


def _messages(said: object, before: tuple[Message, ...], model: str) -> tuple[Message, ...]:
    """What a hook made of the messages. Raises NoAnswer for what a provider would refuse (O-4)."""
    if said is None:
        return before
    if isinstance(said, str) or not isinstance(said, Sequence):
        raise NoAnswer(f"before_request answers with a list of messages, not with a {type(said).__name__}")
    try:
        messages = msgspec.convert(clean(msgspec.to_builtins(list(cast("Sequence[Any]", said)))), tuple[Message, ...])
    except (TypeError, ValueError, msgspec.ValidationError, PerdureError) as error:
        raise NoAnswer(f"before_request answers with a list of messages: {error}") from None
    wrong = valid(messages, model=model)
    if wrong:
        raise NoAnswer(f"no provider takes these messages: {wrong[0]}")
    return messages


def _change(before: tuple[Message, ...], after: tuple[Message, ...]) -> dict[str, Any] | None:
    """What differs, between as much as is the same at the beginning and at the end."""
    if before == after:
        return None
    most = min(len(before), len(after))
    head = next((at for at in range(most) if before[at] != after[at]), most)
    tail = next((at for at in range(most - head) if before[-1 - at] != after[-1 - at]), most - head)
    middle = after[head : len(after) - tail]
    return {"head": head, "tail": tail, "messages": msgspec.to_builtins(middle)}


def _with(request: Request, kept: dict[str, Any]) -> Request:
    change = kept["change"]
    if change is None:
        return request
    before, middle = request.messages, msgspec.convert(change["messages"], tuple[Message, ...])
    messages = (*before[: change["head"]], *middle, *before[len(before) - change["tail"] :])
    return msgspec.structs.replace(request, messages=messages)


async def observe(
    harness: Harness, loadout: Loadout, name: HookName, seen: AnswerReceived | RoundDone, task: TaskId
) -> None:
    """Tell the hooks that only look on: after_response and after_tools."""
    for hook in loadout.hooks(name):
        own = seen
        if isinstance(seen, AnswerReceived):
            own = msgspec.structs.replace(seen, message=copied([seen.message])[0])
        try:
            await ask(harness, hook, own, task)
        except Exception as error:
            await report(harness, (ConversationId(seen.conversation), task), hook, name, error)


async def on_yield(harness: Harness, loadout: Loadout, seen: AnswerReceived) -> tuple[UserMessage, str] | None:
    """The message with which the run goes on, and whose it is: of the first hook that has one. None: the run ends."""
    place = (ConversationId(seen.conversation), TaskId(seen.run))
    for hook in loadout.hooks("on_yield"):
        own = msgspec.structs.replace(seen, message=copied([seen.message])[0])
        try:
            said = await ask(harness, hook, own, place[1])
            if said is not None:
                return _user_message(said), hook.extension
        except Exception as error:
            await report(harness, place, hook, "on_yield", error)
    return None


def _user_message(said: object) -> UserMessage:
    if not isinstance(said, str | UserMessage):
        raise NoAnswer(f"on_yield answers with a text, a user message or None, not with a {type(said).__name__}")
    message = user(clean_text(said)) if isinstance(said, str) else said
    kept = msgspec.convert(clean(msgspec.to_builtins(message)), UserMessage)
    wrong = valid([kept])
    if wrong:
        raise NoAnswer(f"on_yield answers with a message that no provider takes: {wrong[0]}")
    return kept


async def after_tool(harness: Harness, loadout: Loadout, seen: CallReturned, task: TaskId) -> Replace | None:
    """What the model is told instead: each hook sees what the one before made of it. None: what the call gave."""
    replaced: Replace | None = None
    for hook in loadout.hooks("after_tool"):
        own = msgspec.structs.replace(seen, arguments=clean(seen.arguments), details=clean(seen.details))
        try:
            said = await ask(harness, hook, own, task)
            if said is not None:
                replaced = _replacement(said)
                seen = msgspec.structs.replace(seen, text=replaced.text, error=replaced.error)
        except Exception as error:
            await report(harness, (ConversationId(seen.conversation), task), hook, "after_tool", error)
    return replaced


def _replacement(said: object) -> Replace:
    if not isinstance(said, Replace):
        raise NoAnswer(f"after_tool answers with perdure.Replace or None, not with a {type(said).__name__}")
    if not isinstance(said.text, str) or (said.error is not None and said.error not in get_args(ToolErrorCode)):  # type: ignore[reportUnnecessaryIsInstance]
        raise NoAnswer(f"after_tool replaces a result with a text and one of the error codes, not with {said!r}")
    return Replace(clean_text(said.text), said.error)


async def before_compact(
    harness: Harness, loadout: Loadout, seen: CompactionToDo, task: TaskId
) -> Refuse | Summary | None:
    """Whether this compaction may happen, or its summary: the first hook that says either decides."""
    for hook in loadout.hooks("before_compact"):
        own = msgspec.structs.replace(seen, messages=copied(seen.messages))
        try:
            said = await ask(harness, hook, own, task)
            match said:
                case None:
                    continue
                case Refuse(reason=str(reason)):
                    return Refuse(clip(clean_text(reason), MOST_TOLD))
                case Summary(text=str(text)) if text and not text.isspace():
                    return Summary(clean_text(text))
                case _:
                    raise NoAnswer(
                        f"before_compact answers with perdure.Refuse, Summary or None, not with {said!r:.200}"
                    )
        except Exception as error:
            await report(harness, (ConversationId(seen.conversation), task), hook, "before_compact", error)
    return None


def copied(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages, those with something that can be changed as copies."""
    return tuple(
        msgspec.convert(msgspec.to_builtins(message), AssistantMessage)
        if isinstance(message, AssistantMessage)
        else message
        for message in messages
    )


# -- what fails ---------------------------------------------------------------------------------


async def report(
    harness: Harness, place: tuple[ConversationId, TaskId], hook: Hook, name: str, error: Exception
) -> None:
    """Tell that a hook failed, and keep it in the conversation's `perdure.failures`. Never raises."""
    conversation, task = place
    metadata = {"extension": hook.extension, "hook": name, "task": task, "error": type(error).__name__}
    harness.telemetry.emit("perdure.hook.failed", metadata=metadata)
    try:
        async with harness.line.commit(TaskTransaction) as tx:
            await note_failure(tx, conversation, f"{hook.extension}.{name}", error)
    except (StorageError, PerdureError):  # nothing can be kept now; the run finds that out by itself
        return


async def note_failure(tx: Transaction, conversation: ConversationId, what: str, error: Exception) -> None:
    """Stage that something of an extension failed: how often, how and when at last."""
    failures = await tx.doc(FAILURES, conversation)
    times = failures[what]["times"] if what in failures else 0
    failures[what] = {"times": times + 1, "error": told(error), "at": tx.now}
