"""What must hold of a run: after each crash, and once it is over. Pure: records and notes in, complaints out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from perdure.harness.approval import asked_call
from perdure.harness.context import render
from perdure.harness.stored import TOOL
from perdure.harness.valid import valid
from perdure.messages import ToolMessage, text_of
from perdure.records import (
    Completed,
    Completing,
    Done,
    Entry,
    Held,
    Pending,
    Placed,
    Queued,
    Running,
    Submission,
    Task,
    Terminal,
    Unanswered,
    decode_entry,
    decode_submission,
)
from perdure.session.transcripts import cut
from perdure.testing.scenario.notes import Accepted, Effect, Note, Settled, Shown, of
from perdure.testing.scenario.stored import Stored
from perdure.testing.strict import broken_pairs

#: Tools without an effect of their own.
HANDED_ON = ("delegate", "deeper", "spawn")
#: Submissions of the abort variant that may end without an answer.
MAY_BE_ABORTED = ("main", "later", "steer")
#: How submissions of a variant and type may end, besides done.
MAY_END_SO = {("compact", "input"): ("reset",), ("compact", "summary"): ("stale",)}


def after_crash(stored: Stored, notes: Iterable[Note]) -> list[str]:
    """What is wrong in what a crash left: something that was seen is gone, or an effect came before its intent."""
    notes = list(notes)
    return [*_lost(stored, notes), *_unintended(stored, notes), *_unasked(stored, notes)]


def at_end(stored: Stored, notes: Iterable[Note], variant: str) -> list[str]:
    """What is wrong in what a finished run left."""
    notes = list(notes)
    return [
        *after_crash(stored, notes),
        *_unsettled(stored, notes, variant),
        *_repeated(notes),
        *_unfounded(stored, notes),
        *_invalid(stored),
        *_odd_outcomes(stored, notes),
        *(_agents(stored) if variant == "agents" else ()),
    ]


# -- nothing that was seen is lost --------------------------------------------------------------


def _lost(stored: Stored, notes: Iterable[Note]) -> Iterator[str]:
    for note in notes:
        match note:
            case Shown():
                for id, body in note.entries.items():
                    if stored.bodies.get(id) != body.encode() and _kept(stored, decode_entry(body.encode())):
                        yield f"entry {id} of commit {note.seq} was shown as {body}, stored is {stored.bodies.get(id)}"
                for id, body in note.submissions.items():
                    shown = decode_submission(body.encode())
                    if _kept(stored, shown):
                        yield from _went_back(shown, stored.submissions.get(id))
            case Accepted(name=name, id=id, what=what):
                known: Any = {"submission": stored.submissions, "task": stored.tasks, "item": stored.inbound}.get(what)
                if known is not None and (name if what == "item" else id) not in known:
                    yield f"{what} {id} ({name!r}) was accepted, and is not stored"
            case Settled(id=id, how=how, answer=answer):
                found = stored.submissions.get(id)
                if found is None or (_how(found), _answer(found)) != (how, answer):
                    yield f"submission {id} was told to be {how} by {answer}, stored is {found}"
            case _:
                pass
    ids: dict[str, set[int]] = {}
    for note in of(notes, Accepted):
        if note.what != "step":
            ids.setdefault(note.name, set()).add(note.id)
    yield from (f"{name!r} was accepted under several ids: {found}" for name, found in ids.items() if len(found) > 1)


def _kept(stored: Stored, shown: Entry | Submission) -> bool:
    """It was not deleted with its conversation."""
    conversation = stored.conversations.get(shown.conversation)
    return conversation is not None and not conversation.deleted


def _went_back(shown: Submission, stored: Submission | None) -> Iterator[str]:
    """A submission only goes forward."""
    if stored is None:
        yield f"submission {shown.id} was shown, and is not stored"
    elif not shown.live and stored.state != shown.state:
        yield f"submission {shown.id} was shown as {shown.state}, stored is {stored.state}"
    elif isinstance(shown.state, Placed) and isinstance(stored.state, Queued):
        yield f"submission {shown.id} was shown as {shown.state}, and is queued again"


def _how(item: Submission) -> str:
    return item.state.reason if isinstance(item.state, Unanswered) else type(item.state).__name__.lower()


def _answer(item: Submission) -> int | None:
    return item.state.answer if isinstance(item.state, Done) else None


# -- effects ------------------------------------------------------------------------------------


def _unintended(stored: Stored, notes: Iterable[Note]) -> Iterator[str]:
    """Every effect's intent is stored before it happens: at any later time the task has begun, or has ended."""
    for effect in of(notes, Effect):
        task = stored.tasks.get(effect.task)
        if task is None:
            yield f"effect {effect.key} of {effect.tool} happened, and its task is not stored"
        elif not _intended(task):
            yield f"effect {effect.key} of {effect.tool} happened, and its task is {task.state}: no intent is stored"


