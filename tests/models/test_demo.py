"""What the demo model makes of prompts, with tools that it has never seen."""

from __future__ import annotations

import msgspec
import pytest

from perdure.errors import UsageError
from perdure.messages import AssistantMessage, Text, calls_of, user
from perdure.model import CallDelta, CallStart, Finished, Request, TextDelta
from perdure.providers.demo import LABEL, DemoModel, open_model
from perdure.testing.model_contract import ModelContract
from perdure.testing.strict import StrictModel

pytestmark = pytest.mark.anyio


class TestDemoModel(ModelContract):
    deterministic = True

    @pytest.fixture
    def model(self):
        return DemoModel()

    def failing_request(self, model):
        return Request(model=model.name, messages=(user("demo:auth"),))

    def cut_request(self, model):
        return Request(model=model.name, messages=(user("demo:cut hello"),))

    def hanging_request(self, model):
        return Request(model=model.name, messages=(user("demo:hang hello"),))


ONE_STEP = {
    "Pay Ann 5": ("pay", {"amount": 5, "to": "Ann"}),
    "Please pay 12 to Bob Miller.": ("pay", {"amount": 12, "to": "Bob Miller"}),
    "run `ls -la | wc -l`": ("bash", {"command": "ls -la | wc -l"}),
    "execute `true` with timeout 2.5": ("bash", {"command": "true", "timeout": 2.5}),
    "write hello to a.txt": ("write", {"path": "a.txt", "content": "hello"}),
    'save "two words" in notes/b.md': ("write", {"path": "notes/b.md", "content": "two words"}),
    "write `see b.txt` to a.txt": ("write", {"path": "a.txt", "content": "see b.txt"}),
    "show me src/main.py, limit 10": ("read", {"path": "src/main.py", "limit": 10}),
    'replace "foo" by "bar" in src/main.py': ("edit", {"path": "src/main.py", "old": "foo", "new": "bar"}),
    "What is the population of Berlin?": ("lookup", {"city": "Berlin"}),
    "look up New York": ("lookup", {"city": "New York"}),
    "add 3 and 4.5": ("add", {"a": 3, "b": 4.5}),
    "use add with a=1 and b=-2": ("add", {"a": 1, "b": -2}),
    'send an email to ann@x.com and bob@y.org with subject "Lunch" and body "At noon?"': (
        "send_email",
        {"to": ["ann@x.com", "bob@y.org"], "subject": "Lunch", "body": "At noon?"},
    ),
    "Book a flight from Berlin to New York on 2026-12-24 for 2 people in business, not refundable": (
        "book_flight",
        {
            "origin": "Berlin",
            "destination": "New York",
            "date": "2026-12-24",
            "seats": 2,
            "cabin": "business",
            "refundable": False,
        },
    ),
}


@pytest.mark.parametrize("prompt, call", ONE_STEP.items(), ids=lambda value: value if isinstance(value, str) else "")
async def test_one_step_is_one_call_of_the_tool_that_it_names(prompt, call, shop, talk):
    conversation = talk(StrictModel(DemoModel()), shop)

    await conversation.ask(prompt)

    assert conversation.calls == [call]


SEVERAL = {
    "write hello to a.txt, then run `ls`, then pay 5 to Ann": ([1, 1, 1], ["write", "bash", "pay"]),
    'Write "x" to a.txt and read it back. Then run `cat a.txt`.': ([1, 1, 1], ["write", "read", "bash"]),
    "1. write 'a' to a.txt\n2. read a.txt\n3. pay 1 to Bob": ([1, 1, 1], ["write", "read", "pay"]),
    "- pay 1 to Ann\n- pay 1 to Ann\n": ([1, 1], ["pay", "pay"]),
    "look up Berlin, Paris and Rome in parallel": ([3], ["lookup", "lookup", "lookup"]),
    "Run `a` and `b` at the same time, then pay 5 to Ann": ([2, 1], ["bash", "bash", "pay"]),
    "Write 'a' to a.txt. Write 'b' to b.txt. Do both at once. Then read a.txt.": ([2, 1], ["write", "write", "read"]),
    "pay 5 to Ann and Bob": ([1, 1], ["pay", "pay"]),
}


