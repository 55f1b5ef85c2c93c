"""Settling as a pure function: whatever commits do to a task graph, the rules hold and the indexes are right (K9)."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.records import (
    AbortMark,
    AllSettled,
    Checkpoint,
    Completed,
    Completing,
    Conversation,
    ConversationId,
    EntryId,
    ErrorInfo,
    Failed,
    FailFast,
    First,
    Held,
    Outcome,
    Outside,
    Pending,
    Placed,
    Queued,
    Running,
    Submission,
    SubmissionId,
    Task,
    TaskId,
    Terminal,
    Unanswered,
    Waiting,
)
from perdure.settle.aborts import mark
from perdure.settle.owners import ordinary_below
from perdure.settle.rules import settle
from perdure.settle.state import Candidate, State, evolve
from perdure.settle.walks import below

START = Checkpoint(phase="start")


class Definitions:
    """The rules: which kinds have code."""

    mode: Literal["paused", "running", "closing"] = "running"

    def __init__(self) -> None:
        self.missing: dict[str, None] = {}

    def stages(self, task: Task) -> bool:
        return False

    def fit(self, task: Task) -> tuple[Any, str] | None:
        return ("definition", "missing") if task.kind in self.missing else None


class World:
    """A task graph, how everything that ended did, and commits that do as a list of numbers says."""

    def __init__(self) -> None:
        self.state = State()
        self.rules = Definitions()
        self.ended: dict[TaskId, Outcome] = {}
        self.settled: dict[SubmissionId, Any] = {}
        self.next_id = 1
        self.clock = 0.0

    def mint(self) -> int:
        self.next_id += 1
        return self.next_id

    def commit(self, actions: list[tuple[str, int, int, int]]) -> Candidate:
        candidate = Candidate(self.state)
        for verb, a, b, c in actions:
            getattr(self, verb)(candidate, a, b, c)
        self.clock += 1
        settle(candidate, self.rules, self.clock)
        views = self.views(candidate)
        self.state.apply(candidate)
        for task in candidate.tasks.values():
            if isinstance(task.state, Terminal):
                self.ended[task.id] = task.state.outcome
        for item in candidate.submissions.values():
            if not item.live:
                self.settled[item.id] = item.state
        assert views == self.views(Candidate(self.state))
        return candidate

    def views(self, candidate: Candidate) -> Any:
        """What the rules see of every task and conversation, ended ones aside."""
        ids = [TaskId(id) for id in range(2, self.next_id + 1)]
        live = [id for id in ids if (task := candidate.task(id)) is not None and task.live]
        homes = [ConversationId(1), *map(ConversationId, ids)]
        return {
            "live": [candidate.task(id) for id in live],
            "children": [sorted(task.id for task in candidate.children(id)) for id in ids],
            "scopes": [sorted(task.id for task in candidate.scope(id)) for id in homes],
            "placed": [sorted(item.id for item in candidate.placed(id)) for id in ids],
            "queued": [[item.id for item in candidate.queued(id)] for id in homes],
            "waiters": [sorted({w: 0 for w in candidate.waiters(id) if waits(candidate, w, id)}) for id in ids],
        }

    # -- what a commit may do -----------------------------------------------------------------

    def live(self, candidate: Candidate, *kinds: Any) -> list[Task]:
        tasks = {**self.state.tasks, **candidate.tasks}
        return [task for task in tasks.values() if task.live and isinstance(task.state, kinds or (object,))]

    def owners(self, candidate: Candidate) -> list[Task]:
        found = self.live(candidate, Pending, Running, Held, Waiting)
        return [
            task
            for task in found
            if task.abort is None and not (isinstance(task.state, Waiting) and isinstance(task.state.policy, Outside))
        ]

    def create(self, candidate: Candidate, a: int, b: int, c: int) -> None:
        owners: list[Task | None] = [None, *self.owners(candidate)]
        owner = owners[a % len(owners)]
        home = ConversationId(1) if owner is None else owner.conversation
        if owner is None:
            homes = [ConversationId(1), *(id for id in self.homes(candidate))]
            home = homes[b % len(homes)]
        state: Any = Pending(checkpoint=START)
        if c % 4 == 0:
            state = Waiting(checkpoint=START, policy=Outside())
        candidate.put(
            Task(
                id=TaskId(self.mint()),
                kind=f"kind{c % 3}",
                version=1,
                conversation=home,
                owner=None if owner is None else owner.id,
                background=owner is None and c % 5 == 0,
                at=0.0,
                state=state,
                crashes=c % 4 if c > 30 else 0,
            )
        )

    def homes(self, candidate: Candidate) -> list[ConversationId]:
        able = {task.id for task in self.owners(candidate)}
        return [one.id for one in {**self.state.conversations, **candidate.conversations}.values() if one.owner in able]

    def adopt(self, candidate: Candidate, a: int, b: int, c: int) -> None:
        owners = self.owners(candidate)
        if owners:
            id = ConversationId(self.mint())
            candidate.put_conversation(Conversation(id=id, at=0.0, owner=owners[a % len(owners)].id, key=f"key{id}"))

    def move(self, candidate: Candidate, a: int, b: int, c: int) -> None:
        running = self.live(candidate, Running)
        if not running:
            return
        task = running[a % len(running)]
        if task.abort is not None and b % 4 < 2:
            b = 2
        state: Any
        if b % 4 == 0:
            state = Pending(checkpoint=Checkpoint(phase="next"))
        elif b % 4 == 1:
            state = self.wait(candidate, task, c)
        elif b % 4 == 2:
            state = Completing(outcome=Completed(result=c))
        else:
            state = Completing(outcome=Failed(error=ErrorInfo(type="E", message="")))
        candidate.put(evolve(task, state=state, attempt=0, first=False, crashes=0))

    def wait(self, candidate: Candidate, task: Task, c: int) -> Waiting:
        own = [child.id for child in candidate.children(task.id)]
        any_ended = [id for id in self.ended if c % 2]
        policies: list[Any] = [AllSettled(), FailFast(), First(n=max(1, c % 3))]
        policy = policies[c % 3] if len(own) >= 2 else AllSettled()
        on = own[: c % 4 + 1]
        if isinstance(policy, AllSettled):
            on = [*on, *any_ended[: c % 3]]
            candidate.outcomes.update((id, self.ended[id]) for id in on if id in self.ended)
        return Waiting(checkpoint=START, on=tuple(on), policy=policy)

    def abort(self, candidate: Candidate, a: int, b: int, c: int) -> None:
        live = self.live(candidate)
        if live:
            mark(candidate, live[a % len(live)], "told")

    def answer(self, candidate: Candidate, a: int, b: int, c: int) -> None:
        open = [task for task in self.live(candidate, Waiting) if isinstance(task.state.policy, Outside)]  # type: ignore[union-attr]
        if open:
            outcome = Completed(result=c)
            candidate.put(evolve(open[a % len(open)], state=Terminal(outcome=outcome), ended=self.clock))

    def leave(self, candidate: Candidate, a: int, b: int, c: int) -> None:
        """What the runtime does after a stopped or refused invocation."""
        running = self.live(candidate, Running)
        if running:
            task = running[a % len(running)]
            candidate.put(evolve(task, state=Pending(checkpoint=task.state.checkpoint)))  # type: ignore[union-attr]

    def install(self, candidate: Candidate, a: int, b: int, c: int) -> None:
        kind = f"kind{a % 3}"
        if kind in self.rules.missing:
            del self.rules.missing[kind]
        else:
            self.rules.missing[kind] = None
        candidate.dirty.update({task.id: None for task in self.live(candidate, Pending, Held)})

    def submit(self, candidate: Candidate, a: int, b: int, c: int) -> None:
        running = self.live(candidate, Running)
        waiting = [item for item in {**self.state.submissions, **candidate.submissions}.values() if item.live]
        id, home = SubmissionId(self.mint()), ConversationId(1)
        state: Any = Queued()
        if waiting and b % 2:
            old = waiting[c % len(waiting)]
            id, home = old.id, old.conversation
            if b % 3 == 0 or isinstance(old.state, Placed):
                state = Unanswered(reason="aborted")
        if running and not isinstance(state, Unanswered) and b % 5:
            state = Placed(entry=EntryId(1), run=running[a % len(running)].id)
        candidate.submissions[id] = Submission(id=id, conversation=home, type="input", state=state, digest="", at=0.0)


def waits(candidate: Candidate, waiter: TaskId, on: TaskId) -> bool:
    task = candidate.task(waiter)
    return task is not None and isinstance(task.state, Waiting) and on in task.state.on


def naive(state: State) -> dict[str, Any]:
    """The indexes, from the records alone."""
    tasks, found = state.tasks.values(), State()
    index: dict[str, Any] = {name: {} for name in vars(found)}

    def add(name: str, key: Any, value: Any) -> None:
        index[name].setdefault(key, {})[value] = None

    for task in tasks:
        add("scopes", task.conversation, task.id) if task.owner is None else add("children", task.owner, task.id)
        if isinstance(task.state, Waiting):
            for id in task.state.on:
                add("waiters", id, task.id)
        if task.crashes >= 2:
            index["suspects"][task.id] = None
    for one in state.conversations.values():
        index["keys"][one.key] = one.id
        add("owned", one.owner, one.id)
    for item in state.submissions.values():
        if isinstance(item.state, Queued):
            add("queued", item.conversation, item.id)
        elif isinstance(item.state, Placed):
            add("runs", item.state.run, item.id)
    return index


INDEXES = ("children", "scopes", "owned", "waiters", "runs", "queued", "suspects", "keys")


def check(world: World) -> None:
    state = world.state
    expected = naive(state)
    for name in INDEXES:
        found = {key: one if isinstance(one, int | None) else sorted(one) for key, one in getattr(state, name).items()}
        wanted = {key: one if isinstance(one, int | None) else sorted(one) for key, one in expected[name].items()}
        assert found == wanted, name
    assert all(list(ids) == sorted(ids) for ids in state.queued.values())
    named = {id for task in state.tasks.values() if isinstance(task.state, Waiting) for id in task.state.on}
    assert state.outcomes == {id: outcome for id, outcome in world.ended.items() if id in named}
    candidate = Candidate(state)
    for task in state.tasks.values():
        check_task(world, candidate, task)
    for item in state.submissions.values():
        if isinstance(item.state, Placed):
            assert item.state.run in state.tasks
    suspects = [id for id in state.suspects if isinstance(state.tasks[id].state, Running)]
    assert len(suspects) <= 1


def check_task(world: World, candidate: Candidate, task: Task) -> None:
    state = task.state
    lower = list(ordinary_below(candidate, task.id))
    assert [one.id for one in lower] == [
        one.id for one in below(world.state, task.id, background=False) if candidate.owner(one) == task.id
    ]
    stopping = task.abort is not None or (isinstance(state, Completing) and not isinstance(state.outcome, Completed))
    if stopping:
        assert all(one.abort is not None for one in lower)
    if isinstance(state, Completing):
        assert lower
    if isinstance(state, Waiting) and not isinstance(state.policy, Outside):
        assert task.abort is None
        assert any(id in world.state.tasks for id in state.on)
    if isinstance(state, Waiting) and isinstance(state.policy, Outside):
        assert task.abort is None
    if isinstance(state, Pending):
        blocked = task.abort is not None and lower
        queued = task.crashes >= 2
        assert blocked or queued
    if isinstance(state, Held):
        assert world.rules.fit(task) is not None
        assert task.abort is None or lower


VERBS = ["create"] * 4 + ["move"] * 4 + ["adopt", "abort", "answer", "leave", "install", "submit", "submit"]
ACTIONS = st.tuples(st.sampled_from(VERBS), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
COMMITS = st.lists(st.lists(ACTIONS, min_size=1, max_size=4), max_size=20)


@pytest.mark.invariant("T-22")
@pytest.mark.slow
@settings(max_examples=150)
@given(commits=COMMITS)
def test_after_any_commits_the_rules_hold_and_the_indexes_are_what_the_records_say(commits: Any):
    world = World()
    for actions in commits:
        world.commit(actions)
        check(world)


@pytest.mark.invariant("T-22")
@pytest.mark.slow
@settings(max_examples=100)
@given(commits=COMMITS)
def test_settling_again_changes_nothing(commits: Any):
    world = World()
    for actions in commits:
        world.commit(actions)
    again = Candidate(world.state)
    again.dirty.update(dict.fromkeys(world.state.tasks))
    assert settle(again, world.rules, 0.0) == []
    assert again.empty


@pytest.mark.slow
@settings(max_examples=50)
@given(commits=COMMITS)
def test_a_copy_of_a_state_is_equal_and_independent(commits: Any):
    world = World()
    for actions in commits:
        world.commit(actions)
    copy = world.state.copy()
    before = {name: repr(value) for name, value in vars(copy).items()}
    assert vars(copy) == vars(world.state)
    for _ in range(5):
        world.commit([("create", 1, 1, 1), ("move", 0, 2, 0), ("submit", 0, 0, 0)])
    assert {name: repr(value) for name, value in vars(copy).items()} == before


def marked(task: Task) -> Task:
    return evolve(task, abort=AbortMark(reason="told"))


def test_a_marked_graph_of_any_depth_settles_in_one_pass_through_the_rules():
    world = World()
    world.commit([("create", 0, 0, 1)] + [("create", 1, 0, 1)] * 50)
    root = next(iter(world.state.tasks.values()))
    candidate = Candidate(world.state)
    mark(candidate, root, "told")
    settle(candidate, world.rules, 1.0)

    assert all(task.abort is not None for task in candidate.tasks.values())
    assert len(candidate.tasks) == 51