def _unasked(stored: Stored, notes: Iterable[Note]) -> Iterator[str]:
    """Each hook asks once about a call; and an effect that was asked about happens only once all of it was allowed."""
    asked: dict[int | None, dict[str, str | None]] = {}
    for task in stored.tasks.values():
        call = asked_call(task)
        if call is None:
            continue
        if call.hook in asked.setdefault(task.owner, {}):
            yield f"hook {call.hook} asked twice about the call of task {task.owner}"
        outcome = task.outcome
        decided = outcome.result["answer"]["decision"] if isinstance(outcome, Completed) else None
        asked[task.owner][call.hook] = decided
    for effect in of(notes, Effect):
        answers = asked.get(effect.task, {})
        if any(decision not in ("allow", "edit") for decision in answers.values()):
            yield f"effect {effect.key} of {effect.tool} happened, and was answered {answers}"


def _intended(task: Task) -> bool:
    state = task.state
    if isinstance(state, Running | Pending | Held):
        return state.begun is not None
    return isinstance(state, Completing | Terminal)


def _repeated(notes: Iterable[Note]) -> Iterator[str]:
    counted = Counter((effect.key, effect.tool) for effect in of(notes, Effect) if not effect.safe)
    yield from (f"unsafe effect {key} of {tool} happened {n} times" for (key, tool), n in counted.items() if n > 1)


def _unfounded(stored: Stored, notes: Iterable[Note]) -> Iterator[str]:
    """Where a result says that all went well, the effect happened."""
    happened = {effect.task for effect in of(notes, Effect)}
    for entry in stored.entries.values():
        for message in entry.messages:
            if not isinstance(message, ToolMessage) or message.name in HANDED_ON:
                continue
            if message.error is None and entry.task not in happened:
                yield f"entry {entry.id} says that {message.name} was done by task {entry.task}, and it was not"
    for task in stored.tasks.values():
        if task.kind.startswith("scenario.pay") and isinstance(task.outcome, Completed) and task.id not in happened:
            yield f"payment {task.id} completed, and never happened"


def _agents(stored: Stored) -> Iterator[str]:
    """Each sub-agent was made once, and the one in the background answered once."""
    owners = Counter(each.owner for each in stored.conversations.values() if each.owner is not None)
    if sorted(owners.values()) != [1, 1, 1]:
        yield f"three sub-agents were asked for, these tasks own so many conversations: {dict(owners)}"
    texts = [text_of(message) for entry in stored.entries.values() for message in entry.messages]
    told = [text for text in texts if text.startswith("[Agent ") and " answered]" in text]
    if len(told) != 1:
        yield f"the agent in the background answered {len(told)} times: {told}"


# -- the end ------------------------------------------------------------------------------------


def _unsettled(stored: Stored, notes: Iterable[Note], variant: str) -> Iterator[str]:
    live = [f"{task.id} ({task.kind}) {task.state}" for task in stored.tasks.values() if task.live]
    if live:
        yield f"tasks never ended: {live}"
    names = {note.id: note.name for note in of(notes, Accepted) if note.what == "submission"}
    for item in stored.submissions.values():
        how, name = _how(item), names.get(item.id)
        if item.live:
            yield f"submission {item.id} ({name!r}) never settled: {item.state}"
        elif _may_end(variant, item, how, name):
            continue
        elif how != "done":
            yield f"submission {item.id} ({name!r}) was not answered: {item.state}"
        elif item.type == "input" and _answer(item) not in stored.entries:
            yield f"submission {item.id} ({name!r}) has no answer: {item.state}"
    for item in stored.inbound.values():
        if item.taken is None or "submission" not in item.answer:
            yield f"item {item.id} was not acted on: {item.answer}"


def _may_end(variant: str, item: Submission, how: str, name: str | None) -> bool:
    """Whether a submission may end without an answer, as this one did."""
    if how == "aborted" and variant == "abort":
        return name is None or name in MAY_BE_ABORTED
    return how in MAY_END_SO.get((variant, item.type), ())


def _invalid(stored: Stored) -> Iterator[str]:
    for conversation in stored.conversations.values():
        entries = stored.visible(conversation.id)
        seqs = [entry.seq for entry in entries]
        if seqs != sorted(seqs):
            yield f"entries of conversation {conversation.id} are out of order"
        yield from broken_pairs(entries)
        if entries:
            yield from valid(render(cut(entries), model="scripted"), model="scripted")


def _odd_outcomes(stored: Stored, notes: Iterable[Note]) -> Iterator[str]:
    """Tasks end as their code says; code of the runtime never faults."""
    for task in stored.tasks.values():
        outcome = type(task.outcome).__name__
        if outcome == "Faulted" or (task.kind == TOOL and outcome not in ("Completed", "Aborted")):
            yield f"task {task.id} ({task.kind}) ended as {task.outcome}"
        if task.kind == "scenario.checkout":
            result = task.outcome.result if isinstance(task.outcome, Completed) else None
            if not result or (result["answer"], result["by"], result["receipt"], result["same"]) != (
                "no",
                "the client",
                "first",
                "first",
            ):
                yield f"the checkout ended as {task.outcome}"
