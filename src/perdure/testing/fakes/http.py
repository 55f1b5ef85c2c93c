"""The HTTP under the fakes: one small server of the standard library, which sends what a script says, or breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

import msgspec

from perdure.errors import ModelError
from perdure.model import Model, Request
from perdure.testing.scripted import Script, ScriptedModel


class Seen(msgspec.Struct, frozen=True):
    """A request that came. Names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Reply(Exception):
    """A response as it is, instead of an answer. Raised by a script: see `reply`."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str], *, cut: bool) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body
        self.headers = dict(headers)
        self.cut = cut


def reply(
    status: int, body: Any = b"", headers: Mapping[str, str] | None = None, *, cut: bool = False
) -> Callable[[Request], NoReturn]:
    """A script: this response, byte by byte, whatever was asked.

    A body that is no bytes is sent as JSON. With `cut` the connection breaks off where the body ends.
    """
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {name.lower(): value for name, value in (headers or {}).items()}
    kind = "text/event-stream" if status == 200 else "application/json"

    def script(request: Request) -> NoReturn:
        raise Reply(status, raw, {"content-type": kind, **given}, cut=cut)

    return script


class Refused(Exception):
    """The request is not what the vendor takes: a status and the vendor's own body."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(str(body))
        self.status = status
        self.body = body
        self.headers = dict(headers or {})


class FakeServer:
    """A server on loopback, for `async with`. It answers as a script says, or as any model does.

    `requests` is what came, in order; `dropped` counts the answers that a client left before their end.
    A script may hold everything that `ScriptedModel` takes: `fail` becomes the vendor's status and body, `beat` its
    heartbeat, `hang` silence (before the first part: not even a status), `cut` a stream that just ends; `reply` is any
    response at all.

    `piece` is how many bytes go out at a time, to cut characters and lines in two; `break_off` makes `cut` break the
    connection instead of ending it in order.
    """

    #: The paths at which there are answers: given by the vendor's class.
    paths: frozenset[str] = frozenset()

    def __init__(
        self,
        script: Script | Sequence[Script] | Model,
        *,
        key: str = "sk-test-0123456789abcdef",
        piece: int | None = None,
        break_off: bool = False,
    ) -> None:
        self.model = _model(script)
        self.key = key
        self.requests: list[Seen] = []
        self.dropped = 0
        self.connections = 0  #: how many there ever were
        self._piece = piece
        self._break_off = break_off
        self._changed = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    # -- for tests

    @property
    def url(self) -> str:
        """The base URL, as a client takes it."""
        assert self._server is not None, "use it as `async with`"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self._base}"

    _base = ""

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until something that a request or a dropped answer changes is so."""
        while not done():
            self._changed.clear()
            await self._changed.wait()

    async def __aenter__(self) -> Any:
        self._server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    # -- for the vendor

    def prepare(self, seen: Seen) -> Request:
        """The request that a call carries. Raises `Refused` where the vendor would refuse it."""
        raise NotImplementedError

    def encode(self, events: AsyncIterator[Any], seen: Seen) -> AsyncIterator[bytes]:
        """The vendor's stream of an answer."""
        raise NotImplementedError

    def refusal(self, error: ModelError) -> Refused:
        """How the vendor says a failure before its answer begins."""
        raise NotImplementedError

    def interruption(self, error: ModelError, seen: Seen) -> bytes:
        """How the vendor says a failure inside its stream."""
        raise NotImplementedError

    def listing(self, seen: Seen) -> Mapping[str, Any] | None:
        """What a GET answers."""
        return None

    # -- connections

    def _accept(self) -> asyncio.Protocol:
        return _Connection(self._begin)

    def _begin(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(connection, reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (seen := await _read(reader)) is not None:
                answering = asyncio.get_running_loop().create_task(self._respond(seen, writer))
                gone = asyncio.get_running_loop().create_task(connection.gone.wait())
                try:
                    await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not answering.done():
                        self.dropped += 1
                        self._changed.set()
                        return
                    if not answering.result():
                        return
                finally:
                    for task in (answering, gone):
                        task.cancel()
                    await asyncio.gather(answering, gone, return_exceptions=True)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            if self._break_off:
                writer.transport.abort()
            else:
                writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _respond(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; says whether the connection may carry another one."""
        self.requests.append(seen)
        self._changed.set()
        try:
            if seen.method == "GET":
                found = self.listing(seen)
                body = json.dumps(found or {"error": {"message": "not found"}}).encode()
                await self._whole(writer, 200 if found else 404, body, {"content-type": "application/json"})
                return True
            if seen.path.partition("?")[0] not in self.paths:
                raise Refused(404, {"error": {"message": f"nothing at {seen.path}"}})
            return await self._stream(seen, self.prepare(seen), writer)
        except Refused as refused:
            body = json.dumps(refused.body).encode()
            await self._whole(writer, refused.status, body, {"content-type": "application/json", **refused.headers})
            return True
        except Reply as raw:
            if raw.cut:
                writer.write(_head(raw.status, {"content-length": str(len(raw.body) + 1000), **raw.headers}))
                await self._write(writer, raw.body)
                return False
            await self._whole(writer, raw.status, raw.body, raw.headers)
            return True

    async def _stream(self, seen: Seen, request: Request, writer: asyncio.StreamWriter) -> bool:
        events: Any = self.model.stream(request)
        pieces: Any = self.encode(events, seen)
        began = False
        try:
            async for piece in pieces:
                if not began:
                    began = True
                    writer.write(
                        _head(200, {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"})
                    )
                await self._write(writer, piece, chunked=True)
        except ModelError as error:
            if not began:
                raise self.refusal(error) from None
            await self._write(writer, self.interruption(error, seen), chunked=True)
        except EOFError:  # the script cut its answer
            if not began:
                writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
            if self._break_off:
                return False
        finally:
            await pieces.aclose()
            await events.aclose()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _whole(self, writer: asyncio.StreamWriter, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        writer.write(_head(status, {"content-length": str(len(body)), **headers}))
        await self._write(writer, body)

    async def _write(self, writer: asyncio.StreamWriter, body: bytes, *, chunked: bool = False) -> None:
        size = self._piece or max(1, len(body))
        for start in range(0, len(body), size):
            piece = body[start : start + size]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
            if self._piece:
                await asyncio.sleep(0)  # each piece is a packet of its own


class _Connection(asyncio.StreamReaderProtocol):
    """Tells when the client closed its side."""

    def __init__(self, begin: Callable[[_Connection, asyncio.StreamReader, asyncio.StreamWriter], None]) -> None:
        self.gone = asyncio.Event()
        super().__init__(asyncio.StreamReader(), lambda reader, writer: begin(self, reader, writer))

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(exc)


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    """The next request of a connection; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name
    }
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    elif length := int(headers.get("content-length", 0)):
        body = await reader.readexactly(length)
    return Seen(method, path, headers, json.loads(body) if body else None)


def checked_body(seen: Seen) -> dict[str, Any] | None:
    """The body of a call for a stream; None where it is no such call."""
    body = seen.body
    return cast("dict[str, Any]", body) if isinstance(body, dict) and body.get("stream") is True else None  # pyright: ignore[reportUnknownMemberType]


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} As Scripted\r\n{lines}\r\n".encode("latin-1")


def _model(script: Any) -> Model:
    is_model = hasattr(script, "stream") and hasattr(script, "context_window")
    return script if is_model else ScriptedModel(script)


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
