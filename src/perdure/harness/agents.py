"""The background agents of one conversation: start, tell, wait for, stop, list and read them (I68, I69, I71).

What is said of an agent is derived from live tasks each time it is asked; there is no record of its state to be wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from perdure.errors import NotFound, TaskRefused, UsageError
from perdure.harness.anchor import ANCHOR, REPORT, STOPPED_BY_CALL
from perdure.harness.children import Profile, check_room, start_child, works
from perdure.harness.runs import stop_conversation
from perdure.harness.submissions import WhenBusy, submit_input
from perdure.messages import UserMessage
from perdure.records import Conversation, ConversationId, Entry, Held, Task, TaskId, decode_task
from perdure.session.line import Commit
from perdure.settle.state import State
from perdure.settle.walks import below, traverse
from perdure.tasks.transaction import TaskTransaction
from perdure.values import clean_text

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

#: Agents that rest are kept so that they can be told more; the oldest beyond so many are let go when one is started.
KEPT = 32
#: The key of an agent's conversation, by the call that started it: a repeated call finds what it started.
STARTED_BY = "perdure.agent_of_call:"

AgentState = Literal["working", "idle", "held", "stopping", "ended"]


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A background agent as it is now. `held` works and waits for someone: `detail` says why.

    `id` is that of the task that owns it, `conversation` is where it works, `waiting` counts messages that have no
    answer yet.
    """

    id: int
    name: str
    conversation: int
    state: AgentState
    waiting: int = 0
    detail: str = ""


