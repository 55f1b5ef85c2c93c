"""Parts of `perdure demo` that need no process: its schedule, its client, the points at which the agent stops."""

from __future__ import annotations

import io
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.commands.demo.client import Client
from perdure.commands.demo.points import Points, Voice
from perdure.commands.demo.schedule import NAMED, Kill, schedule
from perdure.commands.demo.talk import Accepted
from perdure.commands.demo.timeline import Counts, timeline
from perdure.errors import UsageError
from perdure.telemetry import Telemetry
from perdure.testing.clock import ManualClock

# -- the schedule --------------------------------------------------------------------------------


@given(kills=st.integers(5, 60), seed=st.integers())
def test_each_point_has_a_kill(kills: int, seed: int) -> None:
    planned = schedule(kills, seed)

    assert len(planned) == kills
    assert set(NAMED) <= {kill.point for kill in planned}


@given(seed=st.integers())
def test_the_payment_meets_a_kill_before_inside_and_after_it(seed: int) -> None:
    around = {kill.point for kill in schedule(5, seed) if kill.tool == "pay"}

    assert around == {"before_effect", "in_effect", "after_effect"}


def test_a_seed_decides_the_schedule() -> None:
    assert schedule(50, 7) == schedule(50, 7)
    assert schedule(50, 7) != schedule(50, 8)


def test_too_few_kills_are_refused_with_what_is_enough() -> None:
    with pytest.raises(UsageError, match="--kills 4: give a number from 5"):
        schedule(4, 1)


# -- the client ----------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(str(tmp_path / "accepted.jsonl"), seed=1)


def asked(client: Client, at_once: int) -> list[tuple[str, bool]]:
    return [(submit.request, again) for submit, again in client.wants(at_once)]


def test_what_was_cut_off_is_asked_for_again_under_the_same_request_id(client: Client) -> None:
    assert asked(client, 2) == [("errand-1", False), ("errand-2", False)]
    client.accept(Accepted(request="errand-2", submission=8, settled=False))
    assert asked(client, 2) == []

    client.meet(live=[8])

    assert asked(client, 2) == [("errand-1", True)]


def test_what_was_accepted_is_in_the_clients_own_file(client: Client, tmp_path: Path) -> None:
    asked(client, 1)

    client.accept(Accepted(request="errand-1", submission=8, settled=False))

    assert '"request":"errand-1","submission":8' in (tmp_path / "accepted.jsonl").read_text()


def test_what_settled_unseen_while_the_agent_died_is_not_waited_for(client: Client) -> None:
    asked(client, 1)
    client.accept(Accepted(request="errand-1", submission=8, settled=False))
    assert not client.is_done

    client.meet(live=[])

    assert client.is_done
    assert (client.accepted, client.answered) == (1, 1)


def test_what_had_settled_before_it_was_accepted_is_not_waited_for(client: Client) -> None:
    asked(client, 1)

    client.accept(Accepted(request="errand-1", submission=8, settled=True))

    assert client.is_done


# -- the timeline --------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


COUNTS = Counts(kills=3, planned=12, accepted=5, answered=4)


def shown_on(stream: io.StringIO, text: str) -> str:
    with timeline(stream, ManualClock(0)) as shown:
        shown.show(2, "KILL", text)
        shown.count(COUNTS)
        shown.say("done")
    return stream.getvalue()


def test_each_event_is_a_plain_line_where_nobody_looks() -> None:
    assert shown_on(io.StringIO(), "inside an effect") == "   0.00  #2   KILL      inside an effect\ndone\n"


def test_a_terminal_also_shows_how_far_it_is_and_gets_its_cursor_back() -> None:
    drawn = shown_on(Terminal(), "inside an effect")

    assert "inside an effect" in drawn
    assert "3 of 12 kills" in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["plain", "drawn"])
def test_what_a_tool_printed_does_not_steer_the_terminal(stream: io.StringIO) -> None:
    assert "\x1b]0;" not in shown_on(stream, "title \x1b]0;gotcha\x07 set")


# -- points --------------------------------------------------------------------------------------


@pytest.fixture
def heard() -> Iterator[tuple[Voice, int]]:
    """What the agent says can be read from the descriptor."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield Voice(writer), reader
    os.close(reader)
    os.close(writer)


def said(reader: int) -> list[str]:
    try:
        return os.read(reader, 65536).decode().splitlines()
    except BlockingIOError:
        return []


def test_a_point_counts_from_the_nth_time_on_once(heard: tuple[Voice, int]) -> None:
    voice, reader = heard
    points = Points(voice)
    points.arm(Kill(point="in_effect", nth=2, tool="pay"))

    due = [
        points.due("in_effect", "here", "pay"),
        points.due("in_effect", "here", "bash"),
        points.due("after_effect", "here", "pay"),
        points.due("in_effect", "here", "pay"),
        points.due("in_effect", "here", "pay"),
    ]

    assert due == [False, False, False, True, False]
    assert said(reader) == ['{"type":"reached","point":"in_effect","detail":"here"}']


def test_no_point_counts_while_another_death_would_park_a_task(heard: tuple[Voice, int]) -> None:
    voice, _ = heard
    points = Points(voice)
    points.arm(Kill(point="in_effect"))

    points.spared.add(17)
    assert not points.due("in_effect", "here")
    points.spared.discard(17)
    assert points.due("in_effect", "here")


def test_a_point_that_several_threads_pass_is_due_in_one_of_them(heard: tuple[Voice, int]) -> None:
    voice, _ = heard
    points = Points(voice)
    points.arm(Kill(point="in_effect", nth=4))
    due: Counter[bool] = Counter()
    threads = [threading.Thread(target=lambda: due.update([points.due("in_effect", "here")])) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert due == {True: 1, False: 7}


def test_events_of_tools_that_are_not_due_pass(heard: tuple[Voice, int]) -> None:
    voice, reader = heard
    points, telemetry = Points(voice), Telemetry()
    points.arm(Kill(point="before_effect", nth=2))
    points.attach(telemetry)

    telemetry.emit("perdure.tool.begun", metadata={"tool": "pay", "task": 1})
    telemetry.emit("perdure.tool.returned", metadata={"tool": "pay", "task": 1})

    assert said(reader) == []
