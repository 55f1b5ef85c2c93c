"""Bad input: exit 2 and one line on standard error that names the value and the remedy, before anything was made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perdure.cli import COMMANDS, cli

Invoke = Callable[..., Result]

SHOP = '''
import functools
from perdure import Extension, Registry, tool

def pay(amount: int, to: str) -> str:
    """Pay someone."""
    return f"paid {amount} to {to}"

def strange(thing: Exception) -> str:
    """Nothing that JSON can call."""
    return ""

NUMBER = 5
TWICE = [pay, tool(pay)]
'''


@pytest.fixture(autouse=True)
def unawaited() -> None:
    """A coroutine that a module made and could not run is dropped."""
    warnings.simplefilter("ignore", RuntimeWarning)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory but for the module of a user."""
    (tmp_path / "usage_shop.py").write_text(SHOP)
    (tmp_path / "usage_broken.py").write_text("raise RuntimeError('no bank today')")
    (tmp_path / "usage_leaving.py").write_text("raise SystemExit(0)")
    (tmp_path / "usage_running.py").write_text("import perdure\nasync def main(): pass\nperdure.run(main)")
    (tmp_path / "usage_looping.py").write_text("import asyncio\nasync def main(): pass\nasyncio.run(main())")
    (tmp_path / "usage_needy.py").write_text("import a_module_that_nobody_has")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*args: str, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, args, input=input)


def complaint(result: Result) -> str:
    """The one line of a usage error."""
    assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("perdure: ")
    return line


@pytest.mark.parametrize(
    "args, says",
    [
        (["rnu"], "'rnu'; did you mean run"),
        (["runn", "x"], "'runn'; did you mean run"),
        (["run"], "PROMPT"),
        (["run", ""], "PROMPT is empty"),
        (["run", " \n "], "PROMPT is empty"),
        (["run", "x", "--jsno"], "--jsno"),
        (["run", "x", "--allow", "rm"], "'rm'.*bash, write, edit"),
        (["run", "x", "--timeout", "soon"], "'soon'"),
        (["run", "x", "--timeout", "-1"], "-1"),
        (["run", "x", "--timeout", "nan"], "nan"),
        (["run", "x", "--session", ""], "--session.*empty"),
        (["run", "x", "--conversation", ""], "--conversation.*empty"),
        (["run", "x", "--request-id", ""], "--request-id.*empty"),
        (["run", "x", "--directory", "nowhere"], "'nowhere'"),
        (["run", "x", "--kill"], "--take-over"),
        (["run", "x", "--model", "gpt-7"], "'gpt-7'.*did you mean openai:gpt-7"),
        (["run", "x", "--model", "demo:speed=9"], "'speed'.*slow"),
        (["run", "x", "--model", "demo:slow=fast"], "slow=fast"),
        (["run", "x", "--store", ""], "names no file"),
        (["run", "x", "--store", "postgresql://db"], "'postgresql://db'.*file path"),
        (["run", "x", "--tools", "shop"], "'shop'.*MODULE:NAME"),
        (["run", "x", "--tools", ":pay"], "':pay'.*MODULE:NAME"),
        (["run", "x", "--tools", "usage_nothing:pay"], "'usage_nothing' in"),
        (["run", "x", "--tools", "usage_shop.py:pay"], "not a file"),
        (["run", "x", "--tools", "./usage_shop:pay"], "'./usage_shop:pay'"),
        (["run", "x", "--tools", "usage_shop:lookup"], "'lookup' in usage_shop; it has pay, strange"),
        (["run", "x", "--tools", "usage_shop:NUMBER"], "is a int.*a function"),
        (["run", "x", "--tools", "usage_shop:Registry"], "usage_shop:Registry"),
        (["run", "x", "--tools", "usage_shop:strange"], "strange.*thing"),
        (["run", "x", "--tools", "usage_shop:TWICE"], "'pay'.*rename"),
        (["run", "x", "--tools", "usage_broken:pay"], "RuntimeError: no bank today"),
        (["run", "x", "--tools", "usage_leaving:pay"], "SystemExit"),
        (["run", "x", "--tools", "usage_running:pay"], "usage_running starts work of its own.*__main__"),
        (["run", "x", "--tools", "usage_looping:pay"], "usage_looping starts work of its own.*__main__"),
        (["run", "x", "--tools", "usage_needy:pay"], "usage_needy needs the module 'a_module_that_nobody_has'"),
        (["show"], ".perdure/store.db"),
        (["show", "till", "--store", "missing.db"], "missing.db"),
        (["ls"], ".perdure/store.db"),
        (["ls", "--limit", "0"], "--limit"),
        (["ls", "--store", "memory:"], "'memory:'"),
        (["inspect", "--store", "missing.db"], "missing.db"),
        (["resume", "--store", "missing.db"], "missing.db"),
        (["abort"], "CONVERSATION, --task ID and --submission ID"),
        (["abort", "till", "--task", "5"], "CONVERSATION, --task ID and --submission ID"),
        (["abort", "till"], ".perdure/store.db"),
        (["abort", "--task", "five"], "'five'"),
        (["abort", "--submission", "five"], "'five' is no submission id: a number, see perdure inspect"),
        (["retry", "five"], "'five' is no task id: a number, see perdure inspect"),
        (["retry", "0"], "'0' is no task id"),
        (["retry", "9" * 5000], "999' is no task id"),
        (["answer", "five", "yes"], "'five' is no question id"),
        (["answer", "5"], "VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_that_names_the_value_and_the_remedy(shop: Path, args: list[str], says: str) -> None:
    before = sorted(path.name for path in shop.iterdir() if path.name != "__pycache__")
    line = complaint(invoke(*args))
    assert re.search(says, line), line
    assert sorted(path.name for path in shop.iterdir() if path.name != "__pycache__") == before


def test_an_empty_standard_input_is_no_prompt(shop: Path) -> None:
    assert "standard input is empty" in complaint(invoke("run", "-", input=""))


def test_control_characters_of_the_value_do_not_reach_the_terminal(shop: Path) -> None:
    line = complaint(invoke("run", "x", "--model", "\x1b[31mred"))
    assert "\x1b" not in line


def test_a_traceback_is_shown_where_it_is_asked_for(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DEBUG", "1")
    result = invoke("run", "x", "--model", "gpt-7")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "demo"])
def test_every_command_explains_itself(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert COMMANDS[command][2].rstrip(".").split()[0] in result.stdout


def test_without_a_command_the_help_is_shown_and_it_is_a_usage_error() -> None:
    result = invoke()
    assert result.exit_code == 2
    assert all(name in result.stderr for name in COMMANDS)
