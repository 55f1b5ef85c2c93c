"""A working directory with a user's tools, and `perdure` in processes of its own."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure.commands
from perdure.testing.processes import Child, Exit, run_child

SHOP = '''
from pathlib import Path
from perdure import Extension, Tool, tool

def ledger(line: str) -> None:
    with Path("ledger.txt").open("a") as file:
        file.write(line + "\\n")

@tool(replay="safe")
def population(city: str) -> str:
    """Population of a city.

    Args:
        city: its English name
    """
    print("a tool may print")
    return f"{city} has 133000 people"

def pay(amount: int, to: str) -> str:
    """Pay an amount to someone."""
    ledger(f"{amount} to {to}")
    return f"paid {amount} to {to}"

async def ask_boss(call, request: str) -> str:
    """Ask the boss about a request."""
    async with call.commit() as tx:
        tx.ask({"request": request})
    return "asked"

BOTH = [population, pay]
SHOP = Extension(name="shop", tools=[population, tool(pay)])
'''


#: What would choose another model on somebody's machine, or be configured there.
AMBIENT = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")


@pytest.fixture(autouse=True)
def of_nobody(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is configured, no key is set, and no local server is found. Where the user's settings are looked for."""
    home = tmp_path_factory.mktemp("config")
    for name in [name for name in os.environ if name in AMBIENT or name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    for kind in ("OLLAMA", "LLAMA_SERVER", "VLLM", "LM_STUDIO"):
        monkeypatch.setenv(f"{kind}_BASE_URL", "http://127.0.0.1:9/v1")
    return home / "perdure"


class Shop:
    """A directory in which somebody works with `perdure`."""

    def __init__(self, path: Path, compiled: Path) -> None:
        self.path = path
        # Processes start in half the time where they find compiled modules.
        self.env = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(compiled)}
        (path / "shop.py").write_text(SHOP)

    def argv(self, *args: str) -> Sequence[str]:
        return [sys.executable, "-m", "perdure", *args]

    def perdure(self, *args: str, code: int | None = 0, env: dict[str, str] | None = None) -> Exit:
        """Run it to its end, which is exit `code`; nothing may be left of it."""
        done = run_child(self.argv(*args), {**self.env, **(env or {})}, cwd=self.path)
        assert code is None or done.code == code, (
            f"exit {done.code}, signal {done.signal}\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert not done.left
        return done

    def start(self, *args: str) -> Child:
        """Start it. To be used as a context manager."""
        return Child(self.argv(*args), self.env, cwd=self.path)

    def start_with(self, env: dict[str, str], *args: str) -> Child:
        """Start it with more in its environment."""
        return Child(self.argv(*args), {**self.env, **env}, cwd=self.path)

    def events(self, done: Exit) -> list[dict[str, Any]]:
        """The JSON lines of a process that has ended. The last one is the end, with the exit code."""
        found = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
        assert found[-1]["type"] == "end"
        assert found[-1]["exit"] == done.code
        return found

    def until(self, child: Child, kind: str, **facts: Any) -> dict[str, Any]:
        """Read its JSON lines up to the first one of that type with these facts."""
        while True:
            event: dict[str, Any] = msgspec.json.decode(child.read_line())
            if event["type"] == kind and facts.items() <= event.items():
                return event

    def paid(self) -> list[str]:
        """What `pay` did, each time that it did."""
        ledger = self.path / "ledger.txt"
        return ledger.read_text().splitlines() if ledger.exists() else []


@pytest.fixture
def shop(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path, tmp_path_factory.getbasetemp() / "compiled")


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Not to be root for a while, where the tests run as root: permissions hold again."""
    for found in pkgutil.iter_modules(perdure.commands.__path__):  # it may not read what root's Python is made of
        importlib.import_module(f"perdure.commands.{found.name}")
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)
