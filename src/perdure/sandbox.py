"""The sandbox port: where tools reach files and processes, and nothing else does (H25)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a path is. `size` in bytes."""

    path: str  #: absolute, symbolic links resolved
    kind: Literal["file", "directory", "other"]
    size: int
    #: Of a file: another one after each change of its content. Opaque; empty where the sandbox cannot tell.
    version: str = ""
    #: Of a file: how many names it has (hard links).
    links: int = 1


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. Its text is with whoever took its output.

    `code` is its exit status (128 + n when signal n ended it). `strategy` says how it was kept together.
    `running` are commands that outlived the shell and were ended with it, at most 20 of them;
    `stuck` are pids that were still there when the call returned, because they cannot be killed (yet).
    """

    code: int
    timed_out: bool = False  #: the time limit ended it
    capped: bool = False  #: it had printed more than it might, and was ended for that
    held: bool = False  #: a process that was not found still holds the output: what it prints is not seen
    total_bytes: int = 0  #: printed, shown or not
    seconds: float = 0.0
    strategy: str = ""
    running: tuple[str, ...] = ()
    stuck: tuple[int, ...] = ()
    spill: str | None = None  #: the file that has the output, where a `Spill` was asked for and there was enough
    spilled: int = 0  #: bytes of the output in that file

    @property
    def signal(self) -> int | None:
        """The signal that its code stands for."""
        return self.code - 128 if 128 < self.code <= 128 + 64 else None


class Spill(msgspec.Struct, frozen=True, kw_only=True):
    """From more than so many bytes or lines on, the output is kept in a file, up to `most` bytes from its beginning."""

    bytes: int = 16 * 1024
    lines: int = 500
    most: int = 64 * 1024 * 1024


class Background(Protocol):
    """A command that runs on while others do other things. It is held by this process and ends with it."""

    id: str  #: unique in its sandbox
    command: str
    path: str  #: a file with the newest part of what it printed, which `Sandbox.read` reads

    @property
    def exit(self) -> Exit | None:
        """None while it runs."""
        ...

    @property
    def total_bytes(self) -> int:
        """Printed so far."""
        ...

    async def read(self, offset: int = 0, limit: int = 65536) -> tuple[int, bytes]:
        """What it printed from a position on, or (negative) from so far before the end.

        The oldest part may be gone: the position where the bytes really begin comes with them.
        """
        ...

    async def wait(self) -> Exit:
        """Until it ends. A cancelled wait leaves it running."""
        ...

    async def stop(self) -> Exit:
        """End it as a time limit would. It may be asked of one that has ended."""
        ...


class Sandbox(Protocol):
    """Files below and processes in one directory. Paths are absolute or relative to `root`.

    Errors are `SandboxError`.
    """

    id: str
    root: str

    @property
    def scratch(self) -> str:
        """A directory outside of `root` for the output of commands, within reach of `info`, `names` and `read`."""
        ...

    async def isolation(self) -> str:
        """How commands are kept together, and where: what the intent of a call that runs some records.

        Raises SandboxError where none can be run.
        """
        ...

    async def interrupted(self, isolation: str) -> str:
        """What is known of the commands of a call that nobody saw the end of, by what its intent recorded.

        A sentence or two for the model. What is found of them is ended first, where they may still run.
        """
        ...

    async def info(self, path: str) -> FileInfo | None:
        """None where nothing is."""
        ...

    async def names(self, path: str, *, limit: int = 1000) -> tuple[str, ...]:
        """The first `limit` names in a directory, sorted; those of directories end with "/"."""
        ...

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes: ...

    async def write(self, path: str, content: bytes, *, expected: str | None = None) -> None:
        """Whole and atomic: readers see the old content or the new. Parent directories are made.

        With `expected`, only while the file still has that version; else FileChanged, and nothing was written.
        """
        ...

    async def run(
        self,
        command: str,
        *,
        timeout: float,
        output: Callable[[bytes], None],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        spill: Spill | None = None,
        most: int | None = None,
    ) -> Exit:
        """Run a shell command with nothing on its standard input.

        `output` gets standard output and error as they come, on the loop. A command that prints more than `most` bytes
        is ended. On return, time-out and cancellation alike nothing of it is left that the isolation can find and end.
        """
        ...

    async def start(
        self,
        command: str,
        *,
        timeout: float | None = None,
        keep: int = 64 * 1024 * 1024,
        output: Callable[[bytes], None] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Background:
        """Run a shell command in the background; returns once it runs. At most `keep` bytes of its output are kept."""
        ...

    @property
    def background(self) -> Mapping[str, Background]:
        """Those that run, by id."""
        ...

    async def close(self) -> None:
        """End all commands, and remove `scratch`. Whoever made a sandbox closes it."""
        ...
