"""Options that are wrong are named, with those that there are, before anything was made."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import perdure

pytestmark = pytest.mark.anyio


@perdure.tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@pytest.mark.parametrize("opening", [perdure.open, perdure.store])
async def test_another_durability_is_refused(opening: Any, tmp_path: Path) -> None:
    with pytest.raises(perdure.UsageError, match=r"'bogus'.*'power'.*'process'"):
        async with opening(str(tmp_path / "s.db"), durability="bogus"):
            pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("opening", [perdure.open, perdure.store])
async def test_an_unknown_option_is_named_with_those_there_are(opening: Any, tmp_path: Path) -> None:
    with pytest.raises(perdure.UsageError, match=r"'modle'.*durability.*model"):
        async with opening(str(tmp_path / "s.db"), modle="demo"):
            pass
    assert os.listdir(tmp_path) == []


async def test_an_unknown_option_of_one_session_is_named_too() -> None:
    async with perdure.store("memory:") as store:
        with pytest.raises(perdure.UsageError, match=r"'modle'"):
            async with store.session(modle="demo"):
                pass


def test_another_replay_is_refused() -> None:
    with pytest.raises(perdure.UsageError, match=r"'maybe'.*'safe'.*'unsafe'"):
        perdure.tool(replay="maybe")(len)  # type: ignore[call-overload]


def test_a_tool_is_no_extension_and_the_remedy_is_named() -> None:
    remedy = re.escape("Registry([Extension(name='pay', tools=[pay])])")
    with pytest.raises(perdure.UsageError, match=remedy):
        perdure.Registry([pay])  # type: ignore[list-item]


def test_a_function_is_no_extension_and_the_remedy_is_named() -> None:
    def refund() -> None: ...

    with pytest.raises(perdure.UsageError, match=re.escape("tools=[perdure.tool(refund)]")):
        perdure.Registry([refund])  # type: ignore[list-item]


async def test_a_model_without_its_provider_is_refused_at_once_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(perdure.UsageError, match="did you mean openai:gpt-5"):
        async with perdure.open(str(tmp_path / "s.db"), model="gpt-5"):
            pass
