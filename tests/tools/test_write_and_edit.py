"""The tools `write` and `edit`."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import SandboxError
from perdure.schemas.pydantic import PydanticSchema
from perdure.tools.edit import edit
from perdure.tools.replacing import Change, replace
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
    assert replace(before, [Change(old, new)], name="file").content == after


@given(st.text("ab\n", max_size=30), st.text("ab\n", min_size=1, max_size=3), st.text("abc\n", max_size=3))
def test_all_replaces_as_text_does(content: str, old: str, new: str) -> None:
    if old in content and old != new:
        edited = replace(content.encode(), [Change(old, new, all=True)], name="file")
        assert edited.content.decode() == content.replace(old, new)
        assert len(edited.spans) == content.count(old)


@given(st.text("ab\r\n", max_size=30), st.text("ab\n", min_size=1, max_size=4))
def test_a_line_of_the_text_may_end_in_either_way(content: str, old: str) -> None:
    pattern = re.compile("\r?\n".join(map(re.escape, old.split("\n"))))
    if pattern.search(content) and "\r" not in old:
        edited = replace(content.encode(), [Change(old, "new", all=True)], name="file")
        assert edited.content.decode() == pattern.sub("new", content)


async def test_edits_of_one_file_at_once_all_arrive(call: Any, root: Path) -> None:
    (root / "file").write_text("".join(f"<{n}>\n" for n in range(20)))
    (root / "link").symlink_to("file")

    await asyncio.gather(*(edit(call, "link" if n % 2 else "file", f"<{n}>", f"[{n}]") for n in range(20)))

    assert (root / "file").read_text() == "".join(f"[{n}]\n" for n in range(20))


async def test_several_replacements_are_made_together_each_in_the_file_as_it_was(call: Any, root: Path) -> None:
    (root / "file").write_text("one\ntwo\nthree\n")

    told = await edit(call, "file", "one", "two", more=[Change("two", "one")])

    assert (root / "file").read_text() == "two\none\nthree\n"
    assert told.startswith("Edited file in 2 places:\n")


@pytest.mark.parametrize(
    "more, message",
    [
        (Change("four", "4"), "replacement 2 of 2: old does not occur"),
        (Change("o", "0"), "replacement 2 of 2: old occurs 2 times"),
        (Change("ne\nt", "x"), "replacements 1 and 2 overlap in file: make one of them"),
    ],
)
async def test_of_several_replacements_all_are_made_or_none(call: Any, root: Path, more: Change, message: str) -> None:
    (root / "file").write_text("one\ntwo\n")

    with pytest.raises(SandboxError, match=message):
        await edit(call, "file", "one", "1", more=[more])
    assert (root / "file").read_text() == "one\ntwo\n"


async def test_a_model_can_give_several_replacements_as_json(call: Any, root: Path) -> None:
    (root / "file").write_text("one\ntwo\ntwo\n")
    described = PydanticSchema().describe(edit.function, skip=("call",))

    given = described.validate(
        {"path": "file", "old": "one", "new": "1", "more": [{"old": "two", "new": "2", "all": True}]}
    )

    await edit(call, **given)
    assert (root / "file").read_text() == "1\n2\n2\n"
    assert described.parameters["$defs"]["Change"]["required"] == ["old", "new"]


async def test_the_details_have_a_diff_and_how_many_lines_came_and_went(call: Any, root: Path) -> None:
    await write(call, "a/file", "one\ntwo\n")
    assert call.noted == {
        "path": "a/file",
        "new": True,
        "added": 2,
        "removed": 0,
        "diff": "--- /dev/null\n+++ b/a/file\n@@ -0,0 +1,2 @@\n+one\n+two",
    }

    await write(call, "a/file", "one\n2\n")
    assert call.noted == {
        "path": str(root / "a/file"),
        "new": False,
        "added": 1,
        "removed": 1,
        "diff": "--- a/a/file\n+++ b/a/file\n@@ -1,2 +1,2 @@\n one\n-two\n+2",
    }

    await edit(call, "a/file", "2", "two\nthree")
    assert (call.noted["places"], call.noted["added"], call.noted["removed"]) == (1, 2, 1)
    assert call.noted["diff"].endswith("@@ -1,2 +1,3 @@\n one\n-2\n+two\n+three")


async def test_a_file_with_other_names_says_that_they_keep_the_old_content(call: Any, root: Path) -> None:
    (root / "file").write_text("old\n")
    os.link(root / "file", root / "other")

    told = await edit(call, "file", "old", "new")

    assert told.endswith("[it had 1 other name (hard links), which keep the old content]")
    assert (root / "other").read_text() == "old\n"


async def test_a_link_is_edited_through_and_stays_one(call: Any, root: Path) -> None:
    (root / "target").write_text("old\n")
    (root / "link").symlink_to("target")

    await edit(call, "link", "old", "new")

    assert (root / "link").is_symlink()
    assert (root / "target").read_text() == "new\n"


@pytest.mark.parametrize("name, message", [("pipe", "is a pipe, not a file"), ("directory", "is a directory, not a")])
async def test_what_is_no_file_is_not_edited(call: Any, root: Path, name: str, message: str) -> None:
    os.mkfifo(root / "pipe")
    (root / "directory").mkdir()

    with pytest.raises(SandboxError, match=message):
        await edit(call, name, "a", "b")


async def test_a_directory_is_no_name_for_a_file(call: Any) -> None:
    with pytest.raises(SandboxError, match="new/ names a directory"):
        await write(call, "new/", "x")
