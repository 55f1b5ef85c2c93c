"""What is told of a run: each piece once, in order, whatever was seen of it while it streamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from perdure.commands.trail import Event, Trail
from perdure.messages import AssistantMessage, Text
from perdure.records import ConversationId, Entry, EntryId, Seq


def live(text: str, *, round: int = 0, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"round": round, "attempt": attempt, "text": text, "thinking": "", "retry": None, "tools": {}, **more}


def answer(id: int, text: str, *, round: int = 0, stop: Any = "stop") -> Entry:
    message = AssistantMessage(parts=(Text(text=text),), stop=stop)
    return Entry(
        id=EntryId(id),
        conversation=ConversationId(1),
        kind="perdure.assistant",
        seq=Seq(id),
        at=0.0,
        messages=(message,),
        data={"run": 7, "round": round},
    )


def texts(events: Iterable[Event]) -> list[str]:
    return [event["text"] for event in events if event["type"] == "text"]


@given(st.text(min_size=1), st.lists(st.integers(0, 40)))
def test_what_was_told_adds_up_to_the_answer(whole: str, seen: list[int]) -> None:
    trail = Trail()
    told = [piece for length in sorted(seen) for piece in texts(trail.live(live(whole[:length])))]
    told += texts(trail.entry(answer(10, whole)))
    assert "".join(told) == whole


def test_an_answer_is_not_told_again_by_a_live_document_that_is_older() -> None:
    trail = Trail()
    assert texts(trail.entry(answer(10, "done"))) == ["done"]
    assert texts(trail.live(live("do"))) == []


def test_each_round_is_told() -> None:
    trail = Trail()
    told = [*texts(trail.live(live("one"))), *texts(trail.entry(answer(10, "one", stop="tool_calls")))]
    told += [*texts(trail.live(live("tw", round=1))), *texts(trail.entry(answer(11, "two", round=1)))]
    assert told == ["one", "tw", "o"]


def test_an_attempt_that_starts_again_is_told_from_its_start() -> None:
    trail = Trail()
    told = [*texts(trail.live(live("Hel"))), *texts(trail.entry(answer(10, "Hell", stop="error")))]
    told += texts(trail.live(live("Hello", attempt=2)))
    assert told == ["Hel", "l", "Hello"]


def test_an_answer_that_a_crash_cut_is_told_again_from_its_start() -> None:
    trail = Trail()
    list(trail.live(live("Hel")))
    list(trail.entry(answer(10, "Hel", stop="interrupted")))
    assert texts(trail.live(live("He"))) == ["He"]


def test_a_retry_is_told_once() -> None:
    trail = Trail()
    waiting = live("", attempt=2, retry={"kind": "rate_limited", "message": "slow down", "at": 5.0})
    (event,) = trail.live(waiting)
    assert event == {"type": "retry", "kind": "rate_limited", "message": "slow down", "at": 5.0}
    assert list(trail.live(waiting)) == []


def test_output_of_a_tool_is_told_as_it_grows_and_whole_where_it_was_cut() -> None:
    trail = Trail()
    told = []
    for output in ("a", "ab", "[cut]b"):
        told += trail.live(live("", tools={"9": {"name": "bash", "call": "8.0", "output": output}}))
    assert [(event["task"], event.get("text"), event.get("whole")) for event in told] == [
        (9, "a", None),
        (9, "b", None),
        (9, None, "[cut]b"),
    ]
