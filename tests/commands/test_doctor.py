"""`perdure doctor`, `perdure db` and what is kept private."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from click.testing import CliRunner, Result

import perdure
from perdure.cli import cli
from perdure.commands.private import keep_private

pytestmark = pytest.mark.slow

KEY = "sk-proj-" + "aB3" * 12


def invoke(*args: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == code, done.output
    return done


def findings(*args: str, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    told = msgspec.json.decode(invoke("doctor", "--json", *args, code=code).stdout)
    assert told["broken"] == (code == 1)
    found: dict[str, list[dict[str, Any]]] = {}
    for each in told["findings"]:
        found.setdefault(each["what"], []).append(each)
    return found


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store."""
    monkeypatch.chdir(tmp_path)

    async def work() -> None:
        async with perdure.open(".perdure/store.db", model="demo") as session:
            await (await (await session.root()).submit("Hello")).wait()

    asyncio.run(work())
    return tmp_path


def test_everything_is_found_and_why(shop: Path) -> None:
    found = findings()
    assert "Python 3" in found["platform"][0]["says"]
    assert "no key is in the environment" in found["model"][0]["says"]
    assert found["isolation"][-1]["state"] in ("ok", "note")
    assert apsw.sqlite_lib_version() in found["sqlite"][0]["says"]
    assert "its pages fit together" in found["store"][0]["says"]
    assert "'main': no live owner, 0 live tasks" in found["session"][0]["says"]
    assert found["modes"][0]["state"] == "ok"
    assert invoke("doctor").stdout.count("\n") >= 9


@pytest.mark.parametrize(
    "args, environment, what, says",
    [
        (["--model", "gpt-7"], {}, "model", "did you mean openai:gpt-7"),
        ([], {"PERDURE_MODEL": "nobody:x"}, "model", "PROVIDER:NAME"),
        ([], {"PERDURE_TIMEOUT": "soon"}, "settings", "number of seconds"),
        ([], {"PERDURE_BASH_ISOLATION": "wishes"}, "isolation", "'wishes' names no strategy; what works here is "),
    ],
)
def test_what_is_broken_is_named_and_exits_with_1(
    shop: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], environment: dict[str, str], what: str, says: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    broken = [each for each in findings(*args, code=1)[what] if each["state"] == "broken"]
    assert says in broken[0]["says"]


def test_a_key_is_named_and_never_shown(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    done = CliRunner().invoke(cli, ["doctor"])
    assert "ANTHROPIC_API_KEY is set" in done.stdout
    assert KEY not in done.output


def test_files_that_others_may_look_at_are_broken_until_work_closes_them(shop: Path) -> None:
    store = shop / ".perdure" / "store.db"
    store.chmod(0o644)
    store.parent.chmod(0o755)
    assert "chmod go= .perdure/store.db .perdure" in findings(code=1)["modes"][0]["says"]
    done = invoke("run", "Hello")
    assert re.search(r"others could look at \.perdure/store\.db, .*\.perdure: not any more", done.stderr)
    assert findings()["modes"][0]["state"] == "ok"


def test_everything_that_is_kept_is_for_its_owner_only_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old = os.umask(0)
    try:
        modes: dict[str, int] = {}

        async def work() -> None:
            async with perdure.open(".perdure/store.db", model="demo") as session:
                await (await (await session.root()).submit("Hello")).wait()
                for folder, folders, names in os.walk(tmp_path):
                    for name in (*folders, *names):
                        modes[name] = stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode)

        asyncio.run(work())
    finally:
        os.umask(old)
    assert {"store.db", "store.db-wal", "store.db-shm", "store.db.workers", ".perdure"} <= modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_what_belongs_to_somebody_else_stays_as_it_is(shop: Path, unprivileged: None) -> None:
    assert keep_private(str(shop / ".perdure" / "store.db")) is None


def test_a_healthy_store_is_said_to_be_and_a_damaged_one_exits_with_1(shop: Path) -> None:
    assert invoke("db", "check").stdout.endswith("healthy\n")
    connection = apsw.Connection(".perdure/store.db")
    connection.execute("UPDATE session SET next_id = 2")
    connection.close()
    lines = invoke("db", "check", code=1).stdout.splitlines()
    assert lines[1].startswith("damaged: session 'main': entry")
    assert lines[-1].startswith("what to do: ")
    assert msgspec.json.decode(invoke("db", "check", "--json", code=1).stdout)["damage"][0]["session"] == "main"
    refused = CliRunner().invoke(cli, ["db", "backup", "copy.db"])
    assert (refused.exit_code, "is not healthy" in refused.stderr) == (1, True)
    assert not (shop / "copy.db").exists()


def test_a_backup_is_a_store_that_commands_take(shop: Path) -> None:
    assert "checked" in invoke("db", "backup", "copy.db").stdout
    assert "Hello" in invoke("show", "--store", "copy.db").stdout
    assert stat.S_IMODE((shop / "copy.db").stat().st_mode) == 0o600
    again = CliRunner().invoke(cli, ["db", "backup", "copy.db"])
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)


@pytest.mark.parametrize("store", ["missing.db", "memory:", "."])
def test_what_is_no_store_cannot_be_checked(shop: Path, store: str) -> None:
    assert CliRunner().invoke(cli, ["db", "check", "--store", store]).exit_code == 2


def test_a_long_text_is_cut_where_it_is_shown(shop: Path) -> None:
    async def work() -> None:
        async with perdure.open(".perdure/store.db", model="demo") as session:
            await (await (await session.conversation("long")).submit("x" * 1_000_000)).wait()

    asyncio.run(work())
    assert len(invoke("show", "long").stdout) < 50_000
    assert "more characters (--full)" in invoke("show", "long").stdout
    assert len(invoke("show", "long", "--full").stdout) > 1_000_000


@pytest.mark.slow
def test_a_store_of_text_files_is_found_listed_checked_copied_and_its_damage_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def work() -> None:
        async with perdure.open("jsonl:lines", model="demo") as session:
            await (await (await session.root()).submit("Hello")).wait()

    asyncio.run(work())
    store = ("--store", "jsonl:lines")

    found = findings(*store)
    assert "its files are whole, format 1" in found["store"][0]["says"]
    assert "'main': no live owner, 0 live tasks" in found["session"][0]["says"]
    assert found["modes"][0]["state"] == "ok"
    assert "idle" in invoke("ls", *store).stdout
    assert invoke("db", "check", *store).stdout.endswith("healthy\n")
    assert "checked" in invoke("db", "backup", "copy", *store).stdout
    assert invoke("db", "check", "--store", "jsonl:copy").stdout.endswith("healthy\n")

    os.chmod("lines", 0o755)
    assert "chmod go= lines" in findings(*store, code=1)["modes"][0]["says"]
    assert keep_private("jsonl:lines") is not None
    lines = tmp_path / "lines" / "sessions" / "main" / "000001.jsonl"
    lines.write_bytes(lines.read_bytes().replace(b"Hello", b"Hallo", 1))
    assert findings(*store, code=1)["store"][0]["state"] == "broken"
    told = invoke("db", "check", *store, code=1).stdout
    assert re.search(r"damaged: session 'main': .*000001\.jsonl", told)
    assert "what to do: keep a copy of the directory" in told
