"""A replica is the view, whatever was committed and however its reader read; and its frames are JSON Patch."""

from __future__ import annotations

import asyncio
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perdure
from perdure.app.opening import open_session
from perdure.backends.memory import MemoryStorage
from perdure.errors import MissedFrames, PerdureError
from perdure.harness.job import JOBS
from perdure.harness.stored import AGENT, GENERATION, LIVE, USAGE
from perdure.harness.view import TAIL, conversation_projection
from perdure.records import Completed, Completing, Queued, Seq, Submission, SubmissionId, Terminal, Unanswered
from perdure.session.transaction import entry_kind
from perdure.settle.state import evolve
from perdure.surface import Deltas, Whole, conversation_view, decode_frame
from perdure.telemetry import Telemetry
from perdure.testing.clock import ManualClock, settle
from perdure.testing.scenario.edits import change
from perdure.values import canonical

REMARK = entry_kind("test.remark")
DOCUMENTS = {"jobs": JOBS, "usage": USAGE, "agent": AGENT}

PLACES = st.lists(st.integers(0, 3), max_size=2)
VALUES = st.sampled_from([None, True, 1, 2.5, "a", "some text", [], ["a", {"b": 1}], {"a": "x", "b": [1, 2, 3]}])
OPS = st.sampled_from(
    ["delete", "slice", "move", "alias", "text", "text", "truncate", "reverse", "set", "insert", "nest", "put"]
)
EDITS = st.lists(st.tuples(OPS, PLACES, st.integers(0, 3), st.integers(0, 3), VALUES), min_size=1, max_size=4)
ACTIONS = st.one_of(
    st.tuples(st.just("document"), st.sampled_from(list(DOCUMENTS)), EDITS),
    st.tuples(st.just("live"), EDITS),
    st.tuples(st.just("say"), st.sampled_from(["text", "thinking"]), st.text("ab", min_size=1, max_size=5)),
    st.tuples(st.just("start"), st.none()),
    st.tuples(st.just("end"), st.none()),
    st.tuples(st.just("entries"), st.sampled_from([1, 2, 60])),
    st.tuples(st.just("submit"), st.none()),
    st.tuples(st.just("withdraw"), st.none()),
    st.tuples(st.just("ask"), st.sampled_from(["here", "below"])),
    st.tuples(st.just("answer"), st.none()),
)
#: Commits of some actions each, and then whether the reader reads; `burst` are commits that it does not come after.
STEPS = st.lists(
    st.one_of(st.tuples(st.lists(ACTIONS, min_size=1, max_size=3), st.booleans()), st.just("burst")),
    min_size=1,
    max_size=8,
)


#: What an action raises that does not fit what is there.
UNFIT = (PerdureError, LookupError, TypeError, AttributeError)


class Actor:
    """Commits what is drawn. The scheduler rests: what a run and its document go through is for the test to say."""

    def __init__(self, session: Any, chat: Any) -> None:
        self.session = session
        self.chat = chat
        self.child: Any = None

    async def commit(self, actions: list[Any]) -> None:
        for action in actions:  # where they do not fit together in one commit, nothing was changed
            try:
                async with self.chat.commit() as tx:
                    await getattr(self, action[0])(tx, *action[1:])
            except UNFIT:
                continue

    async def together(self, actions: list[Any]) -> None:
        async with self.chat.commit() as tx:
            for action in actions:
                restore = tx.save()
                try:
                    await getattr(self, action[0])(tx, *action[1:])
                except UNFIT:
                    restore()

    def run(self, tx: Any) -> Any:
        return next((task for task in tx.candidate.scope(self.chat.id) if task.kind == GENERATION), None)

    async def document(self, tx: Any, name: str, edits: list[Any]) -> None:
        root = await tx.doc(DOCUMENTS[name])
        for edit in edits:
            change(root, *edit)

    async def live(self, tx: Any, edits: list[Any]) -> None:
        root = await tx.doc(LIVE, self.run(tx).id)
        root.setdefault("tools", {})
        for edit in edits:
            change(root["tools"], *edit)

    async def say(self, tx: Any, part: str, text: str) -> None:
        live = await tx.doc(LIVE, self.run(tx).id)
        live.append_text(part, text)
        if len(live[part]) > 12:
            live.truncate(part, 5)

    async def start(self, tx: Any, _: None) -> None:
        if self.run(tx) is None:
            task = tx.create_task(self.session._harness.generation, owner=await tx.use(self.chat.id))
            await tx.doc(LIVE, task.id)

    async def end(self, tx: Any, _: None) -> None:
        run = self.run(tx)
        tx.put_task(evolve(run, state=Completing(outcome=Completed(result=None))))  # it ends once what it owns has

    async def entries(self, tx: Any, count: int) -> None:
        for number in range(count):
            tx.append(self.chat.id, REMARK, data={"n": number})

    async def submit(self, tx: Any, _: None) -> None:
        item = Submission(
            id=SubmissionId(tx.mint()), conversation=self.chat.id, type="input", state=Queued(), digest="", at=0.0
        )
        tx.put_submission(item)

    async def withdraw(self, tx: Any, _: None) -> None:
        item = tx.candidate.queued(self.chat.id)[0]
        tx.put_submission(evolve(item, state=Unanswered(reason="aborted")))

    async def ask(self, tx: Any, where: str) -> None:
        if where == "here":
            tx.ask({"here": True})
            return
        run = self.run(tx)
        child = tx.create_conversation(owner=run.id)
        tx.ask({"below": True}, owner=child)

    async def answer(self, tx: Any, _: None) -> None:
        tasks = [*tx.candidate.base.tasks.values(), *tx.candidate.tasks.values()]
        question = [task for task in tasks if task.kind == "perdure.question" and tx.task(task.id) is not None][0]  # noqa: RUF015
        tx.put_task(evolve(question, state=Terminal(outcome=Completed(result={"answer": 1, "by": None})), ended=tx.now))


