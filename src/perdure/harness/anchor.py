"""Background agents as tasks: the anchor that owns one, and the reporters that bring its answers back (H29, I71)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.errors import InboxFull, TaskRefused
from perdure.harness.gate import MOST_TOLD
from perdure.harness.handover import answer_text, stored_submission
from perdure.harness.output import bounded, clip
from perdure.harness.runs import place_due, run_of, stop_conversation
from perdure.harness.submissions import submit_input
from perdure.messages import user
from perdure.records import ConversationId, Done, Placed, Queued, Submission, SubmissionId, Unanswered
from perdure.session.transaction import EntryKind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.transaction import InvocationTransaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness

ANCHOR = "perdure.agent"
REPORT = "perdure.agent_report"
#: The entry by which a conversation learns what an agent of it said, or that it was stopped.
AGENT_SAID = EntryKind("perdure.agent_said")
#: The reason of a stop that the conversation itself asked for: it is not told of what it did.
STOPPED_BY_CALL = "stopped by a call"


class AnchorTask(TaskDefinition, reserved=True):
    """Owns the conversation of one background agent, and lives until it is stopped. Has nothing to do itself."""

    kind = ANCHOR

    @phase(first=True, stages=True)
    async def hold(self, tx: InvocationTransaction) -> None:
        """Rest: what works are the runs of the agent's conversation."""
        tx.rest(then=self.let_go)

    @phase(stages=True)
    async def let_go(self, tx: InvocationTransaction) -> None:
        """Nobody ends a rest but by an abort."""
        tx.complete()

    async def abort(self, invocation: Invocation) -> None:
        """Its ordinary work has ended: the rest is stopped, and the conversation that started it is told."""

        async def body(tx: InvocationTransaction) -> None:
            own = tx.own
            reason = "stopped" if own.abort is None else own.abort.reason
            stop_conversation(tx, ConversationId(own.input["conversation"]), reason)
            if reason != STOPPED_BY_CALL:
                text = f"[Agent {own.id} ({own.input['name']}) was stopped: {clip(reason, MOST_TOLD)}]"
                data = {"agent": own.id, "state": "stopped"}
                tx.append(own.conversation, AGENT_SAID, messages=(user(text),), data=data, task=own.id)
            tx.aborted()

        await invocation.record(body)


class ReportTask(TaskDefinition, reserved=True):
    """Follows one message to an agent until it is settled, and posts the answer, in the commit that settles it."""

    kind = REPORT

    def __init__(self, harness: Harness | None = None) -> None:
        self._harness = harness

    @property
    def harness(self) -> Harness:
        assert self._harness is not None
        return self._harness

    @phase(first=True, stages=True)
    async def follow(self, tx: InvocationTransaction) -> None:
        """Wait for the run that has the message, or that stands before it; at last post what became of it."""
        given = tx.own.input
        item = await stored_submission(tx, SubmissionId(given["submission"]))
        match item.state:
            case Placed(run=run):
                tx.wait([run], then=self.follow)
                return
            case Queued():
                run = run_of(tx.candidate, item.conversation)
                if run is None:  # a run that failed left it in the inbox
                    await place_due(self.harness, tx, item.conversation, "idle", None)
                    run = run_of(tx.candidate, item.conversation)
                if run is not None:
                    tx.wait([run.id], then=self.follow)
                    return
            case _:
                pass
        await self._post(tx, item)
        tx.complete()

    async def _post(self, tx: InvocationTransaction, item: Submission) -> None:
        """Into the conversation that sent the message: an input that wakes it, or an entry, by its setting."""
        own = tx.own
        agent, name, home = own.input["agent"], own.input["name"], own.conversation
        text = f"[Agent {agent} ({name}) {await self._said(tx, item)}"
        if (await self.harness.settings(tx, home)).agent_wakes:
            with suppress(InboxFull, TaskRefused):
                await submit_input(self.harness, tx, home, text, request_id=None, when_busy="steer")
                return
        data = {"agent": agent, "state": type(item.state).__name__.lower()}
        tx.append(home, AGENT_SAID, messages=(user(text),), data=data, task=own.id)

    async def _said(self, tx: InvocationTransaction, item: Submission) -> str:
        match item.state:
            case Done(answer=answer) if answer is not None:
                return f"answered]\n{bounded(await answer_text(tx, answer), 'head')}"
            case Unanswered(reason=reason, detail=detail):
                return f"gave no answer: {clip(f'{reason}: {detail}', MOST_TOLD)}]"
            case _:
                return "gave no answer: its message could not be placed]"
