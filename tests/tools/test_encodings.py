"""Files that are not plain UTF-8 with line feeds: shown as far as they are text, and never changed beside an edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.errors import SandboxError
from perdure.tools.edit import edit
from perdure.tools.read import read
from perdure.tools.write import write

pytestmark = pytest.mark.anyio

MARKED = [("utf-16-le", b"\xff\xfe", "UTF-16 LE"), ("utf-16-be", b"\xfe\xff", "UTF-16 BE")]


@pytest.mark.parametrize("codec, mark, name", MARKED)
async def test_utf_16_is_shown_as_text_and_edited_in_its_encoding(
    call: Any, root: Path, codec: str, mark: bytes, name: str
) -> None:
    (root / "file").write_bytes(mark + "größer\r\n€ 1\r\n".encode(codec))

    assert await read(call, "file") == f"größer\n€ 1\n[the file is {name}]"
    assert call.noted["encoding"] == name
    assert await read(call, "file", offset=2) == f"€ 1\n[the file is {name}]"
    await edit(call, "file", "größer\n€ 1", "kleiner\n€ 2")

    assert (root / "file").read_bytes() == mark + "kleiner\r\n€ 2\r\n".encode(codec)


async def test_what_begins_as_utf_16_and_is_none_is_binary(call: Any, root: Path) -> None:
    content = b"\xff\xfe" + b"\xd8" * 5
    (root / "file").write_bytes(content)

    with pytest.raises(SandboxError, match="begins as UTF-16 LE text, but is none: it is binary"):
        await read(call, "file")
    with pytest.raises(SandboxError, match="it is binary"):
        await edit(call, "file", "a", "b")
    assert (root / "file").read_bytes() == content


async def test_in_a_file_that_is_not_utf_8_ascii_is_edited_and_the_rest_stays(call: Any, root: Path) -> None:
    (root / "file").write_bytes("größer = 1\n".encode("latin-1"))

    await edit(call, "file", "= 1", "= 2")

    assert (root / "file").read_bytes() == "größer = 2\n".encode("latin-1")


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("= 1", "= €", "file is not UTF-8: put only ASCII text into it, or its encoding would be mixed"),
        ("größer", "kleiner", "the file is not UTF-8, so only ASCII text in it can be named"),
    ],
)
async def test_in_a_file_that_is_not_utf_8_no_encodings_are_mixed(
    call: Any, root: Path, old: str, new: str, message: str
) -> None:
    content = "größer = 1\n".encode("latin-1")
    (root / "file").write_bytes(content)

    with pytest.raises(SandboxError, match=message):
        await edit(call, "file", old, new)
    assert (root / "file").read_bytes() == content


async def test_a_binary_file_is_not_edited(call: Any, root: Path) -> None:
    (root / "file").write_bytes(b"\x7fELF\0old")

    with pytest.raises(SandboxError, match="file is binary and not changed: ELF program, 8 bytes"):
        await edit(call, "file", "old", "new")


async def test_zero_bytes_further_down_are_said(call: Any, root: Path) -> None:
    (root / "file").write_bytes(b"x\n" * 5000 + b"a\0b\n")

    assert await read(call, "file", offset=5001) == "a\u2400b\n[zero bytes are shown as \u2400]"


async def test_a_write_says_what_nobody_may_have_meant_to_change(call: Any, root: Path) -> None:
    (root / "crlf").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (root / "wide").write_bytes("\ufeffone\n".encode("utf-16-le"))

    assert (await write(call, "crlf", "1\n2\n")).split("\n")[1:] == [
        "[it was UTF-8 with a byte order mark and is UTF-8 now]",
        "[its lines ended in CRLF and end in LF now]",
    ]
    assert (await write(call, "wide", "1\n")).endswith("[it was UTF-16 LE and is UTF-8 now]")
    assert (root / "crlf").read_bytes() == b"1\n2\n"
