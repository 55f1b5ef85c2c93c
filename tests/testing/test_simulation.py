"""Whole sessions under a seeded loop: they hold, they replay, and they notice when a promise is broken."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perdure.harness import tool
from perdure.testing.simulation import Violation, simulate


@pytest.mark.slow
@pytest.mark.invariant("O-3", "O-4")
@pytest.mark.parametrize("seed", range(12))
def test_a_seed_keeps_every_invariant(seed: int) -> None:
    result = simulate(seed)

    assert result.counts["commits"] > 0


@pytest.mark.slow
@pytest.mark.invariant("O-5")
def test_a_seed_replays_exactly_in_another_process() -> None:
    command = [sys.executable, "-m", "perdure.testing.simulation", "--seed", "3"]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
        for _ in range(2)
    ]

    assert runs[0].stdout == runs[1].stdout
    assert "digest" in runs[0].stdout


@pytest.mark.slow
@pytest.mark.invariant("O-2")
def test_repeating_an_interrupted_unsafe_tool_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "_interrupted", lambda *_: False)

    with pytest.raises(Violation, match="unsafe effect"):
        _simulate_all(60)


def _simulate_all(seeds: int) -> None:
    for seed in range(seeds):
        simulate(seed)
