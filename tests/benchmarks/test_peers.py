"""What `make bench` does with its rows: medians, ratios, bars, and the page that is checked in."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks/peers"
DOCS = ROOT / "docs/benchmarks"
MODULES = ("environments", "job", "machine", "matrix", "page", "summary")

Row = dict[str, Any]


class Bench:
    """The modules of the benchmark: scripts beside each other, not a package."""

    def __init__(self) -> None:
        for name in MODULES:
            setattr(self, name, importlib.import_module(name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(PEERS))
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield Bench()
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def row(case: str, peer: str, variant: str, number: int, **figures: float) -> Row:
    return {"case": case, "peer": peer, "variant": variant, "round": number, "figures": figures, "checked": {}}


def agents(ours: float, burr: float, langgraph: float, number: int = 0) -> list[Row]:
    return [
        row("agent 100", "perdure", "FULL", number, runs_s=ours),
        row("agent 100", "perdure", "process durability", number, runs_s=10 * ours),
        row("agent 100", "floor", "FULL", number, runs_s=1000 * ours),
        row("agent 100", "burr", "AsyncSQLitePersister", number, runs_s=burr),
        row("agent 100", "langgraph", "AsyncSqliteSaver, async", number, runs_s=langgraph),
        row("agent 100", "langgraph", "AsyncSqliteSaver, sync", number, runs_s=langgraph / 2),
    ]


def test_a_bar_compares_with_the_faster_setting_of_langgraph_and_with_the_fastest_peer(bench: Any):
    first, second = bench.summary.bars(agents(ours=120, burr=100, langgraph=15))
    assert (first.ratio.middle, first.kept) == (8, True)
    assert (second.ratio.middle, second.kept, second.note) == (1.2, True, "burr")


def test_a_bar_that_is_missed_says_so(bench: Any):
    first, second = bench.summary.bars(agents(ours=49, burr=100, langgraph=15))
    assert not first.kept
    assert not second.kept
    assert str(second).startswith("MISS ")


def test_a_ratio_is_taken_within_each_round_before_the_median_is(bench: Any):
    # The machine was ten times slower in the second round, for both.
    rows = [*agents(120, 100, 15), *agents(12, 10, 1.5, 1), *agents(110, 100, 15, 2)]
    _, fastest = bench.summary.bars(rows)
    assert fastest.ratio.middle == pytest.approx(1.2)
    assert (fastest.ratio.least, fastest.ratio.rounds) == (pytest.approx(1.1), 3)


def test_a_round_that_one_side_failed_in_is_in_no_ratio(bench: Any):
    rows = [*agents(120, 100, 15), row("agent 100", "perdure", "FULL", 1, runs_s=1.0)]
    assert all(bar.ratio.rounds == 1 for bar in bench.summary.bars(rows))


def test_the_first_request_is_held_to_both_peers(bench: Any):
    rows = [
        row("first after kill -9", peer, "", 0, first_ms=value)
        for peer, value in (("perdure", 15.0), ("burr", 6.0), ("langgraph", 50.0))
    ]
    against_burr, against_langgraph = bench.summary.bars(rows)
    assert (against_burr.ratio.middle, against_burr.kept) == (2.5, True)
    assert (against_langgraph.ratio.middle, against_langgraph.kept) == (0.3, True)


def test_bars_without_their_rows_are_not_there(bench: Any):
    assert bench.summary.bars([]) == []


def test_every_figure_names_a_function_of_its_peer(bench: Any):
    for figure in bench.matrix.figures():
        code = (PEERS / f"peer_{figure.peer}.py").read_text()
        for name in filter(None, (figure.function, figure.store)):
            assert f"def {name}(" in code, f"{figure}: peer_{figure.peer}.py has no {name}"


def test_the_figures_of_the_bars_are_enough_for_each_bar(bench: Any):
    chosen = bench.matrix.chosen(["bars"])
    assert {figure.case for figure in chosen} == {"agent 1", "agent 100", "first after kill -9", "first at rest"}
    assert {figure.peer for figure in chosen} == {"perdure", "burr", "langgraph"}


def test_a_case_that_is_not_there_is_refused_with_those_that_are(bench: Any):
    with pytest.raises(ValueError, match="there is no case 'agents': there are agent, first"):
        bench.matrix.chosen(["agents"])


def test_every_peer_pins_each_package_and_names_no_index(bench: Any):
    for peer, packages in bench.matrix.PACKAGES.items():
        lines = bench.environments.requirements(peer).read_text().split()
        assert all(line.count("==") == 1 and "://" not in line for line in lines), peer
        assert set(packages) <= {line.partition("==")[0] for line in lines}


def test_a_median_is_shown_with_where_its_rounds_went(bench: Any):
    assert bench.page.cell(bench.summary.spread([3.0, 1.0, 1200.0]), 1) == "3.0 (1.0 to 1,200.0)"


def test_the_page_is_made_of_the_results_that_are_checked_in(bench: Any):
    results = json.loads((DOCS / "results.json").read_text())
    assert (DOCS / "README.md").read_text() == bench.page.page(results)


def test_what_is_checked_in_measured_perdure_with_every_write_synced(bench: Any):
    results = json.loads((DOCS / "results.json").read_text())
    ours = [each for each in results["rows"] if each["peer"] == "perdure" and each["variant"] == "FULL"]
    agents = [each for each in ours if each["case"].startswith("agent")]
    assert agents
    assert all(each["checked"]["synchronous"] == 2 for each in agents)
