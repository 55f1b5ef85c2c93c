"""Stores that older versions wrote open, go on and lose nothing (I67, K21, K34). See make.py for what is in them."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.compat import cast
from tests.compat.make import SITUATIONS, VERSIONS

import perdure
from perdure.backends.sqlite_schema import newest_schema
from perdure.errors import PerdureError
from perdure.messages import ToolMessage, text_of
from perdure.model import Usage
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.scripted import ScriptedModel, answer, by_prompt, say
from perdure.testing.strict import StrictModel

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HERE = Path(__file__).parent
USED = Usage(input=10, output=2, cost=0.5)


class Order(cast.Order):
    """The next version of a task: amounts have a currency."""

    version = 2

    def migrate(self, version: int, input: Any, checkpoint: Any) -> tuple[Any, str, Any]:
        data = {**checkpoint.data, "amount": f"{checkpoint.data['amount']} EUR"}
        return {**input, "currency": "EUR"}, checkpoint.phase, data

    @phase
    async def send(self, invocation: Any, question: int, amount: str) -> None:
        async with invocation.commit() as tx:
            tx.complete({"amount": amount, "currency": invocation.input["currency"]})


class Found(TaskDefinition):
    """The code of what was held comes back."""

    kind = "shop.gone"

    @phase(first=True)
    async def work(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            tx.complete(invocation.input)


@pytest.fixture(params=VERSIONS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((HERE / f"{request.param}.db.gz").read_bytes()))
    return path


@pytest.fixture(autouse=True)
def nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cast, "hanging", set())
    monkeypatch.setattr(cast, "ran", [])


@asynccontextmanager
async def opened(store: Path, session: str, *tasks: Any) -> AsyncIterator[tuple[Any, StrictModel]]:
    model = StrictModel(ScriptedModel(by_prompt({"": answer(say("fine"), usage=USED)})))
    models = {"scripted": model}
    registry = perdure.Registry([perdure.Extension(name="shop", tools=cast.tools(), tasks=tasks)])
    async with perdure.open(str(store), session=session, registry=registry, model=model, models=models) as one:
        yield one, model
    assert model.violations == []


async def results(chat: Any) -> list[ToolMessage]:
    found = [each async for entry in chat.history() for each in entry.messages if isinstance(each, ToolMessage)]
    return sorted(found, key=lambda each: [int(part) for part in each.call.split(".")])


async def goes_on(chat: Any) -> None:
    assert (await (await chat.submit("go on")).wait()).text == "fine"


@pytest.mark.invariant("HA-138")
@pytest.mark.parametrize("session", SITUATIONS)
async def test_each_session_opens_comes_to_rest_and_goes_on(store: Path, session: str):
    async with opened(store, session, cast.Order()) as (one, _):
        for conversation in await one.conversations():
            chat = await one.find(conversation.id)
            assert await chat.usage() is not None
            if session not in ("asking", "held"):
                await chat.wait_idle()
            await goes_on(chat)
        left = {task.kind for task in one.inspect().tasks}
        assert left <= {"shop.gone", "shop.order", "perdure.question", "perdure.timer"}
        assert not one.inspect().submissions


async def test_a_finished_conversation_is_all_there_and_repeated_requests_are_known(store: Path):
    async with opened(store, "finished") as (one, _):
        chat = await one.conversation("till")
        assert [result.text for result in await results(chat)] == ["look 1 is done", "pay 2 is done"]
        assert (await chat.settings()).max_rounds == 7
        assert (await chat.usage())["models"]["scripted"]["cost"] == 1.0
        assert (await one.usage())["models"]["scripted"]["cost"] == 1.5
        again = await chat.submit("pay", request_id="once")
        assert (await again.wait()).text == "paid"
        await goes_on(chat)
        assert (await one.usage())["models"]["scripted"]["cost"] == 2.0
    async with opened(store, "finished") as (one, _):
        assert (await one.usage())["models"]["scripted"]["cost"] == 2.0


async def test_of_a_round_that_was_killed_the_safe_call_runs_again_and_the_unsafe_one_is_interrupted(store: Path):
    async with opened(store, "killed") as (one, _):
        chat = await one.conversation("till")
        await chat.wait_idle()
        await one.wait_idle()
        safe, unsafe = await results(chat)
        assert cast.ran == ["look 1"]
        assert (safe.text, safe.error) == ("look 1 is done", None)
        assert unsafe.error == "interrupted"
        assert "paying 2" in unsafe.text
        assert text_of((await chat.entries(limit=1))[0].messages[0]) == "fine"


async def test_what_was_queued_is_answered_in_its_order_and_what_was_seen_of_an_answer_is_kept(store: Path):
    async with opened(store, "queued") as (one, _):
        chat = await one.conversation("till")
        await chat.wait_idle()
        kinds = [entry.kind async for entry in chat.history()][::-1]
        said = [text_of(e.messages[0]) async for e in chat.history() if e.kind == "perdure.user"][::-1]
        assert said == ["stream", "steer", "follow up"]
        assert kinds.count("shop.note") == 1
        answers = [e.messages[0] async for e in chat.history() if e.kind == "perdure.assistant"][::-1]
        assert (answers[0].stop, text_of(answers[0])[:4]) == ("interrupted", "half")
        found = await chat.submit("follow up", request_id="later")
        assert await found.status() == "done"


@pytest.mark.parametrize("session", ["gated", "retrying"])
async def test_calls_before_their_intent_and_back_offs_go_on(store: Path, session: str):
    async with opened(store, session) as (one, model):
        chat = await one.conversation("till")
        await chat.wait_idle()
        assert (await chat.entries(limit=1))[0].kind == "perdure.assistant"
        assert cast.ran == (["look 1", "pay 2"] if session == "gated" else [])
        assert len(model.inner.requests) == 1


async def test_an_open_question_is_answered_and_its_task_migrates_to_the_code_of_today(store: Path):
    async with opened(store, "asking", Order()) as (one, _):
        (question,) = one.inspect().questions
        order = next(task for task in one.inspect().tasks if task.kind == "shop.order")
        await one.answer(question.id, "yes", by="me")
        done = await one.wait_task(order.id)
        assert done.result == {"amount": "5 EUR", "currency": "EUR"}
        (timer,) = one.inspect().tasks
        await one.abort_task(timer.id)


async def test_work_without_code_is_held_keeps_what_it_has_and_goes_on_when_the_code_comes(store: Path):
    async with opened(store, "held") as (one, _):
        (task,) = one.inspect().tasks
        await one.resume()
        assert (task.state, task.reason) == ("held", "definition") or task.state == "pending"
        chat = await one.conversation("till")
        assert await chat.snapshot(cast.LOST) == {"whose": "mine"}
        await goes_on(chat)
        (held,) = one.inspect().tasks
        assert (held.state, held.reason) == ("held", "definition")
        await one.install(perdure.Registry([perdure.Extension(name="shop", tasks=[Found()])]))
        assert (await one.wait_task(task.id)).result == {"n": 1}


async def test_forks_of_a_deleted_conversation_are_as_they_were_and_fork_on(store: Path):
    async with opened(store, "forked") as (one, _):
        fork, leaf = await one.conversation("fork"), await one.conversation("leaf")
        assert [entry.data async for entry in fork.history()][::-1] == [0, 1, 2, 3, "own"]
        assert [entry.data async for entry in leaf.history()][::-1] == [0, 1, 2]
        assert (await fork.snapshot(cast.PLAN))["steps"] == [0, 1, 2, 3, "own"]
        assert (await leaf.snapshot(cast.PLAN))["steps"] == [0, 1, 2]
        assert (await leaf.snapshot(cast.PLAN, key="even"))["steps"] == [0, 2]
        assert (await leaf.snapshot(cast.CART))["lines"] == [0, 1, 2, 3, 4, 5]
        first = [entry.id async for entry in leaf.history()][-1]
        again = await leaf.fork(first)
        assert (await again.snapshot(cast.PLAN))["steps"] == [0]
        (top,) = await one.tree()
        assert (top.deleted, len(list(top.walk()))) == (True, 4)
        for each in (again, leaf, fork):
            await one.delete(each)
        assert await one.tree() == []


async def test_what_was_handed_in_is_taken(store: Path):
    async with opened(store, "handed in") as (one, _):
        chat = await one.conversation("till")
        await chat.wait_idle()
        assert [text_of(e.messages[0]) async for e in chat.history()][::-1] == ["from elsewhere", "fine"]
        assert await (await chat.submit("from elsewhere", request_id="once")).status() == "done"


async def test_a_store_of_then_is_looked_at_and_checked_before_anybody_opens_it_to_write(store: Path):
    if schema(store) == newest_schema():
        async with perdure.open(str(store), mode="read", session="forked") as one:
            assert len(await one.tree()) == 1
            assert (await one.usage())["models"] == {}
    async with opened(store, "finished"):
        pass
    assert schema(store) == newest_schema()


# -- one record that nobody knows -------------------------------------------------------------------

Change = Callable[[dict[str, Any]], None]


def change(store: Path, table: str, change: Change, where: Callable[[dict[str, Any]], bool]) -> None:
    """Write one record as a version would that is not there yet."""
    connection = apsw.Connection(str(store))
    for rowid, body in list(connection.execute(f"SELECT rowid, body FROM {table}")):
        record = msgspec.json.decode(body)
        if where(record):
            change(record)
            connection.execute(f"UPDATE {table} SET body = ? WHERE rowid = ?", (msgspec.json.encode(record), rowid))
            break
    else:
        raise AssertionError(f"no such {table}")
    connection.close()


def schema(store: Path) -> int:
    connection = apsw.Connection(str(store))
    found = connection.pragma("user_version")
    connection.close()
    return int(found)


@pytest.mark.invariant("HA-139")
async def test_records_of_unknown_kinds_stand_in_nobodys_way(store: Path):
    """An entry, a document, a task and an inbound item of kinds that come later; and fields that nobody knows."""

    def newer(kind: str) -> Change:
        return lambda record: record.update(kind=kind, flavour={"of": ["the", "future"]})

    change(store, "entry", newer("perdure.hologram"), lambda each: each["kind"] == "shop.note" and each["data"] == 1)
    change(store, "document", newer("perdure.later"), lambda each: each["kind"] == "shop.lost")
    change(store, "task", newer("perdure.dream"), lambda each: each["kind"] == "shop.gone")
    change(store, "inbound", newer("telepathy"), lambda each: True)

    async with opened(store, "forked") as (one, _):
        fork = await one.conversation("fork")
        assert [entry.kind async for entry in fork.history()][::-1][1] == "perdure.hologram"
        await goes_on(fork)
    async with opened(store, "held") as (one, _):
        chat = await one.conversation("till")
        await goes_on(chat)
        (held,) = one.inspect().tasks
        assert (held.kind, held.state, held.reason) == ("perdure.dream", "held", "definition")
        await one.delete((await chat.fork()).id)
    async with perdure.open(str(store), mode="read", session="held") as one:
        assert (await one.task(held.id)).state is not None
    async with opened(store, "handed in") as (one, _):
        chat = await one.conversation("till")
        await goes_on(chat)


async def test_an_entry_that_cannot_be_read_is_named_and_other_conversations_go_on(store: Path):
    """A message of a kind that comes later: its conversation says so, the rest of the session works."""

    def message(record: dict[str, Any]) -> None:
        record["messages"] = [{"role": "hologram"}]

    change(store, "entry", message, lambda each: each["kind"] == "shop.note" and each["data"] == "own")
    async with opened(store, "forked") as (one, _):
        fork, leaf = await one.conversation("fork"), await one.conversation("leaf")
        with pytest.raises(PerdureError, match=r"entry \d+ of session 'forked'"):
            await fork.entries()
        await goes_on(leaf)
