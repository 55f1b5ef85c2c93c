"""Limits of time over real HTTP: silence ends, heartbeats are no progress, and a stopped request is hung up (H13, I39).

The silence is real, and so is the time: a slow machine makes it longer, and never shorter.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from perdure.app.opening import open_session
from perdure.backends.memory import MemoryStorage
from perdure.clock import SystemClock
from perdure.harness.harness import RequestLimits
from perdure.harness.retry import RetryPolicy
from perdure.harness.submissions import NotAnswered
from perdure.telemetry import Telemetry
from perdure.testing.scripted import answer, beat, hang, pause, say

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LONG = 30.0
SHORT = 0.3
FOREVER = 400

CASES = {
    "no first byte": (hang(), {"first_byte": SHORT}, "answered nothing"),
    "only heartbeats": (answer(*[beat(), pause(0.02)] * FOREVER), {"first_byte": SHORT}, "answered nothing"),
    "silence": (answer(say("Once"), hang()), {"progress": SHORT}, "stopped answering"),
    "heartbeats after the first words": (
        answer(say("Once"), *[beat(), pause(0.02)] * FOREVER),
        {"progress": SHORT},
        "stopped answering",
    ),
    "an answer without end": (answer(*[say("x"), pause(0.02)] * FOREVER), {"total": SHORT}, "within the time limit"),
}


@asynccontextmanager
async def run(wire, script, **limits):
    """A run that asks the wire's model once. The model was asked before, so that no limit has its start in it."""
    model = await wire.serve([say("Ok."), script])
    await wire.read(model)
    clock = SystemClock()
    limits = RequestLimits(**{"first_byte": LONG, "progress": LONG, "total": LONG, **limits})
    session = await open_session(
        MemoryStorage(clock=clock), "main", clock=clock, telemetry=Telemetry(), model=model, limits=limits,
        retry=RetryPolicy(attempts=1),
    )  # fmt: skip
    try:
        conversation = await session.root()
        submission = await conversation.submit("Hello.")
        await session.resume()
        yield conversation, submission
    finally:
        await session.close()


@pytest.mark.parametrize("name", CASES)
async def test_a_limit_ends_the_request_as_a_timeout_and_hangs_up(wire, name):
    script, limits, told = CASES[name]

    async with run(wire, script, **limits) as (_, submission):
        settled = await asyncio.wait_for(submission.wait(), LONG)
        await asyncio.wait_for(wire.server.until(lambda: wire.server.dropped), LONG)

    assert isinstance(settled, NotAnswered)
    assert settled.reason == "model_error"
    assert settled.detail is not None
    assert settled.detail.startswith("timeout: ")
    assert told in settled.detail
    assert len(wire.server.requests) == 2


async def test_stopping_a_run_hangs_up(wire):
    async with run(wire, answer(say("Once"), hang())) as (conversation, submission):
        await asyncio.wait_for(wire.server.until(lambda: len(wire.server.requests) == 2), LONG)
        await conversation.abort()
        settled = await asyncio.wait_for(submission.wait(), LONG)
        await asyncio.wait_for(wire.server.until(lambda: wire.server.dropped), LONG)

    assert isinstance(settled, NotAnswered)
    assert settled.reason == "aborted"


async def test_closing_a_session_hangs_up(wire):
    async with run(wire, answer(say("Once"), hang())):
        await asyncio.wait_for(wire.server.until(lambda: len(wire.server.requests) == 2), LONG)

    await asyncio.wait_for(wire.server.until(lambda: wire.server.dropped), LONG)
