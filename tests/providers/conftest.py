"""Real adapters over real HTTP, against the fakes on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from perdure.clock import Clock
from perdure.errors import ModelError
from perdure.messages import user
from perdure.model import Model, ModelEvent, Request, ToolSpec
from perdure.providers.vendors import VendorModel, open_model
from perdure.testing.fakes import FakeAnthropic, FakeOpenAI


class Vendor(msgspec.Struct, frozen=True):
    """How a vendor is reached: its model's name, the class of its fake, and the variables that point there."""

    name: str
    fake: Callable[..., Any]
    url: str
    key: str

    def environment(self, server: Any) -> dict[str, str]:
        return {self.url: server.url, self.key: server.key}


VENDORS = {
    "responses": Vendor("openai:gpt-6.1-terra", FakeOpenAI, "OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "chat": Vendor("openai-chat:gpt-6.1-terra", FakeOpenAI, "OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "anthropic": Vendor("anthropic:claude-sonnet-5-5", FakeAnthropic, "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
}


class Wire:
    """Opens fakes of one vendor, and models that talk to them; closes both."""

    def __init__(self, vendor: Vendor, stack: AsyncExitStack) -> None:
        self.vendor = vendor
        self.server: Any = None
        self._stack = stack

    def request(self, *messages: Any, tools: tuple[ToolSpec, ...] = (), system: str = "") -> Request:
        return Request(model=self.vendor.name, messages=messages or (user("Hello."),), tools=tools, system=system)

    async def read(self, model: Model, request: Request | None = None) -> list[ModelEvent]:
        """The whole stream."""
        return [event async for event in model.stream(request or self.request())]

    async def failure(self, model: Model, request: Request | None = None) -> ModelError:
        """What a request fails with."""
        with pytest.raises(ModelError) as caught:
            await self.read(model, request)
        return caught.value

    async def serve(
        self, script: Any, *, clock: Clock | None = None, settings: dict[str, Any] | None = None, **options: Any
    ) -> VendorModel:
        """A model whose server answers by the script."""
        self.server = await self._stack.enter_async_context(self.vendor.fake(script, **options))
        environment = self.vendor.environment(self.server)
        model = open_model(self.vendor.name, clock, environment=environment, settings=settings)
        self._stack.push_async_callback(model.aclose)
        return model

    async def local(self, name: str, environment: dict[str, str] | None = None) -> VendorModel:
        """A model by any name, without a key in the environment."""
        model = open_model(name, environment=environment or {})
        self._stack.push_async_callback(model.aclose)
        return model


@pytest.fixture(params=list(VENDORS))
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """One vendor's fake and adapter after the other."""
    async with AsyncExitStack() as stack:
        yield Wire(VENDORS[request.param], stack)


@pytest.fixture
async def wires() -> AsyncIterator[Callable[[str], Wire]]:
    """The wires of single vendors, by name."""
    async with AsyncExitStack() as stack:
        yield lambda name: Wire(VENDORS[name], stack)
