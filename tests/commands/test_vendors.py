"""The command line with real adapters over real HTTP: a key, a local server, and a key that is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.clock import SystemClock
from perdure.providers.demo import open_model
from perdure.testing.fakes import FakeOpenAI

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "sk-test-0123456789abcdef"


def of_vendor(server: FakeOpenAI, key: str = KEY) -> dict[str, str]:
    return {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": server.url}


def holding(directory: Path, text: str) -> list[Path]:
    """The files that hold a text."""
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def test_a_key_in_the_environment_decides_and_is_kept_nowhere(shop) -> None:
    async with FakeOpenAI(open_model("demo", SystemClock()), key=KEY) as server:
        env = of_vendor(server)
        done = await asyncio.to_thread(shop.perdure, "run", "Pay 5 to Ann", "--tools", "shop:pay", env=env)
        other = await asyncio.to_thread(shop.perdure, "run", "Hello", "--model", "demo", "--conversation", "b", env=env)
    assert done.stderr.startswith("perdure: model openai:gpt-6.1-terra: OPENAI_API_KEY is set (--model NAME")
    assert shop.paid() == ["5 to Ann"]
    assert "paid 5 to Ann" in done.stdout
    assert len(server.requests) == 2
    assert "model demo: as --model says" in other.stderr
    assert holding(shop.path, KEY) == []


async def test_a_local_server_decides_where_there_is_no_key(shop) -> None:
    async with FakeOpenAI(open_model("demo", SystemClock()), key=KEY) as server:
        url = server.url
        env = {"OLLAMA_BASE_URL": url, "OLLAMA_API_KEY": KEY}
        done = await asyncio.to_thread(shop.perdure, "run", "Hello", env=env)
        looked = await asyncio.to_thread(shop.perdure, "doctor", env=env, code=None)
    assert done.stderr.startswith(f"perdure: model ollama:demo: ollama answers at {url}")
    assert "(demo model)" in done.stdout
    assert f"local servers: ollama at {url}" in looked.stdout


async def test_a_key_that_is_wrong_fails_the_run_and_is_not_repeated(shop) -> None:
    async with FakeOpenAI(open_model("demo", SystemClock()), key=KEY) as server:
        env = of_vendor(server, "sk-wrong-0123456789abcdef")
        done = await asyncio.to_thread(shop.perdure, "run", "Hello", env=env, code=1)
    assert "not answered (model_error): auth" in done.stderr
    assert "sk-wrong-0123456789abcdef" not in done.stdout + done.stderr
    assert holding(shop.path, "sk-wrong-0123456789abcdef") == []


async def test_a_model_whose_key_is_missing_is_refused_before_anything_is_made(shop) -> None:
    done = await asyncio.to_thread(shop.perdure, "run", "Hello", "--model", "openai:gpt-6.1-terra", code=2)
    assert "OPENAI_API_KEY" in done.stderr
    assert not (shop.path / ".perdure").exists()
