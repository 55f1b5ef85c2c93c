"""Unified diffs within bounds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.tools.diff import MOST_LINE, Difference, Span, changed, compared, short_diff

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
texts = st.text("ab\n", max_size=40)


def patched(before: str, diff: str) -> str:
    """What the diff makes of a text, checked line by line."""
    old = before.splitlines(keepends=True)
    new: list[str] = []
    position = 0
    lines = diff.replace("\n\\ No newline at end of file", "\0").split("\n") if diff else []
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is not None:
            start = int(header[1]) - (header[2] != "0")
            new += old[position:start]
            position = start
            assert len(new) == int(header[3]) - (header[4] != "0")
            continue
        text = line[1:].removesuffix("\0") + ("" if line.endswith("\0") else "\n")
        if line[0] in " -":
            assert old[position] == text
            position += 1
        if line[0] in " +":
            new.append(text)
    return "".join(new + old[position:])


def whole(difference: Difference) -> str:
    return difference.text(10**6, 10**6)


@settings(max_examples=50)
@given(texts, texts)
def test_a_diff_leads_from_one_text_to_the_other(before: str, after: str) -> None:
    difference = compared(before.encode(), after.encode())

    diff = whole(difference)

    assert patched(before, diff) == after
    assert difference.added == len(re.findall(r"^\+", diff, re.MULTILINE))
    assert difference.removed == len(re.findall(r"^-", diff, re.MULTILINE))


@settings(max_examples=50)
@given(texts, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), texts), max_size=4))
def test_a_diff_of_replaced_pieces_leads_to_what_they_make(before: str, drawn: list[tuple[int, int, str]]) -> None:
    spans: list[Span] = []
    after, position = "", 0
    for one, two, new in sorted(drawn):
        start, end = min(one, two), min(max(one, two), len(before))
        if start >= position and start < len(before):
            after += before[position:start] + new
            spans.append(Span(start, end, new.encode()))
            position = end
    after += before[position:]

    assert patched(before, whole(changed(before.encode(), spans))) == after


def test_a_diff_that_is_long_is_cut_in_its_middle() -> None:
    diff = short_diff("".join(f"{n}\n" for n in range(300)), "".join(f"{n}!\n" for n in range(300)))

    assert diff.startswith("@@ -1,")
    assert "left out …]" in diff
    assert len(diff) < 5000


def test_a_diff_of_too_much_is_a_note() -> None:
    before, after = ("".join(f"{n}{sign}\n" for n in range(5000)) for sign in "ab")

    assert short_diff(before, after) == "[5,000 lines became 5,000: too many to show]"
    assert compared(before.encode(), after.encode()).added == 5000


def test_an_end_without_its_newline_is_said() -> None:
    assert short_diff("a\nb", "a\nb\n") == "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b"


def test_a_new_text_is_all_added() -> None:
    assert short_diff("", "one\n") == "@@ -0,0 +1 @@\n+one"


def test_of_a_long_line_the_place_that_changed_is_shown() -> None:
    before = "x" * 50_000 + "old" + "y" * 50_000 + "\n"

    diff = short_diff(before, before.replace("old", "new"))

    assert diff.startswith("@@ -1 +1 @@\n-[49,900 bytes …]xxx")
    assert "old" in diff
    assert "new" in diff
    assert len(diff) < 3 * MOST_LINE


@pytest.mark.slow
def test_a_hundred_thousand_places_are_counted_and_some_are_shown() -> None:
    before = b"a\nb\nc\n" * 100_000
    spans = [Span(n * 6 + 2, n * 6 + 3, b"B") for n in range(100_000)]

    difference = changed(before, spans)

    assert (difference.added, difference.removed) == (100_000, 100_000)
    assert len(difference.text()) < 5000
