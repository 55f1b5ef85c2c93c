"""Laws of a storage that several processes use at once: a second, real process reads, hands in, and takes over.

A backend's tests name in `opener` how a child opens the data: `MODULE:FUNCTION`, called with `opener_arguments`.
The child does one call for each line that it is sent.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from perdure.errors import Fenced, PerdureError, SessionOwned, StorageError
from perdure.records import ConversationId, EntryId, Inbound, Seq, decode_inbound, encode
from perdure.storage import Batch, Claim, Opened, Storage, TakeInbound
from perdure.testing.storage_fixtures_contract import Beside, Line, StorageLaws, claimed, commit_id_of, entry

#: A child starts an interpreter on a machine that may be busy.
PATIENCE = 30.0


class Call(msgspec.Struct):
    """What a child is asked to do. `seq` and `id` are those of a commit of one entry."""

    method: str
    session: str = "main"
    claim: Claim | None = None
    seq: int = 0
    id: int = 0
    take_over: bool = False
    kill: bool = False
    item: Inbound | None = None
    after: int = 0


class Reply(msgspec.Struct):
    """What came of it; `error` is the class of what was raised."""

    result: Any = None
    error: str | None = None
    message: str = ""


class Child:
    """Another process with the same data open."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def call(self, method: str, **named: Any) -> Any:
        """What the call gives. Raises RuntimeError, with the class and message of what it raised there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(Call(method, **named)) + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        reply = msgspec.json.decode(line, type=Reply)
        if reply.error is not None:
            raise RuntimeError(f"{reply.error}: {reply.message}")
        return reply.result

    async def claim(self, session: str = "main", **named: Any) -> Opened:
        return msgspec.convert(await self.call("claim", session=session, **named), Opened)

    async def end(self) -> None:
        """SIGKILL, stopped or not."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def child_with(opener: str, *arguments: str) -> AsyncGenerator[Child]:
    """Start a process that has the data open."""
    code = "from perdure.testing.storage_process_contract import serve; serve()"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, opener, *arguments, stdin=pipe, stdout=pipe
    )
    child = Child(process)
    try:
        await child.call("open")
        yield child
    finally:
        await child.end()


