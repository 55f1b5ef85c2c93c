"""From rows to medians, and from medians to bars. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """One figure over the rounds."""

    middle: float
    least: float
    most: float
    rounds: int


def spread(values: list[float]) -> Spread:
    return Spread(median(values), min(values), max(values), len(values))


def spreads(rows: Iterable[Row], case: str) -> dict[tuple[str, str], dict[str, Spread]]:
    """For each peer and variant of a case: its numbers."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["case"] == case:
            for name, value in row["figures"].items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found[row["peer"], row["variant"]][name].append(value)
    return {key: {name: spread(values) for name, values in each.items()} for key, each in found.items()}


@dataclass(frozen=True)
class Bar:
    """A ratio within the run and the limit that it has to keep: the median over the rounds, each against itself."""

    name: str
    ratio: Spread
    limit: float
    at_least: bool
    note: str = ""

    @property
    def kept(self) -> bool:
        return self.ratio.middle >= self.limit if self.at_least else self.ratio.middle <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        state = "ok  " if self.kept else "MISS"
        span = f"{self.ratio.least:.2f} to {self.ratio.most:.2f} over {self.ratio.rounds}"
        note = f"; {self.note}" if self.note else ""
        return f"{state} {self.name}: {self.ratio.middle:.2f} ({span}), bar {sign} {self.limit:.3g}{note}"


def _value(rows: Iterable[Row], case: str, peer: str, variant: str, figure: str) -> dict[int, float]:
    """A figure by round; without a variant, any of the peer's."""
    return {
        row["round"]: row["figures"][figure]
        for row in rows
        if row["case"] == case and row["peer"] == peer and (not variant or row["variant"] == variant)
    }


def ratios(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """Round by round, so that what the machine did in one of them is in both sides."""
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]


def _bar(name: str, found: list[float], limit: float, at_least: bool, note: str = "") -> list[Bar]:
    return [Bar(name, spread(found), limit, at_least, note)] if found else []


def bars(rows: list[Row]) -> list[Bar]:
    """The bars that these rows can tell about."""
    return [*_throughput(rows), *_alone(rows), *_first(rows)]


def _throughput(rows: list[Row]) -> list[Bar]:
    case = "agent 100"
    ours = _value(rows, case, "perdure", "FULL", "runs_s")
    peers: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row["case"] == case and row["peer"] not in ("perdure", "floor"):
            best = peers[row["peer"]]
            best[row["round"]] = max(best.get(row["round"], 0.0), row["figures"]["runs_s"])
    found = _bar(
        "runs of 100 conversations, FULL, against LangGraph's faster setting",
        ratios(ours, peers["langgraph"]),
        6.0,
        True,
    )
    peers = {name: values for name, values in peers.items() if values}
    if peers:
        fastest = max(peers, key=lambda name: median(peers[name].values()))
        found += _bar(
            "runs of 100 conversations, FULL, against the fastest peer",
            ratios(ours, peers[fastest]),
            1.0,
            True,
            fastest,
        )
    return found


def _alone(rows: list[Row]) -> list[Bar]:
    """LangGraph's round is durable with `sync` only: the crash case shows what its default loses."""
    case = "agent 1"
    ours = _value(rows, case, "perdure", "FULL", "round_ms")
    theirs = _value(rows, case, "langgraph", "AsyncSqliteSaver, sync", "round_ms")
    return _bar("median durable round of one conversation against LangGraph's", ratios(ours, theirs), 0.5, False)


def _first(rows: list[Row]) -> list[Bar]:
    found: list[Bar] = []
    for case in ("first after kill -9", "first at rest"):
        ours = _value(rows, case, "perdure", "", "first_ms")
        for peer, name, limit in (("burr", "Burr", 3.0), ("langgraph", "LangGraph", 1 / 3)):
            theirs = _value(rows, case, peer, "", "first_ms")
            words = case.removeprefix("first ")
            found += _bar(
                f"first request over 1,000 messages, {words}, against {name}", ratios(ours, theirs), limit, False
            )
    return found
