"""The campaign: the agent works for its client, is killed at each point of the schedule, and is started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from perdure.clock import Clock
from perdure.commands.demo import talk
from perdure.commands.demo.client import OPEN_AT_ONCE, Client
from perdure.commands.demo.life import Ending, Life
from perdure.commands.demo.places import Places
from perdure.commands.demo.schedule import DESCRIBED, POINTS, Kill, Point
from perdure.commands.demo.timeline import Counts, Timeline, What
from perdure.providers.demo import LABEL

#: An agent that says nothing for so long stands still, in seconds; and no life needs as long as the other.
SILENCE, LONGEST_LIFE = 60.0, 240.0


class Toll(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to the agent. `left` are processes that outlived their killed parent for good."""

    kills: int
    by_point: dict[Point, int]
    left: tuple[str, ...]


class Campaign:
    """Kills the agent as scheduled, then lets it finish."""

    def __init__(self, files: Places, seed: int, shown: Timeline, clock: Clock) -> None:
        self._files = files
        self._shown = shown
        self._clock = clock
        self._client = Client(files.promises, seed)
        self._lives = 0
        self._planned = 0
        #: Kills that happened, by point.
        self._killed: Counter[Point] = Counter()
        self._left: list[str] = []
        #: Tasks that are spared: the agent died twice in their present step (H44).
        self._suspects: set[int] = set()

    def run(self, kills: Sequence[Kill]) -> Toll:
        """Raises AgentFailed where the agent does what it should not: ends by itself, or stands still."""
        self._planned = len(kills)
        coming = Life()
        try:
            for kill in [*kills, None]:
                with coming as life:
                    if kill is not None:
                        coming = Life()  # starts while this one works, and waits with nothing open for its turn
                    self._lives += 1
                    self._live(life, kill)
        finally:
            coming.close()
        by_point: dict[Point, int] = {point: self._killed[point] for point in POINTS}
        return Toll(kills=self._killed.total(), by_point=by_point, left=tuple(self._left))

    def _live(self, life: Life, kill: Kill | None) -> None:
        """One life of the agent, to its kill; without one to its end in order."""
        self._suspects.clear()
        life.expect(SILENCE)  # that it is ready
        life.say(talk.Open(store=self._files.store, directory=self._files.directory, kill=kill))
        if kill is None:
            self._finish(life)
        else:
            detail = self._work(life, kill)
            ending = life.kill()
            self._killed[kill.point] += 1
            self._take_rest(life, ending)
            number = self._killed.total()
            self._show("KILL", f"kill -9, {number} of {self._planned}, {DESCRIBED[kill.point]}: {detail}")
            self._note_left(ending)

    def _work(self, life: Life, kill: Kill) -> str:
        """Until the moment at which the agent is to be killed; what it was doing then."""
        clock, began = self._clock, self._clock.monotonic()
        at = began + kill.delay if kill.point == "anywhere" else None
        detail = f"{kill.delay:.2f} s after it was told to open the store"
        at_once = OPEN_AT_ONCE + (kill.nth if kill.point == "admission" else 0)
        while at is None or self._suspects or clock.monotonic() < at:
            if at is None or self._suspects:
                report = life.expect(SILENCE)
            else:
                report = life.hear(at - clock.monotonic())
            if isinstance(report, talk.Reached):
                at, detail = clock.monotonic() + kill.delay, report.detail
            elif report is not None:
                self._take(life, report, at_once)
            if clock.monotonic() - began > LONGEST_LIFE:
                raise life.failed(f"was not to be killed {DESCRIBED[kill.point]} in {LONGEST_LIFE:.0f} s")
        return detail

    def _finish(self, life: Life) -> None:
        """Until everything is accepted, answered and closed."""
        told = False
        while not isinstance(report := life.expect(SILENCE), talk.Closed):
            self._take(life, report, 0)
            if self._client.is_done and not told:
                life.say(talk.Finish())
                told = True
        self._show("close", f"process {life.pid} has nothing left to do, and closes in order")
        ending = life.end()
        self._take_rest(life, ending)
        self._note_left(ending)

    # -- what the agent says -----------------------------------------------------------------

    def _take(self, life: Life, report: talk.Report, at_once: int | None = None) -> None:
        """Note what the agent said. While it lives, it is asked for more, so that `at_once` errands are open."""
        client = self._client
        match report:
            case talk.Opened():
                self._opened(life, report)
                if at_once is not None:
                    life.say(talk.Proceed())
            case talk.Accepted():
                text = client.accept(report)
                self._show("accepted", f"{report.request}: {text}")
            case talk.Settled():
                self._settled(report)
            case talk.Wrote():
                self._wrote(report)
            case talk.Effect():
                self._show("effect", report.text)
            case talk.Moved():
                self._suspects.discard(report.task)
            case _:
                pass
        if at_once is not None and isinstance(report, talk.Opened | talk.Accepted | talk.Settled):
            for submit, again in client.wants(at_once):
                if again:
                    self._show(
                        "again", f"{submit.request}: no word came back, so it is handed in once more, same request id"
                    )
                life.say(submit)
        self._shown.count(
            Counts(
                kills=self._killed.total(),
                planned=self._planned,
                accepted=client.accepted,
                answered=client.answered,
            )
        )

    def _take_rest(self, life: Life, ending: Ending) -> None:
        """What it said before it ended, and was not heard yet, holds all the same."""
        for report in ending.reports:
            self._take(life, report)

    def _opened(self, life: Life, report: talk.Opened) -> None:
        self._client.meet(report.live)
        self._suspects.update(report.suspects)
        if report.commit <= 1:
            text = "opens a new store"
        else:
            text = f"opens the store at commit {report.commit} and goes on with {report.tasks} unfinished tasks"
        self._show("start", f"process {life.pid} {text}")

    def _settled(self, report: talk.Settled) -> None:
        request = self._client.settle(report.submission)
        name = f"submission {report.submission}" if request is None else request
        self._show("answer", f"{name} is answered" if report.answered else f"{name} is NOT answered: {report.why}")

    def _wrote(self, report: talk.Wrote) -> None:
        text = report.text.removeprefix(LABEL).strip()
        if report.error == "interrupted":
            self._show(
                "unknown", f"entry {report.entry}: nobody knows what became of {report.tool}; it is not repeated"
            )
        elif report.stop == "interrupted":
            self._show("entry", f"{report.entry} model, cut off: {text}")
        elif report.calls:
            self._show("entry", f"{report.entry} model calls {', '.join(report.calls)}: {text}")
        elif report.tool is not None:
            self._show("entry", f"{report.entry} {report.tool}: {text}")
        else:
            who = "model" if report.kind == "assistant" else report.kind
            self._show("entry", f"{report.entry} {who}: {text}")

    def _show(self, what: What, text: str) -> None:
        self._shown.show(self._lives, what, text)

    def _note_left(self, ending: Ending) -> None:
        for line in ending.complaints.splitlines():
            self._show("stderr", line)
        for command in ending.left:
            self._left.append(command)
            self._show("left", f"still running after its agent was gone: {command}")
