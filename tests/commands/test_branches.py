"""`perdure fork`, `tree`, `usage`, `rm` and `prune`, beside an owner and without one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import perdure
from perdure.cli import cli
from perdure.model import Usage
from perdure.records import Task
from perdure.tasks.definition import TaskDefinition, phase
from perdure.testing.scripted import ScriptedModel, answer, say

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
NOTE = perdure.entry_kind("test.note")
STORE = ".perdure/store.db"


def invoke(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, list(args))
    return done.exit_code, done.output


async def beside(*args: str) -> tuple[int, str]:
    """Run it on a thread of its own, beside the session of this process where there is one."""
    return await asyncio.to_thread(invoke, *args)


class Owning(TaskDefinition):
    kind = "test.owning"

    @phase(first=True)
    async def run(self, invocation: Any) -> None:
        async with invocation.commit() as tx:
            home = tx.create_conversation(owner=invocation.id, title="look into it")
            tx.append(home.id, NOTE, data=1)
            tx.complete()


REGISTRY = perdure.Registry([perdure.Extension(name="test", tasks=[Owning()])])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(**options: Any) -> Any:
    model = ScriptedModel([answer(say("ok"), usage=Usage(input=1500, output=2, cost=0.25))])
    return perdure.open(STORE, registry=REGISTRY, model=model, **options)


async def test_a_fork_is_made_by_the_owner_or_where_there_is_none_by_itself():
    async with opened() as session:
        chat = await session.conversation("till")
        done = await (await chat.submit("hello")).wait()
        code, said = await beside("fork", "till", "--at", str(done.entry), "--key", "other", "--json")
        made = msgspec.json.decode(said)
        assert (code, made["key"], made["at"]) == (0, "other", done.entry)
        assert (await (await session.conversation("other")).record()).parent.conversation == chat.id
    assert await beside("fork", "till") == (
        0,
        f"conversation {made['conversation'] + 1} goes on from entry {done.answer.id}\n",
    )
    code, said = await beside("fork", "till", "--key", "other")
    assert (code, "key 'other' belongs to another conversation" in said) == (2, True)
    code, said = await beside("fork", "till", "--at", "9999")
    assert (code, f"conversation {chat.id} sees no entry 9999" in said) == (2, True)


async def test_the_tree_is_drawn_with_forks_owned_conversations_titles_and_counts():
    async with opened() as session:
        root, chat = await session.root(), await session.conversation("till")
        async with chat.commit() as tx:
            entry = tx.append(chat.id, NOTE, data=1)
            task: Task = tx.create_task(Owning)
        await session.wait_task(task.id)
        fork = await chat.fork(entry.id, key="fork")
        again = await fork.fork(entry.id)
        (owned,) = [each.id for each in await session.conversations() if each.owner is not None]
        code, drawn = await beside("tree")
    assert code == 0
    assert drawn == (
        f"{root.id} (0 entries)\n"
        f"{chat.id} till (1 entry)\n"
        f'├─ {owned} "look into it" (owned by task {task.id}, 1 entry)\n'
        f"└─ {fork.id} fork (forked at {entry.id}, 0 entries)\n"
        f"   └─ {again.id} (forked at {entry.id}, 0 entries)\n"
    )
    lines = [msgspec.json.decode(line) for line in (await beside("tree", "fork", "--json"))[1].splitlines()]
    assert [(line["id"], line["under"], line["entries"]) for line in lines] == [
        (fork.id, chat.id, 0),
        (again.id, fork.id, 0),
    ]


async def test_usage_is_shown_for_a_conversation_and_for_the_session():
    async with opened() as session:
        chat = await session.conversation("till")
        await (await chat.submit("hello")).wait()
    code, said = await beside("usage", "till")
    assert code == 0
    assert " ".join(said.splitlines()[1].split()) == "model requests input cache read cache write output reasoning cost"
    assert said.splitlines()[2].split() == ["scripted", "1", "1,500", "-", "-", "2", "-", "$0.2500"]
    report = msgspec.json.decode((await beside("usage", "--json"))[1])
    assert report["used"]["models"]["scripted"] == {
        "requests": 1,
        "unknown": 0,
        "input": 1500,
        "output": 2,
        "cost": 0.25,
    }


async def test_a_conversation_is_deleted_by_the_owner_or_where_there_is_none_by_itself():
    async with opened() as session:
        root = await session.root()
        code, said = await beside("rm", str(root.id))
        assert (code, "the root conversation stays" in said) == (2, True)
        keys = ("one", "two")
        ids = [(await session.conversation(key)).id for key in keys]
        code, said = await beside("rm", "one", "--json")
        assert (code, msgspec.json.decode(said)) == (0, {"deleted": [ids[0]]})
        async with (await session.conversation("two")).commit() as tx:
            tx.timer(tx.now + 1000, owner=await tx.use(ids[1]))
        code, said = await beside("rm", "two")
        assert (code, "has live work" in said) == (2, True)
        await (await session.conversation("two")).abort()
    assert await beside("rm", "two") == (0, "conversation two is deleted\n")
    code, said = await beside("rm", "two")
    assert (code, "no conversation 'two'" in said) == (2, True)
    async with perdure.open(STORE) as session:
        storage = session._line.storage
        for id in ids:
            assert await storage.read_conversation("main", id) is None


async def test_pruning_says_what_it_would_forget_beside_the_owner_and_forgets_it_when_that_has_ended():
    async with opened() as session:
        chat = await session.conversation("till")
        await (await chat.submit("hello")).wait()
        assert await beside("prune", "--older-than", "0s", "--dry-run") == (
            0,
            "would forget 1 tasks, 1 submissions, 0 taken hand-ins\n",
        )
        code, said = await beside("prune", "--older-than", "0s")
        assert (code, "prune when it has ended" in said) == (1, True)
    assert (await beside("prune", "--older-than", "1w"))[1] == "forgot 0 tasks, 0 submissions, 0 taken hand-ins\n"
    report = msgspec.json.decode((await beside("prune", "--older-than", "0s", "--json"))[1])
    assert report == {"dry_run": False, "tasks": 1, "submissions": 1, "inbound": 0}
    code, said = await beside("prune", "--older-than", "soon")
    assert (code, "'soon' is no age" in said) == (2, True)
