"""Where a transcript may be cut (H27): laws over any transcript."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.harness import tokens
from perdure.harness.context import render
from perdure.harness.cutting import choose, newest_turn, stretches
from perdure.harness.harness import Settings
from perdure.harness.thresholds import Beside, First, Full, Send, judge, thresholds
from perdure.harness.valid import valid
from perdure.messages import AssistantMessage, Message, Text, ToolCall, ToolMessage, call_key, calls_of, user
from perdure.records import ConversationId, Entry, EntryId, Seq
from perdure.session.transcripts import cut as active

STOPPED = ["error", "interrupted"]


def entry(id: int, *messages: Message, data: Any = None, head: int | None = None) -> Entry:
    return Entry(
        id=EntryId(id),
        conversation=ConversationId(1),
        kind="perdure.test",
        seq=Seq(id),
        at=0.0,
        messages=messages,
        data=data,
        head=None if head is None else EntryId(head),
    )


@st.composite
def transcripts(draw: Any) -> list[Entry]:
    """Runs with rounds whose results come in any order, are missing, or wait behind notes; attempts that stopped."""
    found: list[Entry] = []
    count = iter(range(1, 10_000))
    if draw(st.booleans()):
        found.append(entry(9_999, user("head"), head=1))
    for run in range(draw(st.integers(0, 4))):
        found.append(entry(next(count), user("u" * draw(st.integers(0, 200)))))
        for round in range(draw(st.integers(0, 3))):
            data = {"run": run, "round": round}
            for _ in range(draw(st.integers(0, 2))):
                text = AssistantMessage(parts=(Text(text="half"),), stop=draw(st.sampled_from(STOPPED)))
                found.append(entry(next(count), text, data=data))
            calls = draw(st.integers(0, 3))
            parts = (
                Text(text="a" * draw(st.integers(1, 200))),
                *(ToolCall(name="t", arguments={}) for _ in range(calls)),
            )
            id = next(count)
            found.append(entry(id, AssistantMessage(parts=parts, stop="tool_calls" if calls else "stop"), data=data))
            for index in draw(st.permutations(range(calls))):
                if draw(st.integers(0, 5)):
                    result = ToolMessage(call=call_key(id, index), name="t", text="r" * draw(st.integers(0, 400)))
                    found.append(entry(next(count), result))
                if not draw(st.integers(0, 3)):
                    found.append(entry(next(count), data={"note": 1}))
    return found


def sides(entries: list[Entry], index: int) -> tuple[set[str], set[str]]:
    """The calls and the results before a place."""
    calls = {call_key(e.id, n) for e in entries[:index] for m in e.messages for n, _ in enumerate(calls_of(m))}
    results = {m.call for e in entries[:index] for m in e.messages if isinstance(m, ToolMessage)}
    return calls, results


@pytest.mark.invariant("HC-17")
@pytest.mark.slow
@given(transcripts(), st.integers(0, 400))
def test_a_cut_separates_no_call_from_its_result_and_no_attempt_from_its_answer(
    entries: list[Entry], keep: int
) -> None:
    found = choose(entries, keep)
    if found is None:
        return
    calls, results = sides(entries, found.index)
    everything = sides(entries, len(entries))[1]
    assert results == calls & everything
    attempts = [
        [(e.data["run"], e.data["round"]) for e in part if isinstance(e.data, dict) and "run" in e.data]
        for part in (entries[: found.index], entries[found.index :])
    ]
    assert not set(attempts[0]) & set(attempts[1])


@pytest.mark.invariant("HC-17")
@pytest.mark.slow
@given(transcripts(), st.integers(0, 400))
def test_a_cut_keeps_what_it_was_asked_to_keep_and_as_little_more_as_stretches_allow(
    entries: list[Entry], keep: int
) -> None:
    found = choose(entries, keep)
    begin = 1 if entries and entries[0].head is not None else 0
    parts = stretches(entries, begin)
    assert [place for part in parts for place in range(*part)] == list(range(begin, len(entries)))
    if found is None:
        return
    sizes = [tokens.of_entry(each) for each in entries]
    assert found.kept == sum(sizes[found.index :]) >= keep
    assert found.older == sum(sizes[: found.index])
    assert sum(sizes[begin : found.index]) > 0
    [own] = [part for part in parts if part[0] == found.index]
    if own[1] < len(entries):
        assert sum(sizes[own[1] :]) < keep


@pytest.mark.invariant("HC-17")
@pytest.mark.slow
@given(transcripts(), st.integers(0, 400))
def test_what_is_left_after_a_cut_is_a_valid_transcript_and_so_is_what_is_summarised(
    entries: list[Entry], keep: int
) -> None:
    found = choose(entries, keep)
    if found is None:
        return
    summary = entry(10_000, user("notes"), head=found.first)
    plain = [each for each in entries if each.head is None]
    assert not valid(render(active([*plain, summary]), model="m"), model="m")
    assert not valid(render(entries[: found.index], model="m"), model="m")


@pytest.mark.invariant("HC-17")
@pytest.mark.slow
@given(transcripts(), st.integers(0, 400), st.data())
def test_nothing_is_cut_off_from_a_round_that_still_runs(entries: list[Entry], keep: int, data: Any) -> None:
    answers = [each.id for each in entries if any(calls_of(message) for message in each.messages)]
    if not answers:
        return
    running = data.draw(st.sampled_from(answers))
    found = choose(entries, keep, open={running})
    assert found is None or found.first <= running


def test_the_newest_turn_begins_with_the_newest_thing_that_a_user_said() -> None:
    answer = AssistantMessage(parts=(Text(text="a" * 40),))
    entries = [entry(1, user("x" * 4000)), entry(2, answer), entry(3, user("y" * 40)), entry(4, answer)]
    assert newest_turn(entries) == sum(map(tokens.of_entry, entries[2:]))
    assert newest_turn([]) == 0


def test_a_transcript_of_one_stretch_has_no_cut() -> None:
    assert choose([], 0) is None
    assert choose([entry(1, user("one"))], 0) is None
    assert choose([entry(9, user("notes"), head=1), entry(1, user("one"))], 0) is None


# -- thresholds -------------------------------------------------------------------------------------


def test_the_thresholds_are_the_settings_below_the_window() -> None:
    found = thresholds(Settings(), 200_000)
    assert (found.blocking, found.background, found.keep) == (183_616, 150_848, 20_000)
    assert thresholds(Settings(compaction_background=0), 200_000).background is None


@given(st.integers(1, 300_000), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_whatever_the_settings_are_the_thresholds_leave_room(window: int, reserve: int, keep: int, ahead: int) -> None:
    settings = Settings(compaction_reserve=reserve, compaction_keep_recent=keep, compaction_background=ahead)
    found = thresholds(settings, window)
    assert found.window >= found.blocking >= window // 2
    assert found.keep <= found.blocking // 2
    assert found.background is None or found.blocking // 2 <= found.background <= found.blocking


@pytest.mark.invariant("HC-23")
@pytest.mark.slow
@given(transcripts(), st.integers(0, 4000), st.integers(1, 2000), st.integers(0, 3), st.booleans())
def test_a_compaction_is_begun_only_where_it_can_help_and_never_for_a_third_time(
    entries: list[Entry], size: int, window: int, tries: int, running: bool
) -> None:
    settings = Settings(compaction_reserve=window // 4, compaction_keep_recent=50, compaction_background=window // 4)
    limits = thresholds(settings, window)
    verdict = judge(size, limits, lambda keep: choose(entries, keep), tries=tries, running=running, begun_at=None)
    match verdict:
        case Send():
            assert size <= window
        case Full():
            assert size > window
        case Beside(keep):
            found = choose(entries, keep)
            assert found is not None
            assert limits.background is not None
            assert (size < limits.blocking, running) == (True, False)
            assert size - found.older < limits.background
        case First(keep):
            found = choose(entries, keep)
            assert found is not None
            assert (size >= limits.blocking, tries < 2) == (True, True)
            assert size - found.older <= (limits.blocking if size <= window else window)