@pytest.mark.parametrize("prompt, expected", SEVERAL.items(), ids=lambda value: value if isinstance(value, str) else "")
async def test_several_steps_are_calls_in_their_order_and_at_once_where_the_prompt_says_so(
    prompt, expected, shop, talk
):
    conversation = talk(StrictModel(DemoModel()), shop)

    await conversation.ask(prompt)

    assert (conversation.rounds, [name for name, _ in conversation.calls]) == expected


async def test_steps_of_one_round_get_their_own_arguments(shop, talk):
    conversation = talk(DemoModel(), shop)

    await conversation.ask("pay 5 to Ann and Bob")
    await conversation.ask("look up Berlin, Paris and Rome in parallel")

    assert [list(arguments.values()) for _, arguments in conversation.calls] == [
        [5, "Ann"],
        [5, "Bob"],
        ["Berlin"],
        ["Paris"],
        ["Rome"],
    ]


async def test_the_summary_has_what_each_call_answered(shop, talk):
    conversation = talk(DemoModel(), shop, lambda name, arguments: f"{name} says {arguments}")

    answer = await conversation.ask("run `ls`, then look up Berlin")

    assert "bash says {'command': 'ls'}" in answer
    assert "lookup says {'city': 'Berlin'}" in answer


async def test_an_error_is_explained_and_its_step_is_not_repeated(shop, talk):
    def run(name: str, arguments: object):
        return ("timeout", "took longer than 30 s") if name == "bash" else "ok"

    conversation = talk(DemoModel(), shop, run)

    answer = await conversation.ask("run `sleep 99`, then pay 5 to Ann")

    assert [name for name, _ in conversation.calls] == ["bash", "pay"]
    assert "bash failed (timeout): took longer than 30 s" in conversation.said[1]
    assert "1 of 2 done" in answer


async def test_an_interrupted_call_is_not_repeated_and_called_unknown(shop, talk):
    conversation = talk(DemoModel(), shop, lambda name, arguments: ("interrupted", "the process ended"))

    await conversation.ask("pay 5 to Ann, then run `ls`")

    assert [name for name, _ in conversation.calls] == ["pay", "bash"]
    assert "pay was interrupted: it may have happened" in conversation.said[1]


async def test_every_answer_says_that_it_is_the_demo_model(shop, talk):
    conversation = talk(DemoModel(), shop)

    await conversation.ask("pay 5 to Ann, then run `ls`")
    await conversation.ask("Hello!")
    await conversation.ask("demo:refuse")
    await conversation.ask("demo:length tell me a story")

    assert len(conversation.said) == 6
    assert all(text.startswith(LABEL) for text in conversation.said)


async def test_talk_calls_no_tool_and_names_those_there_are(shop, talk):
    conversation = talk(DemoModel(), shop)

    answer = await conversation.ask("Good morning!")

    assert conversation.calls == []
    assert "Good morning!" in answer
    assert "bash" in answer


async def test_without_tools_it_says_so(talk):
    assert "No tools are offered" in await talk(DemoModel(), ()).ask("pay 5 to Ann")


async def test_a_follow_up_does_not_repeat_the_run_before_it(shop, talk):
    conversation = talk(DemoModel(), shop)

    await conversation.ask("pay 5 to Ann")
    await conversation.ask("run `ls`")

    assert [name for name, _ in conversation.calls] == ["pay", "bash"]


async def test_a_steer_adds_its_steps_to_the_run(shop, talk):
    def run(name: str, arguments: object):
        if name == "pay":
            conversation.append(user("and run `ls`"))
        return "ok"

    conversation = talk(StrictModel(DemoModel()), shop, run)

    await conversation.ask("pay 5 to Ann, then look up Berlin")

    assert [name for name, _ in conversation.calls] == ["pay", "lookup", "bash"]


