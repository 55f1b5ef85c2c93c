"""What every model promises, as tests: inherit `ModelContract` and give it a `model` fixture."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from perdure.errors import ModelError
from perdure.messages import AssistantMessage, Text, ToolCall, ToolMessage, user
from perdure.model import (
    CallDelta,
    CallStart,
    Finished,
    Heartbeat,
    Model,
    ModelEvent,
    Request,
    TextDelta,
    ThinkingDelta,
    ToolSpec,
)

LOOKUP = ToolSpec(
    name="lookup",
    description="Population of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


async def read_events(model: Model, request: Request) -> list[ModelEvent]:
    """The whole stream."""
    return [event async for event in model.stream(request)]


@pytest.mark.anyio
class ModelContract:
    """The laws of the model port. Override the requests where a model needs other words; None skips what it has not."""

    #: The same request gives the same events.
    deterministic = False

    @pytest.fixture
    def model(self) -> Model:
        raise NotImplementedError("give the contract a fixture named `model`")

    # -- requests

    def request(self, model: Model) -> Request:
        """One that is answered with text."""
        return Request(model=model.name, messages=(user("Hello."),))

    def tool_request(self, model: Model) -> Request | None:
        """One that is answered with at least one call of an offered tool."""
        text = "Look up the population of Berlin."
        return Request(model=model.name, messages=(user(text),), tools=(LOOKUP,))

    def failing_request(self, model: Model) -> Request | None:
        """One that fails."""
        return None

    def cut_request(self, model: Model) -> Request | None:
        """One whose stream ends in the middle."""
        return None

    def hanging_request(self, model: Model) -> Request | None:
        """One whose stream goes silent after its first event."""
        return None

    # -- laws

    async def test_the_model_has_a_name_and_maybe_a_window(self, model: Model) -> None:
        assert model.name
        assert model.context_window is None or model.context_window > 0

    async def test_an_answer_ends_with_its_one_finish(self, model: Model) -> None:
        events = await read_events(model, self.request(model))

        assert [event for event in events if isinstance(event, Finished)] == events[-1:]

    async def test_an_answer_says_something(self, model: Model) -> None:
        events = await read_events(model, self.request(model))

        assert "".join(event.text for event in events if isinstance(event, TextDelta)).strip()

    async def test_usage_is_unknown_or_not_negative(self, model: Model) -> None:
        finish = (await read_events(model, self.request(model)))[-1]

        assert isinstance(finish, Finished)
        counts = msgspec.structs.asdict(finish.usage).values() if finish.usage else ()
        assert all(count is None or count >= 0 for count in counts)

    async def test_calls_start_in_the_order_of_their_indexes(self, model: Model) -> None:
        events = await self._tool_events(model)
        starts = [event.index for event in events if isinstance(event, CallStart)]

        assert starts == list(range(len(starts)))
        assert starts

    async def test_arguments_follow_the_start_of_their_call(self, model: Model) -> None:
        started: set[int] = set()
        for event in await self._tool_events(model):
            if isinstance(event, CallStart):
                started.add(event.index)
            elif isinstance(event, CallDelta):
                assert event.index in started

    async def test_a_finished_answer_with_calls_stops_for_them(self, model: Model) -> None:
        finish = (await self._tool_events(model))[-1]

        assert isinstance(finish, Finished)
        assert finish.stop == "tool_calls"

    async def test_calls_are_of_offered_tools_and_their_arguments_are_objects(self, model: Model) -> None:
        arguments: dict[int, str] = {}
        for event in await self._tool_events(model):
            if isinstance(event, CallStart):
                assert event.name == LOOKUP.name
                arguments[event.index] = ""
            elif isinstance(event, CallDelta):
                arguments[event.index] += event.arguments

        assert all(isinstance(msgspec.json.decode(text or "{}"), dict) for text in arguments.values())

    async def test_results_and_errors_of_earlier_calls_are_taken(self, model: Model) -> None:
        request = self._asked(model, self.tool_request)
        call = ToolCall(name="lookup", arguments={"city": "Berlin"}, provider_id="call_2_0")
        other = ToolCall(name="lookup", arguments={"city": "Paris"}, provider_id="call_2_1")
        said = AssistantMessage(parts=(Text(text="I look."), call, other), stop="tool_calls", model=model.name)
        results = (
            ToolMessage(call="call_2_0", name="lookup", text="3.6 million"),
            ToolMessage(call="call_2_1", name="lookup", text="outcome unknown", error="interrupted"),
        )
        messages = (*request.messages, said, *results)

        events = await read_events(model, msgspec.structs.replace(request, messages=messages))

        assert isinstance(events[-1], Finished)

    async def test_a_request_is_left_as_it_was(self, model: Model) -> None:
        request = self.tool_request(model) or self.request(model)
        before = msgspec.json.encode(request)

        await read_events(model, request)

        assert msgspec.json.encode(request) == before

    async def test_the_same_request_gives_the_same_events(self, model: Model) -> None:
        if not self.deterministic:
            pytest.skip("this model does not promise to repeat itself")
        request = self.tool_request(model) or self.request(model)

        assert await read_events(model, request) == await read_events(model, request)

    async def test_two_requests_at_once_do_not_mix(self, model: Model) -> None:
        streams = [model.stream(self.request(model)) for _ in range(2)]
        events: list[list[ModelEvent]] = [[], []]
        live = {0, 1}
        while live:
            for at in sorted(live):
                event = await anext(streams[at], None)
                if event is None:
                    live.discard(at)
                else:
                    events[at].append(event)

        for each in events:
            assert [event for event in each if isinstance(event, Finished)] == each[-1:]
        assert not self.deterministic or events[0] == events[1]

    async def test_a_stream_that_is_left_early_leaves_the_model_as_it_was(self, model: Model) -> None:
        stream = model.stream(self.request(model))
        await anext(stream)
        await _close(stream)

        assert isinstance((await read_events(model, self.request(model)))[-1], Finished)

    async def test_a_failure_is_a_model_error_that_says_what_to_do(self, model: Model) -> None:
        request = self._asked(model, self.failing_request)

        with pytest.raises(ModelError) as caught:
            await read_events(model, request)

        assert caught.value.kind in ModelError.KINDS
        assert str(caught.value)

    async def test_a_cut_stream_is_never_finished(self, model: Model) -> None:
        request = self._asked(model, self.cut_request)
        events: list[ModelEvent] = []
        kind = "cut"

        try:
            async for event in model.stream(request):
                events.append(event)
        except ModelError as error:
            kind = error.kind

        assert not any(isinstance(event, Finished) for event in events)
        assert kind == "cut"

    async def test_cancelling_a_request_ends_it_at_once(self, model: Model) -> None:
        request = self._asked(model, self.hanging_request)
        heard: asyncio.Event = asyncio.Event()

        async def listen() -> None:
            async for event in model.stream(request):
                assert not isinstance(event, Finished)
                heard.set()

        listening = asyncio.create_task(listen())
        await asyncio.wait_for(heard.wait(), 10)
        listening.cancel()
        await asyncio.wait([listening], timeout=1)

        assert listening.cancelled()

    async def test_only_the_events_of_the_port_come(self, model: Model) -> None:
        known = TextDelta | ThinkingDelta | CallStart | CallDelta | Heartbeat | Finished

        assert all(isinstance(event, known) for event in await read_events(model, self.request(model)))

    # -- for the laws

    def _asked(self, model: Model, request: Any) -> Request:
        found: Request | None = request(model)
        if found is None:
            pytest.skip("this model has no such request")
        return found

    async def _tool_events(self, model: Model) -> list[ModelEvent]:
        return await read_events(model, self._asked(model, self.tool_request))


async def _close(stream: AsyncIterator[ModelEvent]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
