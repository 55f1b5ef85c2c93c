"""Laws of a storage that several processes use at once: a second, real process reads, hands in, and takes over.

A backend's tests name in `opener` how a child opens the data: `MODULE:FUNCTION`, called with `opener_arguments`.
The child does one call for each line that it is sent.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from perdure.errors import Fenced, PerdureError, SessionOwned, StorageError
from perdure.records import ConversationId, EntryId, Inbound, Seq, decode_inbound, encode
from perdure.storage import Batch, Claim, Opened, Storage, TakeInbound
from perdure.testing.processes import Child
from perdure.testing.storage_fixtures_contract import Beside, Line, StorageLaws, claimed, commit_id_of, entry


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


class StorageChild(Child):
    """Another process that has the data open."""

    def __init__(self, opener: str, *arguments: str) -> None:
        code = "from perdure.testing.storage_process_contract import serve; serve()"
        super().__init__([sys.executable, "-c", code, opener, *arguments])

    def send(self, method: str, **named: Any) -> None:
        self.write_line(msgspec.json.encode(Call(method, **named)).decode())

    def receive(self) -> Any:
        """What the next call gave. Raises RuntimeError, with the class and message of what it raised there."""
        reply = msgspec.json.decode(self.read_line(), type=Reply)
        if reply.error is not None:
            raise RuntimeError(f"{reply.error}: {reply.message}")
        return reply.result

    def call(self, method: str, **named: Any) -> Any:
        self.send(method, **named)
        return self.receive()

    def claim(self, session: str = "main", **named: Any) -> Opened:
        return msgspec.convert(self.call("claim", session=session, **named), Opened)


class ProcessContract(StorageLaws):
    """For backends with `supports_processes`, beside `StorageContract`."""

    opener: str
    opener_arguments: tuple[str, ...]

    @pytest.fixture
    def child(self, storage: Storage) -> Iterator[StorageChild]:
        child = StorageChild(self.opener, *self.opener_arguments)
        with child:
            child.call("open")
            yield child

    async def test_another_process_reads_what_was_committed(self, main: Line, child: StorageChild) -> None:
        await main.commit(entry(10))

        assert child.call("entry", id=10) == "entry 10"

        await main.commit(entry(11))
        assert child.call("entries") == ["entry 11", "entry 10"]

    async def test_another_process_hands_in_beside_the_owner(self, main: Line, child: StorageChild) -> None:
        before = await main.storage.change_count()

        child.call("hand_in", item=Inbound(id="a", kind="input", body="hello", at=1.0))

        assert await main.storage.change_count() > before
        (body,) = await main.storage.scan_inbound("main")
        item = decode_inbound(body)
        assert item.body == "hello"
        answered = msgspec.structs.replace(item, taken=Seq(1), answer="done")
        await main.commit(TakeInbound("a", encode(answered)))
        assert msgspec.convert(child.call("inbound", item=item), Inbound) == answered

    async def test_another_process_is_refused_and_told_who_owns_the_session(
        self, main: Line, child: StorageChild
    ) -> None:
        with pytest.raises(RuntimeError, match=f"SessionOwned.*process {main.storage.worker.pid} on"):
            child.call("claim")

        opened = child.claim("other")
        with pytest.raises(SessionOwned, match=f"process {child.pid} on .* since "):
            await main.storage.claim("other")
        assert [each.owner and each.owner.pid for each in await main.storage.sessions()] == [
            main.storage.worker.pid,
            child.pid,
        ]
        child.call("release", claim=opened.claim)
        assert (await main.storage.claim("other")).clean

    async def test_who_is_taken_over_by_another_process_is_fenced(self, main: Line, child: StorageChild) -> None:
        await main.commit(entry(10))

        opened = child.claim(take_over=True)

        assert (opened.claim.epoch, opened.head) == (2, 1)
        with pytest.raises(Fenced):
            await main.commit(entry(20))
        child.call("commit", claim=opened.claim, seq=2, id=11)
        assert await main.storage.scan_entries("main", ConversationId(1)) == [b"entry 11", b"entry 10"]

    async def test_the_sessions_of_a_process_that_was_killed_are_free(
        self, storage: Storage, child: StorageChild
    ) -> None:
        opened = child.claim()
        child.call("commit", claim=opened.claim, seq=1, id=10)

        child.kill()
        child.wait()

        line = await claimed(storage)
        assert (line.opened.head, line.opened.clean) == (1, False)
        assert await storage.find_commit("main", commit_id_of(opened.claim, 1)) == 1
        assert await storage.read_entry("main", EntryId(10)) == b"entry 10"

    async def test_the_sessions_of_a_process_that_closed_are_free(self, storage: Storage, child: StorageChild) -> None:
        opened = child.claim()
        child.call("release", claim=opened.claim)
        child.call("close")

        assert (await storage.claim("main")).clean

    async def test_a_stopped_owner_is_taken_over_and_fenced_when_it_goes_on(
        self, storage: Storage, child: StorageChild
    ) -> None:
        opened = child.claim()
        child.call("commit", claim=opened.claim, seq=1, id=10)
        child.stop()

        with pytest.raises(SessionOwned, match="stopped"):
            await storage.claim("main")
        line = await claimed(storage, take_over=True)
        await line.commit(entry(11))
        child.proceed()

        with pytest.raises(RuntimeError, match="Fenced"):
            child.call("commit", claim=opened.claim, seq=2, id=20)
        assert await storage.scan_entries("main", ConversationId(1)) == [b"entry 11", b"entry 10"]

    async def test_two_processes_commit_to_their_sessions_at_once(self, main: Line, child: StorageChild) -> None:
        opened = child.claim("other")

        for number in range(1, 21):
            child.send("commit", session="other", claim=opened.claim, seq=number, id=10 + number)
        for number in range(1, 21):
            assert await main.commit(entry(10 + number)) == number
            assert child.receive() == number

        for session in ("main", "other"):
            assert len(await main.storage.scan_entries(session, ConversationId(1))) == 20

    async def test_who_looks_while_others_come_and_go_sees_every_commit(
        self, main: Line, beside: Beside, child: StorageChild
    ) -> None:
        for number in range(5):
            await main.commit(entry(10 + number))
            await (await beside()).close()
            assert child.call("entry", id=10 + number) == f"entry {10 + number}"


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
