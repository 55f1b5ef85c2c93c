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
    """How a command ended.

    `code` is its exit status (128 + n when signal n ended it); `timed_out` says that the time limit ended it.
    `running` are processes of its group that outlived the shell and had to be killed;
    `stuck` those that were still there when the call returned, because they cannot be killed (yet).
    """

    code: int
    timed_out: bool = False
    running: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()


class Sandbox(Protocol):
    """Files below and processes in one directory. Paths are absolute or relative to `root`.

    Errors are `SandboxError`.
    """

    id: str  #: what an intent records, e.g. "local:process-group"
    root: str

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
    ) -> Exit:
        """Run a shell command with nothing on its standard input.

        `output` gets standard output and error as they come, on the loop.
        On return, time-out and cancellation alike no process of the command's group is left alive that can be killed.
        """
        ...