class Agents:
    """Background agents of a conversation. They outlive the run that started them, and ordinary aborts (K30)."""

    def __init__(
        self,
        harness: Harness,
        conversation: ConversationId,
        commit: Callable[[], Commit[TaskTransaction]],
        call: str | None = None,
    ) -> None:
        self._harness = harness
        self._conversation = conversation
        self._commit = commit
        #: Of a tool call: what it asks for is asked for once, however often it is repeated.
        self._call = call

    async def start(
        self, content: str | UserMessage, *, profile: Profile | None = None, name: str | None = None
    ) -> Agent:
        """Start an agent on this input; its conversation, its owner and its first run are durable on return.

        Its answers come back as inputs of this conversation, or as entries where `agent_wakes` is off.
        Raises TaskRefused beyond `max_depth` and `max_children`.
        """
        await self._harness.scheduler.resume()
        async with self._commit() as tx:
            found = await self._started(tx)
            if found is not None:
                return await self._known(tx, found)
            home = await tx.use(self._conversation)
            title = clean_text(name or (profile.name if profile is not None else "agent"))
            child = ConversationId(tx.mint())
            input = {"name": title, "conversation": child}
            anchor = tx.create_task(self._harness.anchor, input, owner=home, background=True)
            _, item = await start_child(
                self._harness, tx, anchor.id, content, profile, request_id=f"agent:{anchor.id}", child=child,
                key=None if self._call is None else STARTED_BY + self._call,
            )  # fmt: skip
            self._report(tx, anchor, item.id)
            self._let_go(tx)
        return await self.find(anchor.id)

    async def send(self, id: int, content: str | UserMessage, *, when_busy: WhenBusy = "follow_up") -> Agent:
        """Tell an agent more; while it works, after its answer, or (`steer`) after its present round.

        The answer comes back as that of `start` does. Raises NotFound, ConversationBusy for `reject`, TaskRefused where
        it was stopped, or rests while `max_children` others work.
        """
        agent = await self.find(id)
        if agent.state == "ended":
            raise TaskRefused(f"agent {id} has ended: start another one")
        child = ConversationId(agent.conversation)
        async with self._commit() as tx:
            anchor = tx.task(TaskId(id))
            if anchor is None or anchor.abort is not None:
                raise TaskRefused(f"agent {id} was stopped: start another one")
            if not works(tx.candidate, child):
                await check_room(self._harness, tx, self._conversation)
            request_id = None if self._call is None else f"call:{self._call}"
            item = await submit_input(
                self._harness, tx, child, content, request_id=request_id, when_busy=when_busy
            )  # fmt: skip
            if item.id >= tx.floor:  # else an earlier attempt of the same call said it
                self._report(tx, anchor, item.id)
        return await self.find(id)

    async def list(self) -> list[Agent]:
        """Those that have not ended, oldest first."""
        published = self._harness.line.memory.published
        return [_described(published, task) for task in _anchors(published, self._conversation)]

    async def find(self, id: int) -> Agent:
        """An agent by its id, also one that has ended. Raises NotFound naming what there is."""
        published = self._harness.line.memory.published
        task = published.tasks.get(TaskId(id))
        if task is None:
            bodies = await self._harness.line.storage.read_tasks(self._harness.line.session, [TaskId(id)])
            task = decode_task(bodies[0], self._harness.line.session) if bodies else None
        if task is None or task.kind != ANCHOR or task.conversation != self._conversation:
            known = ", ".join(str(each.id) for each in await self.list()) or "none"
            raise NotFound(f"no agent {id} in this conversation; there are: {known}")
        return _described(published, task)

    async def wait(self, ids: Iterable[int] | None = None, *, seconds: float | None = None) -> Sequence[Agent]:
        """Wait until these agents (all that there are) have answered all they were told, or the time is over.

        When it returns, their answers are committed in this conversation. Cancelling the wait cancels nothing (K33).
        """
        if seconds is not None and not seconds >= 0:
            raise UsageError(f"seconds={seconds!r}: a number from 0 up, or None to wait as long as it takes")
        wanted = [TaskId(agent.id) for agent in await self.list()] if ids is None else [TaskId(id) for id in ids]
        for id in wanted:
            await self.find(id)
        memory = self._harness.line.memory

        def answered() -> bool:
            return all(not _waiting(memory.published, id) for id in wanted)

        waiting = asyncio.ensure_future(self._harness.scheduler.until(answered))
        sleeping = None if seconds is None else asyncio.ensure_future(self._harness.clock.sleep(seconds))
        try:
            await asyncio.wait([each for each in (waiting, sleeping) if each], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()
            if sleeping is not None:
                sleeping.cancel()
        return [await self.find(id) for id in wanted]

    async def stop(self, id: int, reason: str = STOPPED_BY_CALL) -> Agent:
        """Stop an agent and all below it, its own background work too; returns when that has ended. Raises NotFound."""
        agent = await self.find(id)
        marked = [TaskId(id)]
        async with self._commit() as tx:
            child = ConversationId(agent.conversation)
            marked += [task.id for task in traverse(tx.memory.tip, child, background=True)]
            stop_conversation(tx, child, reason)
            for each in marked:
                tx.abort_task(each, clean_text(reason))
        memory = self._harness.line.memory
        await self._harness.scheduler.until(lambda: not any(each in memory.published.tasks for each in marked))
        return await self.find(id)

    async def read(self, id: int, *, before: int | None = None, limit: int = 20) -> Sequence[Entry]:
        """A page of what an agent's conversation holds, newest first. Raises NotFound."""
        agent = await self.find(id)
        memory = self._harness.line.memory
        record: Conversation = await memory.conversation(ConversationId(agent.conversation))
        return await memory.entries(record, before=cast("Any", before), limit=limit)

    # -- staging ----------------------------------------------------------------------------

    async def _started(self, tx: TaskTransaction) -> Conversation | None:
        return None if self._call is None else await tx.find_conversation(STARTED_BY + self._call)

    async def _known(self, tx: TaskTransaction, child: Conversation) -> Agent:
        """The agent that an earlier attempt of this call started."""
        assert child.owner is not None
        return _described(tx.memory.tip, await tx.ended(child.owner))

    def _report(self, tx: TaskTransaction, anchor: Task, submission: int) -> None:
        input = {"agent": anchor.id, "name": anchor.input["name"], "submission": submission}
        tx.create_task(self._harness.report, input, owner=anchor)

    def _let_go(self, tx: TaskTransaction) -> None:
        """Those that have rested longest give their place to the new one."""
        tip = tx.memory.tip
        resting = [task for task in _anchors(tip, self._conversation) if _described(tip, task).state == "idle"]
        for task in resting[: max(0, len(resting) - KEPT + 1)]:
            tx.abort_task(task.id, f"it had nothing to do, and more than {KEPT} agents were kept")


def _anchors(state: State, conversation: ConversationId) -> list[Task]:
    return [task for id in state.scopes.get(conversation, ()) if (task := state.tasks[id]).kind == ANCHOR]


def _waiting(state: State, id: TaskId) -> int:
    return sum(state.tasks[child].kind == REPORT for child in state.children.get(id, ()))


def _described(state: State, anchor: Task) -> Agent:
    child = ConversationId(anchor.input["conversation"])
    states = (task.state for task in below(state, anchor.id, background=False))
    held = next((each for each in states if isinstance(each, Held)), None)
    waiting = _waiting(state, anchor.id)
    now: AgentState = "working" if works(state, child) or waiting else "idle"
    if anchor.id not in state.tasks:
        now = "ended"
    elif anchor.abort is not None:
        now = "stopping"
    elif held is not None:
        now = "held"
    return Agent(
        id=anchor.id,
        name=anchor.input["name"],
        conversation=child,
        state=now,
        waiting=waiting,
        detail="" if held is None else f"{held.reason}: {held.detail}",
    )
