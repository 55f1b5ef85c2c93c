"""What a run that failed leaves to be seen: which input was not answered, and why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import perdure
from perdure.cli import cli
from perdure.testing.scripted import ScriptedModel, fail, say

pytestmark = pytest.mark.slow


def invoke(*args: str) -> str:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a conversation whose last input failed, and one whose last input was answered after that."""
    monkeypatch.chdir(tmp_path)

    async def work() -> None:
        bad = fail("auth", message="the key was refused")
        model = ScriptedModel([say("Hi"), bad, say("Hi"), bad, say("Hi again")])
        async with perdure.open(".perdure/store.db", model=model) as session:
            for key in ("failed", "mended"):
                chat = await session.conversation(key)
                await (await chat.submit("Hello")).wait()
                await (await chat.submit("Pay")).wait()
            await (await chat.submit("Hello again")).wait()

    asyncio.run(work())
    return tmp_path


def test_show_says_at_the_input_why_it_was_not_answered(shop: Path) -> None:
    assert invoke("show", "failed").rstrip().splitlines()[-1].startswith("    (not answered (model_error): auth")
    assert invoke("show", "mended").count("not answered (model_error)") == 1
    last = msgspec.json.decode(invoke("show", "failed", "--json", "--limit", "1"))
    assert last["unanswered"]["reason"] == "model_error"
    assert "auth" in last["unanswered"]["detail"]


@pytest.mark.parametrize("form", ["md", "jsonl", "html"])
def test_an_export_says_why_an_input_was_not_answered(shop: Path, form: str) -> None:
    assert invoke("export", "failed", "--format", form).replace("\\_", "_").count("model_error") == 1


def test_ls_and_inspect_show_a_last_input_that_was_not_answered(shop: Path) -> None:
    rows = [msgspec.json.decode(line) for line in invoke("ls", "--json").splitlines()]
    assert {row["key"]: row["state"] for row in rows} == {"failed": "unanswered", "mended": "idle"}
    id = next(row["id"] for row in rows if row["key"] == "failed")
    assert f"the last input of conversation {id} was not answered (model_error): auth" in invoke("inspect")
    (only,) = msgspec.json.decode(invoke("inspect", "--json"))["unanswered"]
    assert (only["conversation"], only["reason"]) == (id, "model_error")
