"""Prompts from lines."""

from __future__ import annotations

import pytest

from perdure.commands.lines import Lines


@pytest.mark.parametrize(
    "lines, prompts",
    [
        (["one", "two"], ["one", "two"]),
        (["one \\", "two\\", "three", "four"], ["one \ntwo\nthree", "four"]),
        (['"""', "a\\", "", "  b", '"""', "c"], ["a\\\n\n  b", "c"]),
        (['"""', '"""'], [""]),
        (["x \\", '"""'], ['x \n"""']),
        (['say """'], ['say """']),
        (["open\\"], ["open"]),
        (['"""', "open"], ["open"]),
        (['"""'], []),
    ],
)
def test_a_backslash_and_a_block_make_one_prompt_of_several_lines(lines: list[str], prompts: list[str]) -> None:
    reading = Lines()
    found = [each for each in map(reading.line, lines) if each is not None]
    last = reading.end()
    assert [*found, *([] if last is None else [last])] == prompts
    assert not reading.open


def test_what_has_begun_can_be_dropped() -> None:
    reading = Lines()
    reading.line('"""')
    reading.line("half")
    assert reading.open
    reading.drop()
    assert reading.line("whole") == "whole"
