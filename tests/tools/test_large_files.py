"""Files that are large: read in parts, edited as a whole up to a limit."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import SandboxError
from perdure.tools.edit import MOST_BYTES, edit
from perdure.tools.read import read

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_line_far_into_a_gibibyte_is_read_without_holding_the_file(call: Any, root: Path) -> None:
    with (root / "file").open("wb") as file:
        file.write(b"x" * 10_000 + b"\n")
        os.posix_fallocate(file.fileno(), 0, 2**30)  # zeros up to there
        file.seek(2**30)
        file.write(b"\nlast\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    text = await read(call, "file", offset=3)

    assert text == "last\n"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


async def test_an_edit_of_fifty_megabytes_changes_one_place_and_nothing_else(call: Any, root: Path) -> None:
    lines = [b"%031d\n" % n for n in range(50 * 1024 * 1024 // 32)]
    (root / "file").write_bytes(b"".join(lines))

    told = await edit(call, "file", f"{1_000_000:031d}\n", "here\n")

    lines[1_000_000] = b"here\n"
    assert (root / "file").read_bytes() == b"".join(lines)
    assert told.startswith("Edited file in 1 place:\n@@ -999998,7 +999998,7 @@\n")


async def test_what_is_too_large_to_edit_is_said_and_not_read(call: Any, root: Path) -> None:
    (root / "file").touch()
    os.truncate(root / "file", MOST_BYTES + 1)

    with pytest.raises(SandboxError, match="67,108,865 bytes: edit takes files of up to 67,108,864, use a command"):
        await edit(call, "file", "a", "b")
