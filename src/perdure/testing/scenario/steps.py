"""What the kernel can do, one commit after another, each of which says in the same commit that it was made.

So a run that goes on after a crash makes every commit once, and ends in exactly the state of a run without any.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from perdure.app.session import Session
from perdure.errors import NotFound
from perdure.harness.submissions import submit_write
from perdure.messages import user
from perdure.records import Edit, EntryId, TaskId
from perdure.session.documents import document
from perdure.session.transaction import entry_kind
from perdure.tasks.definition import TaskDefinition, phase
from perdure.tasks.invocation import Invocation
from perdure.tasks.questions import answer
from perdure.tasks.transaction import TaskTransaction

#: How many steps were made, and the ids that later ones need.
TALLY = document("scenario.tally", scope="session", initial=lambda: {"steps": 0, "ids": {}})
PLAN = document("scenario.plan", history="rewindable", fork="as_of")
CART = document("scenario.cart", fork="current")
SHEET = document("scenario.sheet", scope="task")
REMARK = entry_kind("scenario.remark")

Ids = Any
#: In one commit together with the tally; or several commits of its own that may be asked for again, then the tally.
Step = Callable[[TaskTransaction, Ids], Awaitable[None]]
Call = Callable[[Session, Ids], Awaitable[None]]


class Gone(TaskDefinition):
    """Its code is never installed."""

    kind = "scenario.gone"

    @phase(first=True)
    async def work(self, invocation: Invocation) -> None:
        raise AssertionError("nobody installed this")


async def take_step(session: Session) -> int | None:
    """Make the next step; its number, counted from 1, or None where all are made."""
    tally: dict[str, Any] = await session.snapshot(TALLY) or {"steps": 0, "ids": {}}
    number: int = tally["steps"]
    if number >= len(STEPS):
        return None
    call = CALLS.get(STEPS[number])
    if call is not None:
        await call(session, tally["ids"])
    async with session.commit() as tx:
        draft = await tx.doc(TALLY)
        await STEPS[number](tx, draft["ids"])
        draft["steps"] = number + 1
    return number + 1


async def begin(tx: TaskTransaction, ids: Ids) -> None:
    home = tx.create_conversation(key="home")
    ids["home"] = home.id
    ids["first"] = tx.append(home.id, REMARK, messages=(user("one"),), data={"n": 1}).id
    plan = await tx.doc(PLAN, home.id)
    plan["items"] = [{"id": number, "name": f"item {number}", "tags": ["new"]} for number in range(4)]
    cart = await tx.doc(CART, home.id)
    cart["lines"] = {"apple": 1}


async def rearrange(tx: TaskTransaction, ids: Ids) -> None:
    plan = await tx.doc(PLAN, ids["home"])
    items = plan["items"]
    items[1]["tags"].append("seen")
    items.insert(0, {"id": 9, "name": "nine", "tags": []})
    del items[2:4]
    plan["best"] = items[-1]
    items.reverse()
    for number in (1, 2):
        family = await tx.doc(CART, ids["home"], key=f"guest {number}")
        family["lines"] = {"pear": number}


async def head(tx: TaskTransaction, ids: Ids) -> None:
    home = ids["home"]
    ids["second"] = tx.append(home, REMARK, messages=(user("two"),)).id
    ids["head"] = tx.append(home, REMARK, messages=(user("from here on"),), heads_itself=True).id
    tx.append(home, REMARK, messages=(user("three"),))


async def edit(tx: TaskTransaction, ids: Ids) -> None:
    target = EntryId(ids["first"])
    tx.append(ids["home"], REMARK, edits=(Edit(entry=target, messages=(user("one, corrected"),)),))
    (await tx.doc(PLAN, ids["home"]))["text"] = "word " * 500


async def fork(tx: TaskTransaction, ids: Ids) -> None:
    child = await tx.fork(ids["home"], EntryId(ids["head"]), key="fork")
    ids["fork"] = child.id
    tx.append(child.id, REMARK, messages=(user("elsewhere"),))


async def part_ways(tx: TaskTransaction, ids: Ids) -> None:
    (await tx.doc(PLAN, ids["fork"]))["items"].append({"id": 77})
    (await tx.doc(CART, ids["fork"]))["lines"]["plum"] = 3
    (await tx.doc(CART, ids["home"]))["lines"]["apple"] = 2
    (await tx.doc(PLAN, ids["home"]))["items"].pop()


async def ask(tx: TaskTransaction, ids: Ids) -> None:
    home = await tx.use(ids["home"])
    ids["question"] = tx.ask({"may": "I"}, owner=home).id
    ids["timer"] = tx.timer(tx.now + 10**6, owner=home).id


async def decide(tx: TaskTransaction, ids: Ids) -> None:
    await answer(tx, TaskId(ids["question"]), "yes", by="me")
    tx.append(ids["home"], REMARK, data={"answered": ids["question"]})


async def hold(tx: TaskTransaction, ids: Ids) -> None:
    gone = tx.create_task(Gone, {"n": 1}, owner=await tx.use(ids["fork"]), background=True)
    ids["gone"] = gone.id
    sheet = await tx.doc(SHEET, gone.id)
    sheet["cells"] = [1, 2, 3]


async def scratch(tx: TaskTransaction, ids: Ids) -> None:
    sheet = await tx.doc(SHEET, ids["gone"])
    sheet["cells"].extend([4, 5])
    tx.abort_task(TaskId(ids["timer"]), "not needed")


async def orphan(tx: TaskTransaction, ids: Ids) -> None:
    tx.abort_task(TaskId(ids["gone"]), "nobody comes")
    (await tx.doc(PLAN, ids["home"]))["text"] = "word " * 600


async def write(tx: TaskTransaction, ids: Ids) -> None:
    harness: Any = None  # an idle conversation's write asks no setting
    sent = await submit_write(harness, tx, ids["fork"], REMARK.name, {"by": "write"}, request_id="once")
    ids["written"] = sent.id


async def spare(tx: TaskTransaction, ids: Ids) -> None:
    """A conversation and a fork of it, only to be deleted."""
    harness: Any = None
    spare = tx.create_conversation(key="spare")
    ids["spare"] = spare.id
    seen = tx.append(spare.id, REMARK, messages=(user("for a while"),))
    tx.append(spare.id, REMARK, messages=(user("seen by nobody else"),))
    (await tx.doc(PLAN, spare.id))["items"] = [1, 2, 3]
    (await tx.doc(CART, spare.id, key="guest"))["lines"] = {}
    await submit_write(harness, tx, spare.id, REMARK.name, {"by": "write"}, request_id="once")
    ids["seen"] = seen.id


async def fork_spare(tx: TaskTransaction, ids: Ids) -> None:
    ids["spare fork"] = (await tx.fork(ids["spare"], EntryId(ids["seen"]), key="spare fork")).id


async def delete_spare(session: Session, ids: Ids) -> None:
    """Leaves what the fork sees."""
    with suppress(NotFound):  # it was deleted before the crash
        await session.delete(ids["spare"])


async def delete_spare_fork(session: Session, ids: Ids) -> None:
    """Takes what was kept for it along."""
    with suppress(NotFound):
        await session.delete(ids["spare fork"])


async def prune(session: Session, ids: Ids) -> None:
    await session.prune(older_than=-(10**6))


async def spare_gone(tx: TaskTransaction, ids: Ids) -> None:
    """The key is free."""
    assert await tx.find_conversation("spare") is None


async def both_gone(tx: TaskTransaction, ids: Ids) -> None:
    tx.create_conversation(key="spare fork")


async def pruned(tx: TaskTransaction, ids: Ids) -> None:
    tx.append(ids["home"], REMARK, data={"pruned": True})


#: The calls that come before a step.
CALLS: dict[Step, Call] = {spare_gone: delete_spare, both_gone: delete_spare_fork, pruned: prune}
STEPS: tuple[Step, ...] = (
    begin,
    rearrange,
    head,
    edit,
    fork,
    part_ways,
    ask,
    decide,
    hold,
    scratch,
    orphan,
    write,
    spare,
    fork_spare,
    spare_gone,
    both_gone,
    pruned,
)
