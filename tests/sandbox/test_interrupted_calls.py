"""The harness is killed while bash runs: the next one says truthfully what became of the command (R9)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.sandbox.agent import opened
from tests.sandbox.conftest import FIRST, ended
from tests.sandbox.scenarios import Numbers, glance

from perdure.sandboxes.probing import try_out
from perdure.sandboxes.strategies import NAMES, named
from perdure.testing.processes import Child

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
WORDS = {
    "namespace": "The command and everything it had started were killed with its process. ",
    "subreaper": "killed with its process, unless the command had killed the helper that does this. Nothing of it was "
    "found now. ",
    "group": "What it had started may still be running. Nothing of it was found now. ",
}


@pytest.mark.parametrize("name", NAMES)
async def test_an_interrupted_command_is_told_with_what_its_isolation_proves(tmp_path: Path, name: str) -> None:
    strategy, number = named(name), str(FIRST + NAMES.index(name))
    assert strategy is not None
    if not (found := try_out(strategy)).works:
        pytest.skip(f"{name} does not work here: {found.reason}")
    command = f"setsid sleep {number} & echo ready; sleep {number}; true"
    script = str(Path(__file__).with_name("agent.py"))
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with Child([sys.executable, script, str(tmp_path), name, command], path) as agent:
        assert "running" in agent.read_line()
        os.kill(agent.pid, signal.SIGKILL)
        assert ended(agent.pid, 10)
        while Numbers(0).alive({number: ""}):  # else the test runs out of time
            glance()

        sandbox, entering = opened(tmp_path, None, command)
        async with entering as session:
            await session.resume()
            await session.wait_idle()
            chat = await session.root()
            (result,) = [each.messages[0] async for each in chat.history() if each.kind == "perdure.tool_result"]
        await sandbox.close()

    assert result.error == "interrupted"
    assert WORDS[strategy.kind] in result.text
    assert "Output until then:\nready" in result.text
