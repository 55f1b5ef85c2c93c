"""Approvals: a hook asks, somebody decides, once, and the call goes on from there (K37, H24, K46)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.harness.conftest import messages, results, shapes

from perdure.errors import AlreadyAnswered, ConversationBusy, NotFound, UsageError
from perdure.harness.decisions import Allow, Ask, Deny, Edit, decision_of
from perdure.harness.hooks import Block, CallToJudge, Rewrite
from perdure.harness.registry import Extension, Registry, tool
from perdure.records import Aborted
from perdure.testing.scripted import answer, by_prompt, call, say

pytestmark = pytest.mark.anyio


class Bank:
    """`pay` is asked about, `look` is not. `hooks` come after what `guard` asks."""

    def __init__(self, *hooks: Any, **ask: Any) -> None:
        self.paid: list[Any] = []
        self.looked = 0
        self._ask = ask

        @tool
        async def pay(amount: int, to: str = "Ann") -> str:
            """Pay."""
            self.paid.append((amount, to))
            return f"paid {amount}"

        @tool
        async def look() -> str:
            """Look."""
            self.looked += 1
            return "looked"

        self.registry = Registry(
            [Extension(name="bank", tools=[pay, look], before_tool=[*([self.guard] if ask else []), *hooks])]
        )

    async def guard(self, seen: CallToJudge) -> Any:
        if seen.name == "pay" and "pay" not in seen.allowed:
            return Ask(f"pay {seen.arguments['amount']}?", **{"remember": ("pay",), **self._ask})
        return None


def payments(*amounts: int) -> Any:
    return answer(*(call("pay", {"amount": amount}) for amount in amounts))


async def asked(world: Any, bank: Bank, *amounts: int, script: Any = None) -> tuple[Any, Any, Any]:
    """A run whose payments are all asked about."""
    session = await world.open(
        by_prompt(script or {"pay": [payments(*amounts), say("ok")], "stop": say("stopped")}),
        registry=bank.registry,
    )
    chat = await session.conversation("a")
    sent = await chat.submit("pay")
    await world.until(lambda: len(session.inspect().questions) == len(amounts))
    return session, chat, sent


ASKS: dict[str, Any] = {"deadline": None}


# -- answers ------------------------------------------------------------------------------------


@pytest.mark.invariant("HA-60")
async def test_an_approved_call_runs_once_with_its_arguments(world: Any):
    bank = Bank(**ASKS)
    _session, chat, sent = await asked(world, bank, 5)
    (question,) = await chat.questions()

    assert (question.payload, question.call.name, question.call.arguments) == ("pay 5?", "pay", {"amount": 5})
    assert (await sent.status(), chat.busy, bank.paid) == ("asks", True, [])
    await question.answer(True, by="ann")
    assert (await sent.wait()).text == "ok"
    assert (bank.paid, await sent.status(), await chat.questions()) == ([(5, "Ann")], "done", [])


@pytest.mark.parametrize(
    "value, by, told",
    [
        (False, "ben", "denied by ben"),
        (Deny("too much"), None, "denied: too much"),
        ("no, ask the boss", "ann", "denied by ann: ask the boss"),
        ({"decision": "deny", "reason": "never"}, None, "denied: never"),
    ],
)
async def test_a_denied_call_does_not_run_and_the_model_is_told_why(world: Any, value: Any, by: Any, told: str):
    bank = Bank(**ASKS)
    _, chat, sent = await asked(world, bank, 5)
    await (await chat.questions())[0].answer(value, by=by)
    await sent.wait()
    (found,) = await results(chat)
    assert (bank.paid, found.error, found.text) == ([], "blocked", told)


@pytest.mark.parametrize("value", [Edit({"amount": 1}), 'edit {"amount": 1}'])
async def test_an_edited_call_runs_with_the_new_arguments(world: Any, value: Any):
    bank = Bank(**ASKS)
    _, chat, sent = await asked(world, bank, 5)
    await (await chat.questions())[0].answer(value)
    await sent.wait()
    assert bank.paid == [(1, "Ann")]


@pytest.mark.invariant("HA-62")
@pytest.mark.parametrize(
    "value",
    [Edit({"amount": "much"}), Edit({}), Edit({"sum": 1}), "perhaps", "", 7, None, {"decision": "allow", "x": 1}],
)
async def test_an_answer_that_decides_nothing_or_does_not_fit_is_refused_and_the_question_stays(world: Any, value: Any):
    bank = Bank(**ASKS)
    session, chat, sent = await asked(world, bank, 5)
    (question,) = await chat.questions()
    seq = session.inspect().seq

    with pytest.raises(UsageError):
        await question.answer(value)
    assert (session.inspect().seq, len(await chat.questions())) == (seq, 1)
    await question.answer(True)
    await sent.wait()
    assert bank.paid == [(5, "Ann")]


@pytest.mark.invariant("HA-63")
async def test_edited_arguments_are_judged_by_every_hook_and_nobody_is_asked_again(world: Any):
    judged: list[Any] = []

    async def limit(seen: CallToJudge) -> Any:
        judged.append(seen.arguments["amount"])
        return Block("over the limit") if seen.arguments["amount"] > 100 else None

    bank = Bank(limit, **ASKS)
    _, chat, sent = await asked(world, bank, 5, 6)
    first, second = await chat.questions()
    await first.answer(Edit({"amount": 1000}))
    await second.answer(Edit({"amount": 7}))
    await sent.wait()
    assert (bank.paid, sorted(judged)) == ([(7, "Ann")], [7, 1000])
    assert [found.text for found in await results(chat)] == ["over the limit", "paid 7"]


async def test_what_another_hook_made_of_the_call_is_what_is_asked_about(world: Any):
    async def halve(seen: CallToJudge) -> Any:
        return Rewrite({"amount": seen.arguments["amount"] // 2})

    bank = Bank(**ASKS)
    bank.registry = Registry(
        [
            Extension(name="halve", before_tool=[halve]),
            *bank.registry.extensions,
        ]
    )
    _, chat, sent = await asked(world, bank, 10)
    (question,) = await chat.questions()
    assert question.call.arguments == {"amount": 5}
    await question.answer(True)
    await sent.wait()
    assert bank.paid == [(5, "Ann")]


# -- several at a time --------------------------------------------------------------------------


@pytest.mark.invariant("HA-60")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_parallel_calls_have_a_question_each_and_get_their_own_answer_in_any_order(world: Any, order: Any):
    """I33."""
    bank = Bank(**ASKS)
    session, chat, sent = await asked(world, bank, 1, 2, 3)
    by_amount = {question.call.arguments["amount"]: question for question in await chat.questions()}
    answers = [Allow(), Deny("no"), Edit({"amount": 30})]
    for number, at in enumerate(order):
        await by_amount[at + 1].answer(answers[at])
        left = {question.id for question in session.inspect().questions}
        assert left == {by_amount[each + 1].id for each in order[number + 1 :]}

    assert (await sent.wait()).text == "ok"
    assert sorted(bank.paid) == [(1, "Ann"), (30, "Ann")]
    assert [found.text for found in await results(chat)] == ["paid 1", "denied: no", "paid 30"]


@pytest.mark.invariant("HA-61")
async def test_a_restart_between_answers_keeps_those_given_and_asks_for_the_others_only(world: Any):
    """I34, I35."""
    bank = Bank(**ASKS)
    session, chat, sent = await asked(world, bank, 1, 2, 3)
    ids = {question.call.arguments["amount"]: question.id for question in await chat.questions()}
    for amount in (2, 3, 1):
        session = await world.restart()
        assert {each.id for each in session.inspect().questions} == set(ids.values())
        answered = ids.pop(amount)
        await session.answer(answered, True, by=f"for {amount}")
        with pytest.raises(AlreadyAnswered, match=f"for {amount}"):
            await session.answer(answered, False)
    assert (await session.submission(sent.id).wait()).text == "ok"
    assert sorted(bank.paid) == [(1, "Ann"), (2, "Ann"), (3, "Ann")]


@pytest.mark.invariant("HA-61")
async def test_hooks_ask_one_after_another_each_once_also_over_restarts(world: Any):
    """I34: and the hooks that have judged do not judge again."""
    judged: list[str] = []

    async def first(seen: CallToJudge) -> Any:
        judged.append("first")
        return Rewrite({"amount": seen.arguments["amount"] + 1})

    async def second(seen: CallToJudge) -> Any:
        judged.append("second")
        return Ask("second?")

    async def third(seen: CallToJudge) -> Any:
        judged.append("third")
        return Ask("third?")

    bank = Bank(first, second, third)
    session, _chat, sent = await asked(world, bank, 5)
    for asking in ("second?", "third?"):
        session = await world.restart()
        await session.resume()
        await world.until(lambda: session.inspect().questions)  # noqa: B023
        (question,) = await (await session.conversation("a")).questions()
        assert (question.payload, question.call.arguments) == (asking, {"amount": 6})
        await question.answer(True)
        if asking == "second?":
            await world.until(lambda: [each.payload for each in session.inspect().questions] == ["third?"])  # noqa: B023
    await session.submission(sent.id).wait()
    assert (bank.paid, judged) == ([(6, "Ann")], ["first", "second", "third"])


@pytest.mark.invariant("HA-60")
async def test_of_answers_at_the_same_instant_one_decides_and_the_others_are_told_who(world: Any):
    """I36."""
    bank = Bank(**ASKS)
    _, chat, sent = await asked(world, bank, 5)
    (question,) = await chat.questions()
    answers = [question.answer(value, by=by) for value, by in ((True, "ann"), (False, "ben"), (True, "cho"))]
    first, *late = await asyncio.gather(*answers, return_exceptions=True)

    assert first is None
    assert [(type(each), getattr(each, "by", None)) for each in late] == [(AlreadyAnswered, "ann")] * 2
    await sent.wait()
    assert bank.paid == [(5, "Ann")]


# -- remembered ---------------------------------------------------------------------------------


@pytest.mark.invariant("HA-64")
async def test_what_is_allowed_for_good_is_not_asked_about_in_that_conversation_any_more(world: Any):
    bank = Bank(**ASKS)
    session, chat, sent = await asked(world, bank, 5)
    await (await chat.questions())[0].answer("always", by="ann")
    await sent.wait()
    assert (await (await chat.submit("pay")).wait()).text == "ok"
    assert bank.paid == [(5, "Ann"), (5, "Ann")]

    other = await session.conversation("b")
    await other.submit("pay")
    await world.until(lambda: session.inspect().questions)
    assert len(await other.questions()) == 1


@pytest.mark.invariant("HA-64")
async def test_a_fork_knows_what_was_allowed_before_its_entry_and_nothing_later(world: Any):
    bank = Bank(**ASKS)
    session, chat, sent = await asked(world, bank, 5)
    before = (await chat.entries())[0].id
    await (await chat.questions())[0].answer(Allow(always=True))
    await sent.wait()
    after = (await chat.entries())[0].id

    knowing, ignorant = await chat.fork(after), await chat.fork(before)
    assert (await (await knowing.submit("pay")).wait()).text == "ok"
    await ignorant.submit("pay")
    await world.until(lambda: session.inspect().questions)
    assert (len(await ignorant.questions()), len(bank.paid)) == (1, 2)


async def test_a_question_with_nothing_to_remember_cannot_be_answered_for_good(world: Any):
    bank = Bank(remember=())
    _, chat, sent = await asked(world, bank, 5)
    (question,) = await chat.questions()
    with pytest.raises(UsageError, match="nothing to remember"):
        await question.answer(Allow(always=True))
    await question.answer(True)
    await sent.wait()


# -- how a question ends otherwise --------------------------------------------------------------


@pytest.mark.invariant("HA-65")
@pytest.mark.parametrize(
    "default, paid, told",
    [
        ({}, [], "denied: nobody answered in time"),
        ({"default": True}, [(5, "Ann")], "paid 5"),
        ({"default": Edit({"amount": 1})}, [(1, "Ann")], "paid 1"),
    ],
)
async def test_at_its_deadline_the_default_decides_also_while_nobody_runs(
    world: Any, default: Any, paid: Any, told: str
):
    bank = Bank(deadline=60.0, **default)
    session, _, sent = await asked(world, bank, 5)
    (question,) = session.inspect().questions
    assert question.deadline == world.clock.now() + 60.0
    await world.close()
    await world.clock.advance(3600.0)
    session = await world.reopen()
    await session.submission(sent.id).wait()

    (found,) = await results(await session.conversation("a"))
    assert (bank.paid, found.text) == (paid, told)
    with pytest.raises(AlreadyAnswered, match="deadline"):
        await session.answer(question.id, True)


@pytest.mark.invariant("HA-66")
async def test_an_abort_ends_the_question_and_a_late_answer_changes_nothing(world: Any):
    bank = Bank(**ASKS)
    session, chat, _sent = await asked(world, bank, 5)
    (question,) = await chat.questions()
    await chat.abort(reason="changed my mind")
    seq = session.inspect().seq

    with pytest.raises(AlreadyAnswered, match="changed my mind"):
        await question.answer(True)
    (found,) = await results(chat)
    assert (session.inspect().seq, bank.paid, found.error) == (seq, [], "aborted")
    assert isinstance(await session.wait_task(question.id), Aborted)
    assert (await (await chat.submit("stop")).wait()).text == "stopped"


async def test_an_unknown_question_is_an_error_that_changes_nothing(world: Any):
    session, _, _ = await asked(world, Bank(**ASKS), 5)
    seq = session.inspect().seq
    for id in (99_999, session.inspect().tasks[0].id):
        with pytest.raises((NotFound, UsageError)):
            await session.answer(id, True)
    assert session.inspect().seq == seq


async def test_a_question_that_is_withdrawn_denies_the_call(world: Any):
    bank = Bank(**ASKS)
    session, chat, sent = await asked(world, bank, 5)
    await session.abort_task(session.inspect().questions[0].id, "asked too often")
    await sent.wait()
    (found,) = await results(chat)
    assert (bank.paid, found.text) == ([], "denied: the question was withdrawn: asked too often")


async def not_json(seen: CallToJudge) -> Any:
    return Ask(object())


async def no_number(seen: CallToJudge) -> Any:
    return Ask("?", deadline=float("nan"))


async def allowed_for_good_by_nobody(seen: CallToJudge) -> Any:
    return Ask("?", deadline=1.0, default=Allow(always=True))


@pytest.mark.invariant("HA-17")
@pytest.mark.parametrize("hook", [not_json, no_number, allowed_for_good_by_nobody])
async def test_a_question_that_cannot_be_asked_blocks_the_call(world: Any, hook: Any):
    bank = Bank(hook)
    _, chat, sent = await asked(world, bank, script={"pay": [payments(5), say("ok")]})
    await sent.wait()
    (found,) = await results(chat)
    assert (bank.paid, found.error) == ([], "blocked")


async def test_answers_as_people_type_them():
    assert [decision_of(text) for text in ("y", "Yes", "allow", " always ", "n", "no: too much", "deny not now")] == [
        Allow(), Allow(), Allow(), Allow(always=True), Deny(), Deny("too much"), Deny("not now")
    ]  # fmt: skip
    assert decision_of('edit {"command": "ls"}') == Edit({"command": "ls"})
    assert decision_of('{"decision": "allow", "always": true}') == Allow(always=True)
    for text in ("yes please", "a better way", "edit", "edit [1]", "{", "yse"):
        with pytest.raises(UsageError, match="answer allow"):
            decision_of(text)


# -- other messages while one is open -----------------------------------------------------------


@pytest.mark.invariant("HA-67")
async def test_a_steer_denies_what_is_asked_in_its_commit_and_joins_after_the_round(world: Any):
    """K46, I37."""
    bank = Bank(**ASKS)
    session, chat, sent = await asked(
        world, bank, 1, 2, script={"pay": [payments(1, 2), say("never")], "forget it": say("forgotten")}
    )
    questions = [question.id for question in await chat.questions()]
    steer = await chat.submit("forget it", when_busy="steer")

    with pytest.raises(AlreadyAnswered, match="steer"):
        await session.answer(questions[0], True)
    assert (await sent.wait()).text == (await steer.wait()).text == "forgotten"
    assert [found.text for found in await results(chat)] == ["denied: superseded by a newer message"] * 2
    assert bank.paid == []


@pytest.mark.invariant("HA-67")
async def test_nothing_is_asked_while_a_steer_waits_to_join(world: Any):
    """Else the steer would wait for somebody who has said something else meanwhile."""
    going = asyncio.Event()

    async def think(seen: CallToJudge) -> Any:
        await going.wait()

    bank = Bank(**ASKS)
    bank.registry = Registry([Extension(name="think", before_tool=[think]), *bank.registry.extensions])
    session = await world.open(
        by_prompt({"pay": [payments(5), say("never")], "forget it": say("forgotten")}), registry=bank.registry
    )
    chat = await session.conversation("a")
    sent = await chat.submit("pay")
    await world.until(lambda: any(task.label == "pay" for task in session.inspect().tasks))
    await chat.submit("forget it", when_busy="steer")
    going.set()
    assert (await sent.wait()).text == "forgotten"
    assert bank.paid == []


async def test_a_follow_up_waits_visibly_and_a_reject_says_that_it_is_busy(world: Any):
    bank = Bank(**ASKS)
    _, chat, sent = await asked(world, bank, 5)
    later = await chat.submit("stop")
    with pytest.raises(ConversationBusy):
        await chat.submit("stop", when_busy="reject")

    assert ([item.id for item in chat.inbox()], await later.status()) == ([later.id], "queued")
    (question,) = await chat.questions()
    await question.answer(True)
    assert [(await each.wait()).text for each in (sent, later)] == ["ok", "stopped"]


@pytest.mark.invariant("HA-61")
async def test_approving_goes_on_from_where_the_run_waits(world: Any):
    """I38: rounds before are not repeated, and until the answer the run is shown as asking."""
    bank = Bank(**ASKS)
    session, _, sent = await asked(
        world, bank, 5, script={"pay": [call("look", {}), payments(5), call("look", {}), say("ok")]}
    )
    assert (await sent.status(), bank.looked) == ("asks", 1)
    session = await world.restart()
    assert await session.submission(sent.id).status() == "asks"
    await session.answer(session.inspect().questions[0].id, True)
    assert (await session.submission(sent.id).wait()).text == "ok"
    assert (bank.looked, bank.paid) == (2, [(5, "Ann")])


async def test_a_call_approved_in_another_process_is_stored_once_with_its_one_result(world: Any):
    """I09: and the next message finds a valid transcript."""
    bank = Bank(**ASKS)
    session, _, sent = await asked(world, bank, 5)
    question = session.inspect().questions[0].id
    session = await world.restart()
    await session.answer(question, True)
    session = await world.restart()
    await session.submission(sent.id).wait()
    session = await world.restart()
    chat = await session.conversation("a")

    assert (await (await chat.submit("stop")).wait()).text == "stopped"
    assert shapes(await messages(chat)) == ["user", "assistant(1)", "tool", "assistant", "user", "assistant"]
