"""Servers on loopback that speak as OpenAI and Anthropic do, for tests over real HTTP without a network."""

from perdure.testing.fakes.anthropic import FakeAnthropic
from perdure.testing.fakes.http import Reply, Seen, reply
from perdure.testing.fakes.openai import FakeOpenAI

__all__ = ["FakeAnthropic", "FakeOpenAI", "Reply", "Seen", "reply"]