class Reader:
    """A replica that is fed from JSON, and beside it a document that the library `jsonpatch` keeps."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch
        self.replica = perdure.Replica()
        self.patched: Any = None
        self.kinds: list[type] = []

    async def read(self) -> None:
        while True:
            reading = asyncio.ensure_future(anext(self.watch))
            await settle()
            if not reading.done():
                reading.cancel()
                await asyncio.wait([reading])
                return
            frame = decode_frame(reading.result().encoded)
            assert frame == reading.result()
            self.kinds.append(type(frame))
            patch = jsonpatch.JsonPatch(self.replica.json_patch(frame))
            self.patched = patch.apply(self.patched)
            self.replica.apply(frame)
            assert canonical(self.patched) == canonical(self.replica.value)


async def play(steps: list[Any]) -> None:
    storage = MemoryStorage(clock=ManualClock())
    session = await open_session(storage, "main", clock=ManualClock(start=1.0), telemetry=Telemetry())
    chat = await session.conversation("a")
    actor = Actor(session, chat)
    async with chat.watch() as watch, chat.view() as view:
        reader = Reader(watch)
        await reader.read()
        for step in steps:
            if step == "burst":
                for number in range(200):
                    await actor.commit([("say", "text", "ab")] if number % 3 else [("entries", 1)])
            else:
                await actor.commit(step[0])
                await actor.together(step[0])
            if step == "burst" or step[1]:
                await reader.read()
                assert canonical(reader.replica.value) == canonical(view.value)
        await reader.read()
        fresh = await conversation_projection(chat.id)(session._line)
        fresh.settle([])
        assert canonical(reader.replica.value) == canonical(view.value) == canonical(fresh.value)
    async with perdure.open(storage.reopened(), mode="read", clock=ManualClock()) as beside:
        looked_at = await beside.find(chat.id)
        async with looked_at.view() as other:
            assert canonical(other.value) == canonical(fresh.value)
    await session.close()


@pytest.mark.slow
@pytest.mark.invariant("V-2")
@settings(max_examples=40)
@given(STEPS)
def test_a_replica_equals_the_view_and_the_store_after_any_commits(steps: list[Any]):
    asyncio.run(play(steps))


def test_a_replica_equals_the_view_through_a_run_that_ends_and_the_next_one_that_begins():
    said = [("say", "text", "ab"), ("live", [("put", [], 0, 0, {"output": "x"})])]
    begin, end = [("start", None)], [("end", None)]
    asyncio.run(play([(begin, True), (said, True), ([*end, *begin], True), (said, True), (end, True), "burst"]))


def frame(seq: int, after: int, *ops: dict[str, Any]) -> Deltas:
    return Deltas(seq=Seq(seq), after=Seq(after), ops=ops)


@pytest.mark.invariant("V-7")
def test_a_gap_is_noticed_and_changes_nothing():
    replica = perdure.Replica()
    with pytest.raises(MissedFrames, match="no whole view yet"):
        replica.apply(frame(2, 1))
    replica.apply(Whole(seq=Seq(1), view={"a": "x"}))
    replica.apply(frame(4, 1, {"op": "append", "path": "/a", "value": "y"}))
    for missed in (frame(6, 5), frame(4, 1), frame(5, 3)):
        with pytest.raises(MissedFrames, match=f"follow commit {missed.after}, the replica stands at 4"):
            replica.apply(missed)
    assert (replica.seq, replica.value) == (4, {"a": "xy"})
    replica.apply(Whole(seq=Seq(9), view={"a": ""}))
    assert (replica.seq, replica.value) == (9, {"a": ""})


def test_deltas_read_as_a_json_patch_of_what_the_replica_holds():
    replica = perdure.Replica()
    replica.apply(Whole(seq=Seq(1), view={"text": "ab", "items": [1, 2, 3, 4]}))
    deltas = frame(
        2,
        1,
        {"op": "append", "path": "/text", "value": "c"},
        {"op": "truncate", "path": "/items", "keep": 3},
        {"op": "add", "path": "/items/-", "value": 5},
    )
    assert replica.json_patch(deltas) == [
        {"op": "replace", "path": "/text", "value": "abc"},
        {"op": "remove", "path": "/items/0"},
        {"op": "add", "path": "/items/-", "value": 5},
    ]


def test_a_view_reads_typed():
    async def main() -> None:
        async with perdure.open("memory:") as session:
            chat = await session.conversation("a")
            async with chat.commit() as tx:
                for number in range(TAIL + 1):
                    tx.append(chat.id, REMARK, data=number)
            async with chat.view() as view:
                typed = conversation_view(view.value)
                assert typed.conversation.key == "a"
                assert [entry.data for entry in typed.entries] == list(range(1, TAIL + 1))
                assert typed.older
                page = await chat.entries(before=typed.entries[0].id)
                assert [entry.data for entry in page] == [0]

    asyncio.run(main())