async def test_a_stopped_run_is_not_taken_up_by_the_next_one(shop, talk):
    conversation = talk(StrictModel(DemoModel()), shop)
    conversation.append(user("pay 5 to Ann"))
    conversation.append(AssistantMessage(parts=(Text(text="(demo model) Step 1"),), stop="aborted", model="demo"))

    await conversation.ask("run `ls`")

    assert [name for name, _ in conversation.calls] == ["bash"]


async def test_a_note_in_brackets_is_no_task(shop, talk):
    conversation = talk(DemoModel(), shop)
    conversation.append(user("[Summary: the user said: pay 5 to Ann]"))

    await conversation.ask("run `ls`")

    assert [name for name, _ in conversation.calls] == ["bash"]


async def test_it_goes_on_from_the_messages_alone(shop, talk):
    """Another process has the same transcript and makes the same next call."""
    first = talk(DemoModel(), shop)
    with pytest.raises(AssertionError, match="no answer within 2 rounds"):
        await first.ask("write hello to a.txt, then run `ls`, then pay 5 to Ann", rounds=2)
    second = talk(DemoModel(), shop)
    second.entries = first.entries

    answer = await second.answer()

    assert [call.name for call in calls_of(answer)] == ["pay"]


async def test_a_tool_that_vanished_in_the_middle_of_a_run_does_not_repeat_the_others(shop, talk):
    def run(name: str, arguments: object):
        conversation.tools = tuple(tool for tool in shop if tool.name != "write")
        return "ok"

    conversation = talk(StrictModel(DemoModel()), shop, run)

    await conversation.ask("write hello to a.txt, then run `ls`, then pay 5 to Ann")

    assert [name for name, _ in conversation.calls] == ["write", "bash", "pay"]


async def test_text_and_arguments_come_in_several_pieces_and_usage_is_told(shop):
    request = Request(model="demo", messages=(user("pay 5 to Ann"),), tools=shop)

    events = [event async for event in DemoModel().stream(request)]

    assert sum(isinstance(event, TextDelta) for event in events) > 1
    assert sum(isinstance(event, CallDelta) for event in events) > 1
    assert isinstance(events[-1], Finished)
    assert events[-1].usage is not None
    assert events[-1].usage.cost == 0.0
    assert (events[-1].usage.input or 0) > 0
    assert (events[-1].usage.output or 0) > 0


async def test_provider_ids_repeat_in_each_round_as_those_of_real_models_may(shop, talk):
    conversation = talk(StrictModel(DemoModel()), shop)

    await conversation.ask("pay 5 to Ann, then run `ls`")

    calls = [call for entry in conversation.entries for message in entry.messages for call in calls_of(message)]
    ids = [call.provider_id for call in calls]
    assert ids == ["call_0", "call_0"]


@pytest.mark.parametrize(
    "spec, window", [("demo", None), ("demo:slow=0.05", None), ("demo:window=8000,sleep=0.1", 8000)]
)
def test_a_spec_opens_the_model_that_has_it_as_its_name(spec, window):
    model = open_model(spec)

    assert (model.name, model.context_window) == (spec, window)


@pytest.mark.parametrize(
    "spec, remedy",
    [("demo:fast=1", "'fast'; it has slow, sleep, window"), ("demo:slow=x", "slow=x"), ("gpt", "'gpt'")],
)
def test_a_spec_that_it_does_not_know_is_refused_with_a_remedy(spec, remedy):
    with pytest.raises(UsageError, match=remedy):
        open_model(spec)


@pytest.mark.slow
async def test_a_prompt_of_any_length_and_kind_is_planned_in_no_time(shop):
    words = "\x00\ud800 pay 5 to Ann, " * 2000 + "`" * 999 + " " * 50_000 + "a-" * 20_000 + "\n" * 9_999
    request = Request(model="demo", messages=(user(words),), tools=shop)

    events = [event async for event in DemoModel().stream(request)]

    assert any(isinstance(event, CallStart) and event.name == "pay" for event in events)
    assert msgspec.json.encode(events)
