"""The invariants, checked on published state after each commit, and at the end on storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from perdure.app.session import Session
from perdure.harness.anchor import REPORT
from perdure.harness.context import render
from perdure.harness.runs import run_of
from perdure.harness.stored import GENERATION, LIVE
from perdure.harness.valid import valid
from perdure.messages import text_of
from perdure.records import (
    Completing,
    Outside,
    Placed,
    Running,
    Task,
    Waiting,
    decode_conversation,
    decode_entry,
    decode_submission,
    decode_task,
)
from perdure.session.line import Line
from perdure.session.transcripts import cut
from perdure.settle.state import State
from perdure.testing.simulation.ledger import Ledger


def look(line: Line) -> Iterator[str]:
    """What is wrong with published state, if anything."""
    state = line.memory.published
    yield from _indexes(state)
    for task in state.tasks.values():
        if task.owner is not None and task.owner not in state.tasks:
            yield f"task {task.id} ({task.kind}) lives, its owner {task.owner} has ended"
        conversation = state.conversations.get(task.conversation)
        if conversation is None:
            yield f"task {task.id} lives in conversation {task.conversation}, which is not in memory"
        elif conversation.owner is not None and conversation.owner not in state.tasks and not _on_its_way_out(task):
            yield f"task {task.id} lives in conversation {conversation.id}, whose owner {conversation.owner} has ended"
        match task.state:
            case Waiting(on=on, policy=policy) if not isinstance(policy, Outside):
                if not any(id in state.tasks for id in on):
                    yield f"task {task.id} waits for {list(on)}, which all have ended"
            case Completing() if not _has_work(state, task.id):
                yield f"task {task.id} is completing and owns no live work"
            case _:
                pass
        shelf = line.memory.shelves.published.get(("task", task.id))  # read again only when needed after a restart
        if task.kind == GENERATION and shelf is not None and (LIVE.kind, "") not in shelf:
            yield f"run {task.id} has no live document"
    for submission in state.submissions.values():
        if isinstance(submission.state, Placed) and submission.state.run not in state.tasks:
            yield f"submission {submission.id} waits for run {submission.state.run}, which has ended"
    for id in state.scopes:
        runs = [task for task in map(state.tasks.__getitem__, state.scopes[id]) if task.kind == GENERATION]
        if len(runs) > 1:
            yield f"conversation {id} has {len(runs)} live runs"
        if (run_of(state, id) is not None) != bool(runs):
            yield f"conversation {id} says busy={run_of(state, id) is not None}"


def _on_its_way_out(task: Task) -> bool:
    """A background task, which owners do not wait for, but do stop."""
    return task.background and task.abort is not None


def _has_work(state: State, id: Any) -> bool:
    if state.children.get(id):
        return True
    return any(
        not state.tasks[task].background for owned in state.owned.get(id, ()) for task in state.scopes.get(owned, ())
    )


def _indexes(state: State) -> Iterator[str]:
    """The indexes equal what a naive look at the records gives."""
    naive = State()
    for conversation in state.conversations.values():
        naive.put_conversation(conversation)
    for task in state.tasks.values():
        naive.put_task(task)
    for submission in state.submissions.values():
        naive.put_submission(submission)
    for name in ("children", "scopes", "owned", "waiters", "runs", "queued", "suspects"):
        mine, theirs = _sorted(getattr(state, name)), _sorted(getattr(naive, name))
        if mine != theirs:
            yield f"index {name} is {mine}, the records say {theirs}"


def _sorted(index: dict[Any, Any]) -> dict[Any, Any]:
    return {key: None if index[key] is None else sorted(index[key]) for key in sorted(index)}


def running_without_runner(line: Line, runners: Any) -> Iterator[str]:
    """Reserved work that nobody runs, once everything published was looked at."""
    for task in line.memory.published.tasks.values():
        if isinstance(task.state, Running) and task.id not in runners:
            yield f"task {task.id} ({task.kind}) is reserved and nobody runs it"


async def branches(session: Session, ledger: Ledger) -> None:
    """Every fork that nobody deleted sees what it saw when it was made, and what was asked of models was counted."""
    for id, seen in ledger.forks.items():
        fork = await session.find(id)
        now = [entry.id async for entry in fork.history()]
        if now[len(now) - len(seen) :] != seen:
            ledger.violated(f"fork {id} saw entries {seen} when it was made, and now {now}")
    rows = (await session.usage())["models"].values()
    counted = sum(row["requests"] for row in rows)
    if counted < ledger.counts.get("requests", 0):
        ledger.violated(f"{ledger.counts['requests']} requests were sent, {counted} were counted")


async def final(storage: Any, session: str, ledger: Ledger, model: str) -> None:
    """After everything came to rest: nothing accepted is lost, every transcript is valid, ids ascend."""
    for id, (key, _) in ledger.accepted.items():
        body = await storage.read_submission(session, id)
        if body is None:
            ledger.violated(f"accepted submission {id} of {key!r} is gone")
        elif decode_submission(body).live:
            ledger.violated(f"accepted submission {id} of {key!r} never settled: {decode_submission(body).state}")
    live = [decode_task(body) for body in await storage.scan_tasks(session, live=True)]
    if live:
        ledger.violated(f"tasks {[(task.id, task.kind, task.state) for task in live]} never ended")
    reports = [
        task
        for task in map(decode_task, await storage.scan_tasks(session, live=False, limit=100_000))
        if task.kind == REPORT
    ]
    for body in await storage.scan_conversations(session, limit=10_000):
        conversation = decode_conversation(body)
        entries = [decode_entry(item) for item in await storage.scan_entries(session, conversation.id, limit=100_000)]
        seqs = [entry.seq for entry in entries]
        if seqs != sorted(seqs, reverse=True):
            ledger.violated(f"entries of conversation {conversation.id} are out of order")
        told = Counter(
            text_of(message)
            for entry in entries
            for message in entry.messages
            if text_of(message).startswith("[Agent ")
        )
        for text, times in told.items():
            sent = [task for task in reports if text.startswith(f"[Agent {task.input['agent']} ")]
            owed = sum(task.conversation == conversation.id for task in sent)
            if times > owed and "was stopped" not in text:
                ledger.violated(f"conversation {conversation.id} was told {times} times: {text!r}; {owed} were sent")
        wrong = valid(render(cut(entries[::-1]), model=model), model=model)
        if wrong and entries:
            ledger.violated(f"conversation {conversation.id} renders to an invalid transcript: {wrong[0]}")
