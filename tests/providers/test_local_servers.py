"""Model servers on this machine are found by asking them, and nothing else is taken for one."""

from __future__ import annotations

import asyncio

import pytest

from perdure.providers.local_servers import SERVERS, find
from perdure.testing.fakes import FakeOpenAI
from perdure.testing.scripted import ScriptedModel, say

pytestmark = pytest.mark.anyio

#: Nobody listens there.
NOWHERE = {variable: "http://127.0.0.1:1/v1" for _, variable in SERVERS.values()}


async def listening(answer: bytes):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def test_a_server_that_answers_is_found_with_its_models():
    async with FakeOpenAI(ScriptedModel(say("Hi."), name="qwen3:8b")) as server:
        found = await find({**NOWHERE, "OLLAMA_BASE_URL": server.url}, timeout=5)

    assert [(each.name, each.models) for each in found] == [("ollama", ("ollama:qwen3:8b",))]


async def test_nobody_is_there():
    assert await find(NOWHERE) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n<html>not a model in sight</html>",
        b"HTTP/1.1 200 OK\r\n\r\n[1, 2]",
        b'HTTP/1.1 200 OK\r\n\r\n{"data": [1, {"id": 2}, {"id": "nomic-embed-text"}]}',
        b'HTTP/1.1 401 No\r\n\r\n{"data": [{"id": "a"}]}',
        b"SSH-2.0-OpenSSH\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_100_000,
    ],
)
async def test_what_answers_otherwise_is_none(answer):
    server, url = await listening(answer)
    async with server:
        assert await find({**NOWHERE, "VLLM_BASE_URL": url}, timeout=5) == []


async def test_a_server_that_says_nothing_is_not_waited_for():
    gone = asyncio.Event()

    async def silent(reader, writer):
        await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        assert await find({**NOWHERE, "VLLM_BASE_URL": url}, timeout=0.05) == []
        await asyncio.wait_for(gone.wait(), 5)


async def test_a_list_in_chunks_is_read():
    body = b'{"data": [{"id": "m"}]}'
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    server, url = await listening(chunked)
    async with server:
        found = await find({**NOWHERE, "LLAMA_SERVER_BASE_URL": url}, timeout=5)

    assert [each.models for each in found] == [("llama-server:m",)]
