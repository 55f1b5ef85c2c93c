"""The bounded output of tools (H21, I75, I76)."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.harness.output import Keep, Output
from perdure.values import clean_text

NOTE = re.compile(r"\[… (?:([\d,]+) lines?, )?([\d,]+) bytes? left out …\]")
KEEPS: tuple[Keep, ...] = ("head", "tail", "both")


def fed(*chunks: bytes | str, limit_bytes: int = 100, limit_lines: int = 10, keep: Keep = "head") -> Output:
    output = Output(limit_bytes, limit_lines, keep)
    for chunk in chunks:
        output.feed(chunk)
    output.close()
    return output


def split_at_note(text: str) -> tuple[str, str, int, int]:
    """What stands before and after the note, and the lines and bytes it names."""
    found = NOTE.search(text)
    assert found, text
    lines, count = (int((found[group] or "0").replace(",", "")) for group in (1, 2))
    return text[: found.start()], text[found.end() :].removeprefix("\n"), lines, count


def test_what_fits_is_kept_as_it_came() -> None:
    output = fed(b"one\n", b"two")

    assert output.text() == "one\ntwo"
    assert not output.truncated
    assert output.total_bytes == 7


def test_the_head_is_kept_and_the_note_says_what_was_dropped() -> None:
    output = fed(*[f"line {n}\n" for n in range(20)], keep="head")

    assert output.text() == "".join(f"line {n}\n" for n in range(10)) + "[… 10 lines, 80 bytes left out …]"
    assert output.truncated


def test_the_tail_is_kept_and_the_note_stands_before_it() -> None:
    output = fed(*[f"line {n}\n" for n in range(20)], keep="tail")

    assert output.text() == "[… 10 lines, 70 bytes left out …]\n" + "".join(f"line {n}\n" for n in range(10, 20))


def test_both_ends_are_kept_and_the_note_stands_between_them() -> None:
    output = fed(*[f"line {n}\n" for n in range(20)], keep="both")

    kept = [f"line {n}\n" for n in range(20)]
    assert output.text() == "".join(kept[:5]) + "[… 10 lines, 75 bytes left out …]\n" + "".join(kept[15:])


def test_the_tail_gets_what_the_head_did_not_need() -> None:
    output = fed("a\n" * 5, "b" * 60 + "\n", "c" * 20 + "\n", "d\n" * 30, limit_bytes=100, limit_lines=10, keep="both")

    before, after, lines, count = split_at_note(output.text())
    assert (before, after) == ("a\n" * 5, "d\n" * 5)
    assert (lines, count) == (27, 61 + 21 + 50)


def test_numbers_in_the_note_have_thousands_separators() -> None:
    assert "[… 1,234 lines, 56,789 bytes left out …]" in fed("x" * 100, "y" * 55_555, "\n" * 1234, keep="head").text()


def test_a_part_of_one_line_is_counted_in_bytes_only() -> None:
    assert fed(b"x" * 250, keep="tail").text() == "[… 150 bytes left out …]\n" + "x" * 100


def test_a_line_is_not_shown_without_its_end_when_that_costs_little() -> None:
    output = fed(b"a" * 80 + b"\n" + b"b" * 500, keep="head")

    assert output.text() == "a" * 80 + "\n[… 500 bytes left out …]"


def test_a_line_is_not_shown_without_its_start_when_that_costs_little() -> None:
    output = fed(b"b" * 500 + b"\n" + b"a" * 80 + b"\n", keep="tail")

    assert output.text() == "[… 1 line, 501 bytes left out …]\n" + "a" * 80 + "\n"


def test_a_character_split_over_two_chunks_stays_whole() -> None:
    data = "größer €5 🙂\n".encode()

    assert fed(*[data[n : n + 1] for n in range(len(data))]).text() == "größer €5 🙂\n"


@pytest.mark.parametrize("keep", KEEPS)
def test_a_cut_never_falls_inside_a_character(keep: Keep) -> None:
    for shift in range(4):
        assert "\ufffd" not in fed(b"." * shift + "🙂".encode() * 100, keep=keep).text()


def test_bytes_that_are_no_text_are_replaced_and_never_dropped() -> None:
    assert fed(b"ok \xff\xfe end").text() == "ok \ufffd\ufffd end"


def test_nul_becomes_its_picture() -> None:
    assert fed(b"h\0i\0").text() == "h\u2400i\u2400"


def test_a_surrogate_becomes_the_replacement_character() -> None:
    assert fed("a\ud835b").text() == "a\ufffdb"


def test_half_a_character_at_the_end_shows_once_nothing_more_can_come() -> None:
    output = Output()
    output.feed("€".encode()[:2])

    assert output.text() == ""
    output.close()
    assert output.text() == "\ufffd"


def test_the_limit_holds_for_what_is_shown_of_binary_data() -> None:
    for keep in KEEPS:
        output = fed(b"\xff" * 90, keep=keep)
        before, after, _, count = split_at_note(output.text())
        assert len(before.strip("\n").encode()) + len(after.encode()) <= 100
        assert count == 90 - before.count("\ufffd") - after.count("\ufffd")


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="not 0 bytes"):
        Output(limit_bytes=0)


# -- progress -----------------------------------------------------------------------------------


def test_a_delta_is_what_was_added_since_the_last_one() -> None:
    output = Output()
    output.feed(b"one ")
    first = output.delta()
    output.feed(b"two ")
    output.feed(b"three")

    assert (first, output.delta(), output.delta()) == ("one ", "two three", "")


def test_a_delta_holds_half_a_character_back() -> None:
    output = Output()
    output.feed("a€".encode()[:-1])
    first = output.delta()
    output.feed("€".encode()[-1:])

    assert (first, output.delta()) == ("a", "€")


@pytest.mark.parametrize("keep", KEEPS)
def test_there_is_no_delta_once_something_was_dropped(keep: Keep) -> None:
    output = Output(10, 10, keep)
    output.feed(b"12345")
    assert output.delta() == "12345"
    output.feed(b"67890abc")

    assert output.delta() is None
    assert output.delta() == ""
    output.feed(b"d")
    assert output.delta() is None


@given(st.lists(st.text(max_size=30) | st.binary(max_size=30), max_size=12), st.data())
def test_the_deltas_joined_are_the_text_while_nothing_is_dropped(
    chunks: list[str | bytes], data: st.DataObject
) -> None:
    output = Output(10_000, 1000)
    seen = ""
    for chunk in chunks:
        output.feed(chunk)
        if data.draw(st.booleans()):
            seen += output.delta() or ""
        assert output.text().startswith(seen)
    output.close()
    assert seen + (output.delta() or "") == output.text()


# -- laws ---------------------------------------------------------------------------------------

TEXTS = st.lists(st.text(st.sampled_from("ab\né🙂 "), max_size=40), max_size=12)


@example(["é🙂"], 5, 1, "tail")
@example(["é🙂"], 5, 1, "both")
@given(TEXTS, st.integers(4, 120), st.integers(1, 12), st.sampled_from(KEEPS))
def test_kept_and_dropped_add_up_and_the_limits_hold(
    pieces: list[str], limit_bytes: int, limit_lines: int, keep: Keep
) -> None:
    whole = "".join(pieces)
    output = fed(*[piece.encode() for piece in pieces], limit_bytes=limit_bytes, limit_lines=limit_lines, keep=keep)

    text = output.text()

    if not output.truncated:
        assert text == whole
        assert len(whole.encode()) <= limit_bytes
        assert whole.count("\n") <= limit_lines
        return
    before, after, lines, count = split_at_note(text)
    before = (
        before
        if whole.startswith(before) and before.count("\n") + after.count("\n") + lines == whole.count("\n")
        else before[:-1]
    )
    assert whole.startswith(before)
    assert whole.endswith(after)
    assert len(before.encode()) + len(after.encode()) + count == len(whole.encode())
    assert before.count("\n") + after.count("\n") + lines == whole.count("\n")
    assert len(before.encode()) + len(after.encode()) <= limit_bytes
    assert before.count("\n") + after.count("\n") <= limit_lines


@given(st.lists(st.binary(max_size=200), max_size=10), st.sampled_from(KEEPS))
def test_any_bytes_in_any_chunks_give_the_same_clean_text(chunks: list[bytes], keep: Keep) -> None:
    text = fed(*chunks, keep=keep).text()

    assert text == fed(b"".join(chunks), keep=keep).text()
    assert text == clean_text(text)
    assert len(text.encode()) <= 100 + 60


@pytest.mark.slow
def test_a_hundred_megabytes_in_one_line_cost_as_much_as_the_limit() -> None:
    chunk = b"x" * 65_536
    output = Output(keep="both")
    tracemalloc.start()
    for _ in range(1600):
        output.feed(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_000_000
    assert split_at_note(output.text())[3] == 1600 * 65_536 - 50 * 1024
