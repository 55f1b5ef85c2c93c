"""The tools `write` and `edit`."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import SandboxError
from perdure.tools.diff import short_diff
from perdure.tools.edit import edit, replace
from perdure.tools.write import write

pytestmark = pytest.mark.anyio


async def test_a_write_tells_what_it_wrote_and_replaced(call: Any, root: Path) -> None:
    assert await write(call, "a/file", "one\ntwo") == "Wrote a/file: 2 lines, 7 bytes (a new file)."
    assert await write(call, "a/file", "€\n") == "Wrote a/file: 1 line, 4 bytes (replaced 7 bytes)."
    assert (root / "a/file").read_text() == "€\n"


async def test_a_lone_surrogate_is_not_written(call: Any, root: Path) -> None:
    with pytest.raises(SandboxError, match="lone surrogate at character 2"):
        await write(call, "file", "ab\ud835")
    assert not (root / "file").exists()


async def test_an_edit_changes_one_place_and_shows_the_difference(call: Any, root: Path) -> None:
    (root / "file").write_text("".join(f"line {n}\n" for n in range(1, 21)))
    (root / "file").chmod(0o755)

    told = await edit(call, "file", "line 10\n", "line ten\nand more\n")

    assert told == (
        "Edited file in 1 place:\n"
        "@@ -7,7 +7,8 @@\n line 7\n line 8\n line 9\n-line 10\n+line ten\n+and more\n line 11\n line 12\n line 13"
    )
    assert (root / "file").read_text().splitlines()[9:11] == ["line ten", "and more"]
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0o755


async def test_an_edit_of_what_occurs_more_than_once_names_the_lines(call: Any, root: Path) -> None:
    (root / "file").write_text("a\nx = 1\nb\nx = 1\n")

    with pytest.raises(SandboxError, match=r"old occurs 2 times in file, at lines 2, 4: .* or all=true"):
        await edit(call, "file", "x = 1", "x = 2")
    assert (root / "file").read_text() == "a\nx = 1\nb\nx = 1\n"


async def test_all_changes_every_place(call: Any, root: Path) -> None:
    (root / "file").write_text("a\nx = 1\nb\nx = 1\n")

    assert (await edit(call, "file", "x = 1", "x = 2", all=True)).startswith("Edited file in 2 places:\n")
    assert (root / "file").read_text() == "a\nx = 2\nb\nx = 2\n"


@pytest.mark.parametrize(
    "old, message",
    [
        ("nothing like it", r"does not occur in file \(4 lines, 38 bytes\); read the file again"),
        ("  def f():\n      return 1", "lines that differ only in white space begin at 2"),
        ("def f():\n    return 2", "its first line stands at 2, but what follows differs"),
        ("", "old is empty"),
        ("same", "old and new are the same"),
        ("\ud835", "lone surrogate"),
    ],
)
async def test_an_edit_that_cannot_be_made_says_what_was_found(call: Any, root: Path, old: str, message: str) -> None:
    (root / "file").write_text("import x\ndef f():\n    return 1\nprint(f())\n"[:38])

    with pytest.raises(SandboxError, match=message):
        await edit(call, "file", old, "same")


async def test_an_edit_of_no_file_points_to_write(call: Any) -> None:
    with pytest.raises(SandboxError, match="nowhere does not exist: use write"):
        await edit(call, "nowhere", "a", "b")


@pytest.mark.parametrize(
    "before, old, new, after",
    [
        (b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\nthree\r\n"),
        (b"one\r\ntwo\r\n", "two", "2\n3", b"one\r\n2\r\n3\r\n"),
        (b"one\ntwo\n", "one\r\ntwo", "1\r\n2", b"1\n2\n"),
        (b"a\r\nb\nc\nd\n", "b", "x\ny", b"a\r\nx\ny\nc\nd\n"),
        (b"\xef\xbb\xbfone\ntwo\n", "one", "1", b"\xef\xbb\xbf1\ntwo\n"),
        (b"\xef\xbb\xbfone\n", "\ufeffone", "1", b"\xef\xbb\xbf1\n"),
        (b"\xff\xfe one \xff", "one", "two", b"\xff\xfe two \xff"),
        (b"a.c abc", "a.c", r"\1\g<0>", rb"\1\g<0> abc"),
        (b"no end", "end", "end\n", b"no end\n"),
    ],
)
def test_everything_else_stays_byte_for_byte(before: bytes, old: str, new: str, after: bytes) -> None:
    assert replace(before, old, new, every=False, name="file").content == after


@given(st.text("ab\n", max_size=30), st.text("ab\n", min_size=1, max_size=3), st.text("abc\n", max_size=3))
def test_all_replaces_as_text_does(content: str, old: str, new: str) -> None:
    if old in content and old != new:
        edited = replace(content.encode(), old, new, every=True, name="file")
        assert edited.content.decode() == content.replace(old, new)
        assert edited.places == content.count(old)


async def test_edits_of_one_file_at_once_all_arrive(call: Any, root: Path) -> None:
    (root / "file").write_text("".join(f"<{n}>\n" for n in range(20)))
    (root / "link").symlink_to("file")

    await asyncio.gather(*(edit(call, "link" if n % 2 else "file", f"<{n}>", f"[{n}]") for n in range(20)))

    assert (root / "file").read_text() == "".join(f"[{n}]\n" for n in range(20))


def test_a_diff_that_is_long_is_cut_in_its_middle() -> None:
    diff = short_diff("".join(f"{n}\n" for n in range(300)), "".join(f"{n}!\n" for n in range(300)))

    assert diff.startswith("@@ -1,")
    assert "left out …]" in diff
    assert len(diff) < 5000


def test_a_diff_of_too_much_is_a_note() -> None:
    before, after = ("".join(f"{n}{sign}\n" for n in range(5000)) for sign in "ab")

    assert short_diff(before, after) == "[5,000 lines became 5,000: too many to show]"
