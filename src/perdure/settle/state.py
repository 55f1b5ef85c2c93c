"""What a session holds in memory of its tasks, submissions and conversations, and what a commit would make of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from perdure.records import (
    Conversation,
    ConversationId,
    Outcome,
    Placed,
    Queued,
    Running,
    Submission,
    SubmissionId,
    Task,
    TaskId,
    Terminal,
    Waiting,
)
from perdure.settle.members import Members, Ordered, add, deeper, drop
from perdure.settle.tallies import Tally, counted, tally_of
from perdure.settle.walks import traverse

#: Indexes of `State` whose values are ordered sets.
NESTED = ("children", "scopes", "owned", "waiters", "runs", "queued")


class State:
    """Live records by id, and the indexes that settling needs.

    Invariant: the indexes are functions of `tasks`, `submissions` and `conversations`;
    only `apply` and its parts change any of them.
    A session has two: the tip, which counts commits that are not flushed yet,
    and the published one, which is what everyone else sees.
    """

    def __init__(self) -> None:
        #: Tasks that have not ended.
        self.tasks: dict[TaskId, Task] = {}
        #: Outcomes of ended tasks that a waiting task still names.
        self.outcomes: dict[TaskId, Outcome] = {}
        #: Queued and placed submissions.
        self.submissions: dict[SubmissionId, Submission] = {}
        #: Conversations that are loaded; always those that a live task owns or lives in.
        self.conversations: dict[ConversationId, Conversation] = {}
        #: Loaded conversations by their key.
        self.keys: dict[str, ConversationId] = {}
        #: Live tasks by the task that owns them.
        self.children: dict[TaskId, Members[TaskId]] = {}
        #: Live tasks that a conversation owns itself.
        self.scopes: dict[ConversationId, Members[TaskId]] = {}
        #: Loaded conversations by the task that owns them.
        self.owned: dict[TaskId, Members[ConversationId]] = {}
        #: Waiting tasks by each task they wait on.
        self.waiters: dict[TaskId, Members[TaskId]] = {}
        #: Placed submissions by the run that answers them.
        self.runs: dict[TaskId, Members[SubmissionId]] = {}
        #: Queued submissions by conversation, in id order.
        self.queued: dict[ConversationId, Members[SubmissionId]] = {}
        #: Tasks that crashed the process twice or more (H44): reserved one at a time.
        self.suspects: Ordered[TaskId] = {}
        #: Of waits that were looked at: how many targets have not ended, ended well, ended badly.
        self._tallies: dict[TaskId, Tally] = {}

    def apply(self, candidate: Candidate) -> None:
        """Make the candidate's records the present ones."""
        for conversation in candidate.conversations.values():
            self.put_conversation(conversation)
        ended: list[Task] | None = None
        for task in candidate.tasks.values():
            if type(task.state) is Terminal:
                ended = ended or []
                ended.append(task)
            else:
                self.put_task(task)
        if ended is not None:  # after the waits of this commit are known, which keep outcomes
            for task in ended:
                self.put_task(task)
        for id, outcome in candidate.outcomes.items():
            if id in self.waiters:
                self.outcomes[id] = outcome
        for submission in candidate.submissions.values():
            self.put_submission(submission)

    def put_conversation(self, conversation: Conversation) -> None:
        self.forget_conversation(conversation.id)
        if conversation.deleted:
            return
        self.conversations[conversation.id] = conversation
        if conversation.key is not None:
            self.keys[conversation.key] = conversation.id
        if conversation.owner is not None:
            add(self.owned, conversation.owner, conversation.id)

    def forget_conversation(self, id: ConversationId) -> None:
        conversation = self.conversations.pop(id, None)
        if conversation is None:
            return
        if conversation.key is not None and self.keys.get(conversation.key) == id:
            del self.keys[conversation.key]
        if conversation.owner is not None:
            drop(self.owned, conversation.owner, id)

    def put_task(self, task: Task) -> None:
        old = self.tasks.get(task.id)
        state = task.state
        before = old.state.on if old is not None and type(old.state) is Waiting else ()
        after = state.on if type(state) is Waiting else ()
        if before != after:
            self._rewait(task.id, before, after)
        if type(state) is Terminal:
            self._end(task, state.outcome, known=old is not None)
            return
        self.tasks[task.id] = task
        if old is None:
            if task.owner is None:
                add(self.scopes, task.conversation, task.id)
            else:
                add(self.children, task.owner, task.id)
        if task.crashes >= 2:
            self.suspects[task.id] = None
        elif self.suspects:
            self.suspects.pop(task.id, None)

    def put_submission(self, submission: Submission) -> None:
        old = self.submissions.get(submission.id)
        before, after = None if old is None else old.state, submission.state
        if isinstance(before, Placed) and not (isinstance(after, Placed) and after.run == before.run):
            drop(self.runs, before.run, submission.id)
        if isinstance(before, Queued) and not isinstance(after, Queued):
            drop(self.queued, submission.conversation, submission.id)
        if not submission.live:
            self.submissions.pop(submission.id, None)
            return
        self.submissions[submission.id] = submission
        if isinstance(after, Queued):
            add(self.queued, submission.conversation, submission.id)
        elif isinstance(after, Placed):
            add(self.runs, after.run, submission.id)

    def tally(self, waiter: TaskId) -> Tally:
        """How the tasks that a waiting task names stand. Counted once and then kept, so that wide waits cost little."""
        found = self._tallies.get(waiter)
        if found is None:
            state = self.tasks[waiter].state
            assert isinstance(state, Waiting)
            found = self._tallies[waiter] = tally_of([self.outcomes.get(id) for id in state.on])
        return found

    def _rewait(self, waiter: TaskId, before: tuple[TaskId, ...], after: tuple[TaskId, ...]) -> None:
        self._tallies.pop(waiter, None)
        for id in after:
            add(self.waiters, id, waiter)
        kept = dict.fromkeys(after)
        for id in before:
            if id not in kept:
                drop(self.waiters, id, waiter)
                if id not in self.waiters:
                    self.outcomes.pop(id, None)

    def _end(self, task: Task, outcome: Outcome, *, known: bool) -> None:
        if known:
            del self.tasks[task.id]
            if task.owner is None:
                drop(self.scopes, task.conversation, task.id)
            else:
                drop(self.children, task.owner, task.id)
        self.suspects.pop(task.id, None)
        waiters = self.waiters.get(task.id)
        if waiters is not None:
            self.outcomes[task.id] = outcome
            for id in waiters:
                tally = self._tallies.get(id)
                if tally is not None:
                    self._tallies[id] = counted(tally, outcome)

    def copy(self) -> State:
        """An independent state with the same records: what the tip falls back to when a commit is refused."""
        other = State()
        for name, value in vars(self).items():
            setattr(other, name, deeper(value) if name in NESTED else dict(value))
        return other

    def ordinary(self, conversation: ConversationId) -> Iterator[Task]:
        """Live tasks of the conversation's ordinary scope: its own, what those own, and so on; no background tasks."""
        return traverse(self, conversation, background=False)


