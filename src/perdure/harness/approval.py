"""Approvals (K37, H24): hooks judge a call, one of them may ask, and somebody decides, once.

An approval is a question that the call's task owns while it stands at its gate. What the gate knows is in the task's
checkpoint: the arguments so far, which hooks have judged them, and whose question was answered. So it goes on from
there in any process, and nothing that was answered is asked again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from perdure.errors import InvalidArguments, NotFound, UsageError
from perdure.harness.decisions import Allow, Ask, AskedCall, Deny, Edit, decision_of, stored
from perdure.harness.gate import MOST_TOLD, told
from perdure.harness.hooks import Block, CallToJudge, Rewrite
from perdure.harness.loadout import Hook
from perdure.harness.output import clip
from perdure.harness.stored import PERMISSIONS
from perdure.harness.supervision import Supervised
from perdure.records import Aborted, ConversationId, Outcome, Task, TaskId
from perdure.session.reading import snapshot
from perdure.settle.state import Candidate
from perdure.tasks import questions
from perdure.tasks.invocation import Invocation
from perdure.tasks.questions import answer, answered
from perdure.tasks.transaction import QUESTION, InvocationTransaction, TaskTransaction
from perdure.values import clean, clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

#: Who decided where nobody did: a newer message that has to reach the model.
STEER = "steer"
SUPERSEDED = Deny("superseded by a newer message")


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """How far a call got: `judged` and `answered` are names of hooks, which hold for these arguments."""

    arguments: dict[str, Any]
    judged: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()


class Asking(msgspec.Struct, frozen=True):
    """A hook asks, at this point of the gate."""

    hook: str
    ask: Ask
    at: Gate


# -- judging ------------------------------------------------------------------------------------


async def judge_by_hooks(
    harness: Harness, invocation: Invocation, hooks: Sequence[Hook], at: Gate
) -> Gate | Block | Asking:
    """Let the hooks that have not judged yet do so, in their order, until one blocks or asks."""
    name = invocation.input["name"]
    allowed, sandbox = await _allowed(harness, invocation), harness.sandbox
    for hook, known in zip(hooks, names_of(hooks), strict=True):
        if known in at.judged:
            continue
        seen = CallToJudge(
            conversation=invocation.conversation,
            name=name,
            arguments=cast("dict[str, Any]", clean(at.arguments)),  # a copy: a hook may change what it is given
            allowed=allowed,
            directory=sandbox.root if sandbox is not None else "",
            scratch=sandbox.scratch if sandbox is not None else "",
        )
        verdict = await _judged(harness, hook, seen)
        if isinstance(verdict, Block):
            return verdict
        arguments = verdict.arguments if isinstance(verdict, Rewrite) else at.arguments
        at = Gate(arguments=arguments, judged=(*at.judged, known), answered=at.answered)
        if isinstance(verdict, Ask) and known not in at.answered:
            return Asking(known, verdict, at)
    return at


async def _judged(harness: Harness, hook: Hook, seen: CallToJudge) -> Block | Rewrite | Ask | None:
    """What a hook says. One that fails, or says what is no answer, must not let the call through (H24)."""
    try:
        verdict: object = await Supervised(harness.watch, _answer_of(hook, seen), seconds=hook.seconds).result()
        if isinstance(verdict, Rewrite):
            rewritten: object = clean(verdict.arguments)
            if not isinstance(rewritten, dict):
                return Block("the check of this call rewrote its arguments to what is no JSON object")
            return Rewrite(cast("dict[str, Any]", rewritten))
        if isinstance(verdict, Block):
            return Block(clean_text(verdict.reason))
        if isinstance(verdict, Ask):
            return _checked(verdict)
    except Exception as error:
        return Block(f"the check of this call failed: {told(error)}")
    if verdict is not None:
        return Block(f"the check of this call answered with a {type(verdict).__name__}, which is no answer")
    return None


def _checked(ask: Ask) -> Ask:
    """The question as it can be kept. Raises UsageError for one that cannot be asked."""
    default, deadline = decision_of(ask.default), ask.deadline
    if isinstance(default, Allow) and default.always:
        raise UsageError("perdure.Ask(default=Allow(always=True)): what nobody answered is allowed for good by nobody")
    if deadline is not None and not 0 <= deadline < float("inf"):
        raise UsageError(f"perdure.Ask(deadline={deadline!r}): give a number of seconds from when it is asked")
    return Ask(payload=clean(ask.payload), deadline=deadline, default=default, remember=tuple(map(clean, ask.remember)))


async def _answer_of(hook: Hook, seen: CallToJudge) -> object:
    value: object = hook.function(seen)
    return await value if inspect.isawaitable(value) else value


def names_of(hooks: Sequence[Hook]) -> list[str]:
    """A name for each hook that another start gives it too: its extension, its function, and which of these it is."""
    found: list[str] = []
    for hook in hooks:
        function: Any = hook.function if hasattr(hook.function, "__qualname__") else type(hook.function)
        name = f"{hook.extension}.{function.__qualname__}"
        count = sum(each.partition("#")[0] == name for each in found)
        found.append(f"{name}#{count + 1}" if count else name)
    return found


async def _allowed(harness: Harness, invocation: Invocation) -> tuple[Any, ...]:
    """What was allowed for good in the call's conversation."""
    known: dict[str, Any] | None = await snapshot(harness.line, PERMISSIONS, invocation.conversation, "")
    return tuple(known["allow"]) if known else ()


# -- asking -------------------------------------------------------------------------------------