class ProcessContract(StorageLaws):
    """For backends with `supports_processes`, beside `StorageContract`."""

    opener: str
    opener_arguments: tuple[str, ...]

    @pytest.fixture
    async def child(self, storage: Storage) -> AsyncIterator[Child]:
        async with child_with(self.opener, *self.opener_arguments) as child:
            yield child

    async def test_another_process_reads_what_was_committed(self, main: Line, child: Child) -> None:
        await main.commit(entry(10))

        assert await child.call("entry", id=10) == "entry 10"

        await main.commit(entry(11))
        assert await child.call("entries") == ["entry 11", "entry 10"]

    async def test_another_process_hands_in_beside_the_owner(self, main: Line, child: Child) -> None:
        await main.storage.changed()

        await child.call("hand_in", item=Inbound(id="a", kind="input", body="hello", at=1.0))

        assert await main.storage.changed()
        (body,) = await main.storage.scan_inbound("main")
        item = decode_inbound(body)
        assert item.body == "hello"
        answered = msgspec.structs.replace(item, taken=Seq(1), answer="done")
        await main.commit(TakeInbound("a", encode(answered)))
        assert msgspec.convert(await child.call("inbound", item=item), Inbound) == answered

    async def test_another_process_is_refused_and_told_who_owns_the_session(self, main: Line, child: Child) -> None:
        with pytest.raises(RuntimeError, match=f"SessionOwned.*process {main.storage.worker.pid} on"):
            await child.call("claim")

        opened = await child.claim("other")
        with pytest.raises(SessionOwned, match=f"process {child.pid} on .* since .*sleeping"):
            await main.storage.claim("other")
        assert [each.owner and each.owner.pid for each in await main.storage.sessions()] == [
            main.storage.worker.pid,
            child.pid,
        ]
        await child.call("release", claim=opened.claim)
        assert (await main.storage.claim("other")).clean

    async def test_who_is_taken_over_by_another_process_is_fenced(self, main: Line, child: Child) -> None:
        await main.commit(entry(10))

        opened = await child.claim(take_over=True)

        assert (opened.claim.epoch, opened.head) == (2, 1)
        with pytest.raises(Fenced):
            await main.commit(entry(20))
        await child.call("commit", claim=opened.claim, seq=2, id=11)
        assert await main.storage.scan_entries("main", ConversationId(1)) == [b"entry 11", b"entry 10"]

    async def test_the_sessions_of_a_process_that_was_killed_are_free(self, storage: Storage, child: Child) -> None:
        opened = await child.claim()
        await child.call("commit", claim=opened.claim, seq=1, id=10)

        await child.end()

        line = await claimed(storage)
        assert (line.opened.head, line.opened.clean) == (1, False)
        assert await storage.find_commit("main", commit_id_of(opened.claim, 1)) == 1
        assert await storage.read_entry("main", EntryId(10)) == b"entry 10"

    async def test_the_sessions_of_a_process_that_closed_are_free(self, storage: Storage, child: Child) -> None:
        opened = await child.claim()
        await child.call("release", claim=opened.claim)
        await child.call("close")

        assert (await storage.claim("main")).clean

    async def test_a_stopped_owner_is_taken_over_and_fenced_when_it_goes_on(
        self, storage: Storage, child: Child
    ) -> None:
        opened = await child.claim()
        await child.call("commit", claim=opened.claim, seq=1, id=10)
        child.process.send_signal(signal.SIGSTOP)
        await stopped(child.pid)

        with pytest.raises(SessionOwned, match="stopped"):
            await storage.claim("main")
        line = await claimed(storage, take_over=True)
        await line.commit(entry(11))
        child.process.send_signal(signal.SIGCONT)

        with pytest.raises(RuntimeError, match="Fenced"):
            await child.call("commit", claim=opened.claim, seq=2, id=20)
        assert await storage.scan_entries("main", ConversationId(1)) == [b"entry 11", b"entry 10"]

    async def test_two_processes_commit_to_their_sessions_at_once(self, main: Line, child: Child) -> None:
        opened = await child.claim("other")

        calls = [
            each
            for number in range(1, 21)
            for each in (
                child.call("commit", session="other", claim=opened.claim, seq=number, id=10 + number),
                asyncio.wait_for(main.commit(entry(10 + number)), PATIENCE),
            )
        ]
        for pair in zip(calls[::2], calls[1::2], strict=True):
            await asyncio.gather(*pair)

        for session in ("main", "other"):
            assert len(await main.storage.scan_entries(session, ConversationId(1))) == 20

    async def test_who_looks_while_others_come_and_go_sees_every_commit(
        self, main: Line, beside: Beside, child: Child
    ) -> None:
        for number in range(5):
            await main.commit(entry(10 + number))
            await (await beside()).close()
            assert await child.call("entry", id=10 + number) == f"entry {10 + number}"


async def stopped(pid: int) -> None:
    """Wait until the process stands still."""
    while True:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: ASYNC230
            if file.read().rpartition(")")[2].split()[0] == "T":
                return
        await asyncio.sleep(0)


# -- in the child


def serve() -> None:
    asyncio.run(_serve(sys.argv[1], *sys.argv[2:]))


async def _serve(opener: str, *arguments: str) -> None:
    module, _, function = opener.partition(":")
    storage: Storage = await getattr(importlib.import_module(module), function)(*arguments)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        try:
            reply = Reply(await _answer(storage, msgspec.json.decode(line, type=Call)))
        except PerdureError as error:
            reply = Reply(error=type(error).__name__, message=str(error))
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


async def _answer(storage: Storage, call: Call) -> Any:
    match call:
        case Call(method="open"):
            return storage.worker.pid
        case Call(method="claim"):
            return await storage.claim(call.session, take_over=call.take_over, kill=call.kill)
        case Call(method="release", claim=Claim() as claim):
            return await storage.release(claim)
        case Call(method="commit", claim=Claim() as claim):
            batch = Batch(commit_id_of(claim, call.seq), Seq(call.seq), 1000, [entry(call.id)])
            return await storage.commit(claim, batch)
        case Call(method="hand_in", item=Inbound() as item):
            return await storage.hand_in(call.session, item)
        case Call(method="inbound", item=Inbound() as item):
            return decode_inbound(await storage.read_inbound(call.session, item.id) or b"null")
        case Call(method="entry"):
            return (await storage.read_entry(call.session, EntryId(call.id)) or b"").decode()
        case Call(method="entries"):
            return [body.decode() for body in await storage.scan_entries(call.session, ConversationId(1))]
        case Call(method="close"):
            return await storage.close()
        case _:
            raise StorageError(f"no call {call.method!r}")
