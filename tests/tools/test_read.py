"""The tool `read`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import SandboxError
from perdure.tools.read import MOST_BYTES, read

pytestmark = pytest.mark.anyio


async def test_a_file_is_shown_as_it_is(call: Any, root: Path) -> None:
    (root / "file").write_text("one\n\ttwo €\nthree")

    assert await read(call, "file") == "one\n\ttwo €\nthree"


async def test_a_window_of_lines_says_where_it_is_and_how_to_go_on(call: Any, root: Path) -> None:
    (root / "file").write_text("".join(f"line {n}\n" for n in range(1, 101)))

    assert await read(call, "file", offset=10, limit=2) == (
        "line 10\nline 11\n[lines 10 to 11 of 100; go on with offset=12]"
    )
    assert await read(call, "file", offset=99) == "line 99\nline 100\n"


async def test_a_last_line_without_its_end_counts(call: Any, root: Path) -> None:
    (root / "file").write_text("1\n2\n3")

    assert await read(call, "file", offset=1, limit=2) == "1\n2\n[lines 1 to 2 of 3; go on with offset=3]"
    assert await read(call, "file", offset=3) == "3"


@pytest.mark.parametrize("content", ["1\n2\n3", "1\n2\n3\n"])
@pytest.mark.parametrize("offset", [4, 5, 500])
async def test_a_line_after_the_end_is_an_error_with_the_number_of_lines(
    call: Any, root: Path, content: str, offset: int
) -> None:
    (root / "file").write_text(content)

    with pytest.raises(SandboxError, match=f"file has 3 lines: there is no line {offset}"):
        await read(call, "file", offset=offset)


async def test_a_long_file_is_cut_at_whole_lines_within_the_limit_of_outputs(call: Any, root: Path) -> None:
    (root / "file").write_text("".join(f"{n:>99}\n" for n in range(1, 10_001)))

    text = await read(call, "file")

    assert len(text.encode()) <= 50 * 1024
    assert text.endswith("[lines 1 to 501 of 10,000; go on with offset=502]")
    assert (await read(call, "file", offset=502)).startswith(f"{502:>99}\n")


async def test_no_more_lines_are_shown_than_an_output_may_have(call: Any, root: Path) -> None:
    (root / "file").write_text("x\n" * 5000)

    text = await read(call, "file", limit=4000)

    assert text.count("\n") <= 2000
    assert text.endswith("[lines 1 to 2,000 of 5,000; go on with offset=2001]")


async def test_a_line_that_is_too_long_is_cut_and_the_next_can_be_read(call: Any, root: Path) -> None:
    (root / "file").write_text("first\n" + "€" * 100_000 + "\nlast\n")

    text = await read(call, "file", offset=2)

    assert f"[line 2 is longer: only its first {MOST_BYTES // 3 * 3:,} bytes are shown]" in text
    assert text.endswith("[lines 2 to 2 of 3; go on with offset=3]")
    assert "\ufffd" not in text


async def test_one_line_that_is_too_long_is_all_there_is(call: Any, root: Path) -> None:
    (root / "file").write_text("x" * 100_000)

    assert (await read(call, "file")).endswith(f"[line 1 is longer: only its first {MOST_BYTES:,} bytes are shown]")


@pytest.mark.slow
async def test_a_huge_file_is_read_at_any_place_without_counting_it(call: Any, root: Path) -> None:
    line = b"x" * 1023 + b"\n"
    (root / "file").write_bytes(line * 20_000)

    text = await read(call, "file", offset=19_990, limit=2)

    assert text.endswith("[lines 19,990 to 19,991; go on with offset=19992]")


async def test_line_ends_and_byte_order_marks_are_not_shown(call: Any, root: Path) -> None:
    (root / "file").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")

    assert await read(call, "file") == "one\ntwo\n"


async def test_bytes_that_are_not_utf_8_are_shown_as_such(call: Any, root: Path) -> None:
    (root / "file").write_bytes("größer\n".encode("latin-1"))
    (root / "honest").write_text("\ufffd\n")

    assert await read(call, "file") == "gr\ufffd\ufffder\n[what is not UTF-8 is shown as \ufffd]"
    assert await read(call, "honest") == "\ufffd\n"


@pytest.mark.parametrize(
    "content, kind",
    [
        (b"\x89PNG\r\n\x1a\n....", "PNG image"),
        (b"\x7fELF....", "ELF program"),
        ("text".encode("utf-32"), "UTF-32 text"),
        (b"text\0text", "unknown kind"),
    ],
)
async def test_binary_content_is_refused_with_its_kind_and_size(
    call: Any, root: Path, content: bytes, kind: str
) -> None:
    (root / "file").write_bytes(content)

    with pytest.raises(SandboxError, match=f"file is binary and not shown: {kind}, {len(content)} bytes"):
        await read(call, "file")


async def test_a_directory_is_listed(call: Any, root: Path) -> None:
    (root / "b").touch()
    (root / "a").mkdir()

    assert await read(call, ".") == "a/\nb"
    assert await read(call, "a") == "[empty directory]"


async def test_a_name_that_is_no_text_is_listed_clean(call: Any, root: Path) -> None:
    os.close(os.open(os.fsencode(root) + b"/bad\xff", os.O_CREAT))

    assert await read(call, ".") == "bad\ufffd"


async def test_an_empty_file_is_said_to_be_one(call: Any, root: Path) -> None:
    (root / "file").touch()

    assert await read(call, "file") == "[empty file]"


async def test_what_is_not_there_is_an_error_that_names_what_is_near(call: Any, root: Path) -> None:
    (root / "settings.toml").touch()

    with pytest.raises(SandboxError, match=r"setings.toml does not exist; near it: settings.toml"):
        await read(call, "setings.toml")
    with pytest.raises(SandboxError, match=r"nowhere/x does not exist$"):
        await read(call, "nowhere/x")


async def test_a_link_to_nothing_is_said_to_be_one(call: Any, root: Path) -> None:
    (root / "link").symlink_to("nowhere")

    with pytest.raises(SandboxError, match="link does not exist: it is a symbolic link whose target is missing"):
        await read(call, "link")


@pytest.mark.parametrize("offset, limit", [(0, 1), (1, 0), (-3, 5)])
async def test_lines_count_from_one(call: Any, offset: int, limit: int) -> None:
    with pytest.raises(SandboxError, match="count lines from 1"):
        await read(call, "x", offset=offset, limit=limit)