class Candidate:
    """A state with the changes of one commit on top: settling works on it, and storage gets what it holds."""

    def __init__(self, base: State) -> None:
        self.base = base
        self.tasks: dict[TaskId, Task] = {}
        self.submissions: dict[SubmissionId, Submission] = {}
        self.conversations: dict[ConversationId, Conversation] = {}
        #: Outcomes of ended tasks that a wait of this commit names.
        self.outcomes: dict[TaskId, Outcome] = {}
        #: Tasks that the rules have to look at (again).
        self.dirty: Ordered[TaskId] = {}
        #: Tasks that the rules reserved for a phase that only stages, until somebody asks.
        self.reserved: list[TaskId] = []
        #: Of this commit: new tasks by owning task and by owning conversation, new conversations by owning task,
        #: waits by target.
        self._children: dict[TaskId, Members[TaskId]] = {}
        self._scopes: dict[ConversationId, Members[TaskId]] = {}
        self._owned: dict[TaskId, Members[ConversationId]] = {}
        self._waiters: dict[TaskId, Members[TaskId]] = {}
        #: Of this commit: outcomes by waiting task and by target.
        self._fresh: dict[TaskId, dict[TaskId, Outcome]] = {}

    def save(self) -> dict[str, Any]:
        """What there is to return to."""
        saved = vars(self).copy()
        for name, value in saved.items():
            if name[0] == "_":
                saved[name] = deeper(value) if value else {}
            elif name != "base":
                saved[name] = value.copy()
        return saved

    def restore(self, saved: dict[str, Any]) -> None:
        """Forget what was put since `save`."""
        vars(self).update(saved)

    @property
    def empty(self) -> bool:
        return not (self.tasks or self.submissions or self.conversations)

    # -- reading ----------------------------------------------------------------------------

    def task(self, id: TaskId) -> Task | None:
        """The task if it is live (or ended in this very commit)."""
        return self.tasks.get(id) or self.base.tasks.get(id)

    def conversation(self, id: ConversationId) -> Conversation | None:
        return self.conversations.get(id) or self.base.conversations.get(id)

    def key(self, key: str) -> Conversation | None:
        """The loaded conversation with that key."""
        for conversation in self.conversations.values():
            if conversation.key == key and not conversation.deleted:
                return conversation
        id = self.base.keys.get(key)
        return None if id is None or id in self.conversations else self.base.conversations[id]

    def submission(self, id: SubmissionId) -> Submission | None:
        return self.submissions.get(id) or self.base.submissions.get(id)

    def outcome(self, id: TaskId) -> Outcome | None:
        """How the task ended, if it has, as far as waits need to know."""
        task = self.tasks.get(id)
        if task is not None:
            return task.outcome
        return self.outcomes.get(id) or self.base.outcomes.get(id)

    def tallies(self, waiter: Task) -> tuple[Tally, Tally]:
        """How what a task waits on stood before this commit (nothing had ended, for a new wait), and stands now."""
        state = waiter.state
        assert isinstance(state, Waiting)
        old = self.base.tasks.get(waiter.id)
        if old is None or old.state is not state:
            return (len(state.on), 0, 0), tally_of([self.outcome(id) for id in state.on])
        before = now = self.base.tally(waiter.id)
        for outcome in self._fresh.get(waiter.id, {}).values():
            now = counted(now, outcome)
        return before, now

    def children(self, id: TaskId) -> Iterator[Task]:
        """Live tasks that the task owns."""
        return self._live(self.base.children.get(id), self._children.get(id))

    def scope(self, id: ConversationId) -> Iterator[Task]:
        """Live tasks that the conversation owns itself."""
        return self._live(self.base.scopes.get(id), self._scopes.get(id))

    def owned(self, id: TaskId) -> Iterator[ConversationId]:
        """Conversations that the task owns."""
        yield from self.base.owned.get(id, ())
        yield from self._owned.get(id, ())

    def waiters(self, id: TaskId) -> Iterator[TaskId]:
        yield from self.base.waiters.get(id, ())
        yield from self._waiters.get(id, ())

    def placed(self, run: TaskId) -> Iterator[Submission]:
        """Submissions that the run has to answer."""
        known = self.base.runs.get(run, ())
        for id in known:
            submission = self.submissions.get(id) or self.base.submissions[id]
            if isinstance(submission.state, Placed) and submission.state.run == run:
                yield submission
        for id, submission in list(self.submissions.items()):
            if id not in known and isinstance(submission.state, Placed) and submission.state.run == run:
                yield submission

    def queued(self, conversation: ConversationId) -> list[Submission]:
        """Queued submissions of the conversation, oldest first."""
        ids: Members[SubmissionId] = self.base.queued.get(conversation, ())
        found: list[Submission] = []
        for id in ids:
            submission = self.submissions.get(id) or self.base.submissions[id]
            if isinstance(submission.state, Queued):
                found.append(submission)
        for id, submission in self.submissions.items():
            if id not in ids and submission.conversation == conversation and isinstance(submission.state, Queued):
                found.append(submission)
        return found

    def _live(self, known: Iterable[TaskId] | None, new: Iterable[TaskId] | None) -> Iterator[Task]:
        tasks, base = self.tasks, self.base.tasks
        for ids in (known, new):
            if ids is not None:
                for id in ids:
                    task = tasks.get(id) or base[id]
                    if not isinstance(task.state, Terminal):
                        yield task

    # -- changing ---------------------------------------------------------------------------

    def put(self, task: Task) -> None:
        """Stage a task, and have the rules look at it and at whom its change may concern."""
        old = self.task(task.id)
        if old is None:
            if task.owner is None:
                add(self._scopes, task.conversation, task.id)
            else:
                add(self._children, task.owner, task.id)
        elif suspected(old) and not suspected(task):
            self.dirty.update(self.base.suspects)  # they run one at a time (H44): the next may
        self.tasks[task.id] = task
        self.dirty[task.id] = None
        state = task.state
        if type(state) is Running:
            return
        if type(state) is Waiting:
            for id in state.on:
                if task.id not in self.base.waiters.get(id, ()):
                    add(self._waiters, id, task.id)
        elif type(state) is Terminal:
            for id in self.waiters(task.id):
                self.dirty[id] = None
                self._fresh.setdefault(id, {})[task.id] = state.outcome
            owner = self.owner(task)
            if owner is not None:
                self.dirty[owner] = None

    def put_conversation(self, conversation: Conversation) -> None:
        if conversation.owner is not None and self.conversation(conversation.id) is None:
            add(self._owned, conversation.owner, conversation.id)
        self.conversations[conversation.id] = conversation

    def owner(self, task: Task) -> TaskId | None:
        """The task that owns this one, directly or through the conversation that it lives in."""
        if task.owner is not None:
            return task.owner
        conversation = self.conversation(task.conversation)
        return None if conversation is None else conversation.owner


def evolve(task: Task, **changes: object) -> Task:
    """The task with some fields changed."""
    return msgspec.structs.replace(task, **changes)


def suspected(task: Task) -> bool:
    """Runs after it crashed the process twice (H44)."""
    return task.crashes >= 2 and type(task.state) is Running
