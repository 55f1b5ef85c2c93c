"""One file, changed from several sides."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import FileChanged, SandboxError
from perdure.sandboxes.local import LocalSandbox
from perdure.tools.edit import edit
from perdure.tools.read import read
from perdure.tools.write import write

pytestmark = pytest.mark.anyio


class Other:
    """A call of another conversation, in a sandbox of its own below the first one."""

    def __init__(self, root: Path) -> None:
        self.sandbox = LocalSandbox(root)
        self.conversation = 2

    def details(self, value: Any) -> None: ...


async def test_a_file_that_somebody_changed_since_it_was_read_is_not_written_over(call: Any, root: Path) -> None:
    (root / "file").write_text("one\n")
    await read(call, "file")
    (root / "file").write_text("by hand\n")

    with pytest.raises(
        FileChanged, match="file was changed since you read it, by a command or by somebody else, and was not written"
    ):
        await write(call, "file", "two\n")

    assert (root / "file").read_text() == "by hand\n"
    await read(call, "file")
    await write(call, "file", "two\n")
    assert (root / "file").read_text() == "two\n"


async def test_an_edit_fits_what_is_there_so_it_is_made_and_says_that_the_file_had_changed(
    call: Any, root: Path
) -> None:
    await write(call, "file", "one\ntwo\n")
    (root / "file").write_text("one\n2\n")

    told = await edit(call, "file", "one", "1")

    assert told.endswith("[it had been changed since you read it, by a command or by somebody else: read it again]")
    assert (root / "file").read_text() == "1\n2\n"


async def test_own_changes_are_no_news(call: Any) -> None:
    await write(call, "file", "one\n")
    await edit(call, "file", "one", "two")

    assert "changed" not in await edit(call, "file", "two", "three")
    await write(call, "file", "four\n")


async def test_what_another_conversation_wrote_is_news(call: Any, root: Path) -> None:
    await write(call, "file", "one\n")
    other: Any = Other(root)
    await edit(other, "file", "one", "two")

    with pytest.raises(FileChanged):
        await write(call, "file", "three\n")


async def test_edits_of_two_conversations_and_sandboxes_all_arrive(call: Any, root: Path) -> None:
    (root / "below").mkdir()
    (root / "below/file").write_text("".join(f"<{n}>\n" for n in range(20)))
    (root / "link").symlink_to("below")
    other: Any = Other(root / "below")

    await asyncio.gather(
        *(edit(other, "file", f"<{n}>", f"[{n}]") for n in range(0, 20, 2)),
        *(edit(call, "link/file", f"<{n}>", f"[{n}]") for n in range(1, 20, 2)),
    )

    assert (root / "below/file").read_text() == "".join(f"[{n}]\n" for n in range(20))


class Meddling:
    """A sandbox in which another process changes the file after each of the first reads."""

    def __init__(self, inner: LocalSandbox, file: Path, times: int) -> None:
        self._inner = inner
        self._file = file
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, path: str, **window: Any) -> bytes:
        content = await self._inner.read(path, **window)
        if self._times:
            self._times -= 1
            with self._file.open("a") as file:
                file.write("more\n")
        return content


async def test_an_edit_between_whose_reading_and_writing_the_file_changed_is_made_again(call: Any, root: Path) -> None:
    (root / "file").write_text("one\n")
    call.sandbox = Meddling(call.sandbox, root / "file", times=2)

    await edit(call, "file", "one", "1")

    assert (root / "file").read_text() == "1\nmore\nmore\n"


async def test_a_file_that_never_stands_still_is_not_edited(call: Any, root: Path) -> None:
    (root / "file").write_text("one\n")
    call.sandbox = Meddling(call.sandbox, root / "file", times=100)

    with pytest.raises(SandboxError, match="was changed meanwhile: nothing was written"):
        await edit(call, "file", "one", "1")
    assert (root / "file").read_text().startswith("one\nmore\n")


#: Edits its own lines of a file, one by one, and says how often another process was quicker too many times.
EDITS = """
import asyncio, sys
from perdure.errors import FileChanged
from perdure.sandboxes.local import LocalSandbox
from perdure.tools.edit import edit

class Call:
    conversation = 1
    sandbox = LocalSandbox(sys.argv[1])
    def details(self, value): pass

async def main():
    refused = 0
    for n in range(40):
        try:
            await edit(Call(), "file", f"<{sys.argv[2]}.{n}>", f"[{sys.argv[2]}.{n}]")
        except FileChanged:
            refused += 1
    print(refused)

asyncio.run(main())
"""


@pytest.mark.slow
def test_of_edits_by_several_processes_none_is_lost_unless_it_was_refused(root: Path) -> None:
    (root / "file").write_text("".join(f"<{who}.{n}>\n" for who in range(3) for n in range(40)))
    argv = [sys.executable, "-c", EDITS, str(root)]

    processes = [subprocess.Popen([*argv, str(who)], stdout=subprocess.PIPE, text=True) for who in range(3)]
    refused = sum(int(process.communicate()[0]) for process in processes)

    text = (root / "file").read_text()
    assert text.count("<") == refused
    assert text.count("[") == 120 - refused
    assert refused < 12
