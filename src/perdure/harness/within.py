"""A directory of the sandbox as the place where a conversation's tools work (H31)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from perdure.errors import UsageError
from perdure.sandbox import Background, Exit, FileInfo, Sandbox, Spill


class Within:
    """A sandbox whose relative paths and commands start in a directory of it; absolute paths stay what they are."""

    def __init__(self, sandbox: Sandbox, directory: str) -> None:
        self._sandbox = sandbox
        self.id = sandbox.id
        self.root = str(PurePosixPath(sandbox.root, directory))

    def _at(self, path: str) -> str:
        return str(PurePosixPath(self.root, path))

    @property
    def scratch(self) -> str:
        return self._sandbox.scratch

    async def isolation(self) -> str:
        return await self._sandbox.isolation()

    async def interrupted(self, isolation: str) -> str:
        return await self._sandbox.interrupted(isolation)

    async def info(self, path: str) -> FileInfo | None:
        return await self._sandbox.info(self._at(path))

    async def names(self, path: str, *, limit: int = 1000) -> tuple[str, ...]:
        return await self._sandbox.names(self._at(path), limit=limit)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await self._sandbox.read(self._at(path), offset=offset, limit=limit)

    async def write(self, path: str, content: bytes, *, expected: str | None = None) -> None:
        await self._sandbox.write(self._at(path), content, expected=expected)

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
        return await self._sandbox.run(
            command, timeout=timeout, output=output, env=env, cwd=self._at(cwd or ""), spill=spill, most=most
        )

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
        return await self._sandbox.start(
            command, timeout=timeout, keep=keep, output=output, env=env, cwd=self._at(cwd or "")
        )

    @property
    def background(self) -> Mapping[str, Background]:
        return self._sandbox.background

    async def close(self) -> None:
        """Nothing: whoever made the sandbox closes it."""


def check_directory(directory: str) -> None:
    """Raise UsageError for what leaves the session's directory."""
    path = PurePosixPath(directory)
    if not directory.strip() or path.is_absolute() or ".." in path.parts or "\0" in directory:
        raise UsageError(
            f"setting directory={directory!r}: name a directory below the session's own, as in 'packages/web'"
        )