async def ask(tx: InvocationTransaction, asking: Asking, then: Any, rest: dict[str, Any]) -> bool:
    """Stage the question and the wait for it. False where a newer message waits to reach the model: it is not asked."""
    if steered(tx.candidate, tx.own.conversation):
        return False
    asked, at = asking.ask, asking.at
    call = AskedCall(name=tx.own.input["name"], arguments=at.arguments, hook=asking.hook, remember=list(asked.remember))
    question = tx.ask(
        asked.payload,
        owner=tx.invocation,
        deadline=None if asked.deadline is None else tx.now + asked.deadline,
        default=stored(decision_of(asked.default)),
        call=msgspec.to_builtins(call),
    )
    await tx.wait([question], then=then, question=question.id, hook=asking.hook, at=msgspec.to_builtins(at), rest=rest)
    return True


def steered(view: Candidate, conversation: ConversationId) -> bool:
    """Whether a steer is queued here, or in a conversation whose work this is: it joins when the round is over."""
    while True:
        if any(item.type == "input" and item.mode == "steer" for item in view.queued(conversation)):
            return True
        home = view.conversation(conversation)
        owner = None if home is None or home.owner is None else view.task(home.owner)
        if owner is None:
            return False
        conversation = owner.conversation


def decided(outcome: Outcome, hook: str, at: Gate) -> Gate | Block:
    """What the answer makes of the gate: open at this point, or from its start for other arguments, or shut."""
    given, value, by = answered(outcome)
    if not given:
        reason = outcome.reason if isinstance(outcome, Aborted) else "the question ended without an answer"
        return refusal(Deny(f"the question was withdrawn: {reason}"), None)
    try:
        decision = decision_of(value)
    except UsageError as error:  # answered below this layer, by code that is not ours
        decision = Deny(str(error))
    match decision:
        case Deny():
            return refusal(decision, by)
        case Edit(arguments=arguments):
            return Gate(arguments=arguments, answered=(*at.answered, hook))
        case Allow():
            return Gate(arguments=at.arguments, judged=at.judged, answered=(*at.answered, hook))


def refusal(decision: Deny, by: str | None) -> Block:
    """What the model is told of a call that was denied."""
    whose = f" by {by}" if by not in (None, STEER, "deadline") else ""
    return Block(f"denied{whose}{f': {decision.reason}' if decision.reason else ''}")


# -- deciding -----------------------------------------------------------------------------------


def asked_call(task: Task) -> AskedCall | None:
    """The call that a question is about; None for a question that is no approval."""
    found = cast("dict[str, Any]", task.input).get("call") if task.kind == QUESTION else None
    if found is None:
        return None
    try:
        return msgspec.convert(found, AskedCall)
    except msgspec.ValidationError:  # a question of somebody's own
        return None


async def decide(
    harness: Harness, tx: TaskTransaction, id: TaskId, value: Any, *, by: str | None = None, at: float | None = None
) -> None:
    """Answer a question in this commit, an approval with a decision that fits it. It was said at `at`, or now.

    Raises what `tasks.questions.answer` raises, and UsageError for what does not decide the call; then the question
    stays open and nothing is staged.
    """
    task = tx.task(id)
    call = None if task is None else asked_call(task)
    if task is None or call is None:
        await answer(tx, id, value, by=by, at=at)
        return
    decision = decision_of(value)
    if isinstance(decision, Edit):
        _check_arguments(harness, call, decision.arguments)
    always = isinstance(decision, Allow) and decision.always
    if always and not call.remember:
        raise UsageError(f"question {id} cannot be answered for good, there is nothing to remember: answer allow")
    await answer(tx, id, stored(decision), by=by, at=at)
    if always:
        own = await tx.doc(PERMISSIONS, task.conversation)
        known = own["allow"].lend()
        for each in call.remember:
            if each not in known:
                own["allow"].append(each)


async def answer_here(harness: Harness, id: TaskId, value: Any, by: str | None) -> None:
    """Answer a question of an open session in a commit of its own."""
    async with harness.line.commit(TaskTransaction) as tx:
        await decide(harness, tx, id, value, by=by)


def _check_arguments(harness: Harness, call: AskedCall, arguments: dict[str, Any]) -> None:
    """Raise UsageError where the call could not run with them."""
    try:
        ready = harness.installed.ready(call.name)
        ready.described.validate(cast("dict[str, Any]", clean(arguments)))
    except NotFound:
        raise UsageError(
            f"{call.name} is not installed here, so its new arguments cannot be checked: nothing was answered. "
            "Answer where it is (perdure answer --tools MODULE:NAME), or with allow or deny"
        ) from None
    except InvalidArguments as error:
        raise UsageError(
            f"the new arguments do not fit {call.name}, and nothing was answered: {clip(str(error), MOST_TOLD)}"
        ) from None
    except UsageError:
        raise
    except Exception as error:  # a validator of the tool's own types may raise anything
        raise UsageError(f"the new arguments do not fit {call.name}, and nothing was answered: {told(error)}") from None


async def supersede(tx: TaskTransaction, conversation: ConversationId) -> None:
    """A steer has to reach the model: approvals that its work waits for are answered as denied (K46, I37)."""
    for task in list(_below(tx.candidate, conversation)):
        if asked_call(task) is not None and tx.task(task.id) is not None:
            questions.decide(tx, task, stored(SUPERSEDED), by=STEER)


def _below(view: Candidate, conversation: ConversationId) -> Iterator[Task]:
    """Live ordinary work of a conversation, as this commit has it."""
    todo = [task for task in view.scope(conversation) if not task.background]
    while todo:
        task = todo.pop()
        yield task
        todo += view.children(task.id)
        for owned in view.owned(task.id):
            todo += [each for each in view.scope(owned) if not each.background]
