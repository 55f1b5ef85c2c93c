"""What a model is told when the text that it wants to replace is not in the file."""

from __future__ import annotations

import pytest

from perdure.errors import SandboxError
from perdure.tools.replacing import Change, replace

FILE = "import x\n\ndef f(a, b):\n\treturn a + b\n\nprint('it is')\nprint(f(1, 2))\n"


def told(old: str, new: str = "something new", file: str = FILE) -> str:
    with pytest.raises(SandboxError) as raised:
        replace(file.encode(), [Change(old, new)], name="file")
    return str(raised.value)


def test_white_space_that_differs_is_named_with_both_indentations_and_the_text_that_is_there() -> None:
    assert told("    return a + b").endswith(
        "lines that differ only in white space begin at 4 (indented by 1 tab, in old by 4 spaces)."
        " There the file has:\n\treturn a + b"
    )


def test_white_space_within_a_line_is_found_too() -> None:
    assert "differ only in white space begin at 3. There the file has:\ndef f(a, b):" in told("def  f(a,   b):")


def test_quotes_and_dashes_of_another_kind_are_named() -> None:
    assert (
        "lines that differ only in quotes, dashes or spaces of another kind begin at 6. There the file has:\n"
        "print('it is')"
    ) in told("print(\u2018it is\u2019)")
    assert "quotes, dashes or spaces of another kind begin at 1" in told("a - b", file="a \u2013 b\n")


def test_upper_and_lower_case_is_named() -> None:
    assert "differ only in upper and lower case begin at 1" in told("Import X")


def test_escapes_that_are_one_too_many_are_named() -> None:
    assert "only in backslashes, which old has too many of, begin at 3" in told("def f(a, b):\\n\\treturn a + b")


def test_an_edit_that_was_made_before_is_noticed() -> None:
    assert told("return a - b", "return a + b").endswith(
        "new stands there already, at line 4: the edit may have been made before"
    )


def test_where_only_a_line_within_is_found_what_is_around_it_is_shown() -> None:
    assert "its line 2 stands at 7, but what is around it differs. There the file has:\n" in told(
        "print('it was')\nprint(f(1, 2))"
    )


def test_all_places_are_named_up_to_ten() -> None:
    assert "begin at 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more" in told("a  b", file="a b\n" * 12)


def test_what_is_shown_is_bounded() -> None:
    message = told("y" + " z" * 2000, file="y" + "  z" * 2000 + "\n")

    assert len(message) < 2000
    assert "more characters]" in message


def test_of_a_long_text_the_place_is_told_by_its_lines() -> None:
    lines = [f"line {n} of a long text\n" for n in range(1000)]

    message = told("".join(lines), file="".join([*lines[:-1], "another end\n"]))

    assert "its first line stands at 1, but what follows differs" in message
