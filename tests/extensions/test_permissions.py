"""Permissions: the strictest part of a call decides, and nothing is judged by the beginning of its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import UsageError
from perdure.extensions.permissions import Permissions, permissions
from perdure.harness.decisions import Ask
from perdure.harness.hooks import Block, CallToJudge
from perdure.harness.registry import Extension, Registry
from perdure.sandboxes.local import LocalSandbox
from perdure.testing.scripted import ScriptedModel, by_prompt, call, say
from perdure.tools.builtins import BUILTINS

pytestmark = pytest.mark.anyio


async def verdict(tool: str, arguments: Any, directory: Path | str = "/work", allowed: Any = (), **rules: Any) -> str:
    found = await Permissions(**rules).judge(
        CallToJudge(
            conversation=1,
            name=tool,
            arguments=arguments,
            allowed=allowed,
            directory=str(directory),
            scratch="/scratch",
        )
    )
    return {Block: "deny", Ask: "ask"}.get(type(found), "allow")


async def bash(text: str, **rules: Any) -> str:
    return await verdict("bash", {"command": text}, **rules)


GIT = {"allow": ["bash git status", "bash git log", "bash ls"], "deny": ["bash rm", "bash git push"]}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("git status", "allow"),
        ("git status --short", "allow"),
        ("  git   status  # what is new", "allow"),
        ("git status && git log -1 | ls", "allow"),
        ("git log > notes.txt", "allow"),
        ("git log 2>&1 >/dev/null", "allow"),
        ("for x in a b; do ls $x; done", "allow"),
        ("timeout 5 git status", "allow"),
        ("bash -c 'git status'", "allow"),
        # not by the beginning of the text
        ("git status; rm -rf x", "deny"),
        ("git status && curl example.org", "ask"),
        ("git status\nrm x", "deny"),
        ("git status | sh", "ask"),
        ("git status & rm x", "deny"),
        ("git status $(rm x)", "deny"),
        ("git status `rm x`", "deny"),
        ("git status <(rm x)", "deny"),
        ("git statusx", "ask"),
        ("git stash", "ask"),
        ("git", "ask"),
        ("./git status", "ask"),
        ("gitstatus", "ask"),
        # other ways to say the same
        ("/bin/rm x", "deny"),
        ("r\\m x", "deny"),
        ("'r'm x", "deny"),
        ("env X=1 rm y", "deny"),
        ("sudo rm y", "deny"),
        ("bash -c 'rm y'", "deny"),
        ("eval rm y", "deny"),
        ("ls | xargs rm", "deny"),
        ("find . -exec rm {} +", "deny"),
        ("find . -delete", "deny"),
        ("git -C elsewhere push", "deny"),
        ("git --no-pager push", "deny"),
        ("if ls; then rm x; fi", "deny"),
        ("cat <<E\n$(rm x)\nE", "deny"),
        # nobody can tell
        ("$x", "ask"),
        ("git $x", "ask"),
        ("git st{atus,ash}", "ask"),
        ("git() { rm x; }; git status", "ask"),
        ("case x in x) rm y;; esac", "ask"),
        ("git status 'open", "ask"),
        # what is around the command
        ("git log > /etc/passwd", "ask"),
        ("git log > $x", "ask"),
        ("cd / && git log > etc/passwd", "ask"),
        ("git log < ../secret", "ask"),
        ("PATH=. git status", "ask"),
        ("PATH=.; git status", "ask"),
        ("GIT_PAGER=x git log", "ask"),
        ("env LD_PRELOAD=x git status", "ask"),
        ("for PATH in /evil; do git status; done", "ask"),
        ("x=5; ls $x", "allow"),
    ],
)  # fmt: skip
async def test_every_command_of_a_text_is_judged(text: str, expected: str):
    assert await bash(text, **GIT) == expected


async def test_without_rules_commands_are_asked_about():
    assert [await bash(text) for text in ("ls", "true", "x=5")] == ["ask", "ask", "allow"]


async def test_a_tool_that_is_allowed_as_a_whole_is_asked_about_only_where_another_rule_says_so():
    everything: dict[str, Any] = {"allow": ["bash"]}
    for text in ("rm -rf /", "$x", "a() { b; }", "ls > /etc/x", "PATH=. ls"):
        assert await bash(text, **everything) == "allow"
    some: dict[str, Any] = {**everything, "deny": ["bash rm", "write /etc/**"], "ask": ["bash curl"]}
    expected = {
        "ls": "allow",
        "rm x": "deny",
        "curl x": "ask",
        "$x": "ask",
        "ls > /etc/x": "deny",
        "ls > /tmp/x": "allow",
    }
    assert {text: await bash(text, **some) for text in expected} == expected
    assert await bash("ls", allow=["bash"], deny=["*"]) == "deny"


async def test_files_are_judged_by_where_they_are(tmp_path: Path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)

    async def judged(tool: str, path: str, **rules: Any) -> str:
        return await verdict(tool, {"path": path}, inside, **rules)

    assert [await judged("read", path) for path in ("a", ".", str(inside / "b"), "/scratch/out")] == ["allow"] * 4
    for path in ("../outside/a", str(outside / "a"), "link/a", "/etc/passwd", "a/../../outside/b", f"{inside}x/a"):
        assert [await judged(tool, path) for tool in ("read", "write", "edit")] == ["ask"] * 3, path
    assert [await judged(tool, "src/a") for tool in ("write", "edit")] == ["allow", "allow"]
    assert [await judged(tool, "src/a", inside="ask") for tool in ("read", "write")] == ["allow", "ask"]
    assert await judged("write", "/scratch/out") == "ask"


async def test_rules_name_files_by_patterns_and_links_do_not_lead_around_them(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "harmless").symlink_to(tmp_path / ".git")
    rules: dict[str, Any] = {
        "deny": ["write .git/**", "read **/.env"], "ask": ["edit *.lock"], "allow": ["edit docs/**", "read /usr/**"]
    }  # fmt: skip

    async def judged(tool: str, path: str, **more: Any) -> str:
        return await verdict(tool, {"path": path}, tmp_path, **rules, **more)

    assert [await judged("write", path) for path in (".git", ".git/a", "x/../.git/a/b", "harmless/config")] == [
        "deny"
    ] * 4
    assert [await judged("read", path) for path in (".env", "a/b/.env", "a.env", "/usr/lib/x")] == [
        "deny", "deny", "allow", "allow"
    ]  # fmt: skip
    assert [await judged("edit", path, inside="ask") for path in ("uv.lock", "a/uv.lock", "docs/a/b", "src/a")] == [
        "ask", "ask", "allow", "ask"
    ]  # fmt: skip
    assert await verdict("bash", {"command": "ls > harmless/config"}, tmp_path, allow=["bash"], deny=rules["deny"]) == (
        "deny"
    )


async def asked(text: str, **rules: Any) -> Ask:
    found = await Permissions(**rules).judge(
        CallToJudge(conversation=1, name="bash", arguments={"command": text}, directory="/work")
    )
    assert isinstance(found, Ask)
    return found


@pytest.mark.parametrize(
    "text, shown, others",
    [
        ("git push origin", ["bash: git push with any arguments"], {"git push": "allow", "git pull": "ask"}),
        ("pytest -q tests", ["bash: pytest with any arguments"], {"pytest -x": "allow", "pytest; rm x": "ask"}),
        ("rm a.txt", ["bash: rm a.txt"], {"rm a.txt": "allow", "rm a.txt b": "ask", "rm b": "ask"}),
        ("git push && rm a", ["bash: git push with any arguments", "bash: rm a"], {"rm a": "allow", "rm b": "ask"}),
        ("rm $x", ["bash: exactly 'rm $x'"], {"rm $x": "allow", "rm $x $y": "ask", "rm  $x": "ask"}),
        ("a() { b; }", ["bash: exactly 'a() { b; }'"], {"a() { b; }": "allow", "a() { b; }; c": "ask"}),
        ("X=1 make", ["bash: exactly 'X=1 make'"], {"X=1 make": "allow", "make": "ask"}),
    ],
)
async def test_what_is_allowed_for_good_is_shown_and_is_no_more_than_that(text: str, shown: Any, others: Any):
    found = await asked(text)
    assert found.payload["always"] == shown
    allowed: Any = found.remember
    assert await bash(text, allowed=allowed) == "allow"
    assert {each: await bash(each, allowed=allowed) for each in others} == others
    assert await bash(text, allowed=allowed, deny=["bash"]) == "deny"


async def test_files_that_are_allowed_for_good_are_the_directory_or_one_file():
    for path, other in (
        ("src/a", {"src/b": "allow", "/etc/x": "ask"}),
        ("/etc/a", {"/etc/a": "allow", "/etc/b": "ask"}),
    ):
        found = await Permissions(inside="ask").judge(
            CallToJudge(conversation=1, name="edit", arguments={"path": path}, directory="/work")
        )
        assert isinstance(found, Ask)
        for each, expected in other.items():
            assert await verdict("edit", {"path": each}, allowed=found.remember, inside="ask") == expected
            assert await verdict("write", {"path": each}, allowed=found.remember, inside="ask") == "ask"


async def test_other_tools_are_judged_by_their_names():
    rules: dict[str, Any] = {"ask": ["pay"], "deny": ["launch"]}
    assert [await verdict(name, {}, **rules) for name in ("pay", "launch", "look", "jobs")] == [
        "ask", "deny", "allow", "allow"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "rule", ["", "bash git status; rm", "bash $x", "bash 'open", "bash ls > x", "bash X=1 ls", "pay 5", "a/b c"]
)
def test_a_rule_that_says_nothing_clear_is_refused(rule: str):
    with pytest.raises(UsageError, match="permission rule"):
        permissions(allow=[rule])


async def test_a_conversation_asks_remembers_and_goes_on(tmp_path: Path):
    registry = Registry([Extension(name="files", tools=BUILTINS), permissions(deny=["write secret/**"])])
    script = by_prompt(
        {
            "outside": [call("write", {"path": "../outside", "content": "x"}), say("ok")],
            "inside": [call("write", {"path": "inside", "content": "x"}), say("ok")],
            "secret": [call("write", {"path": "secret/x", "content": "x"}), say("ok")],
        }
    )
    (tmp_path / "here").mkdir()
    sandbox = LocalSandbox(tmp_path / "here", confined=False)
    async with perdure.open("memory:", model=ScriptedModel(script), registry=registry, sandbox=sandbox) as session:
        chat = await session.conversation("a")
        for prompt, file in (("inside", "here/inside"), ("secret", "here/secret/x")):
            await (await chat.submit(prompt)).wait()
            assert (tmp_path / file).exists() is (prompt == "inside")
        sent = await chat.submit("outside")
        await session.until(lambda: bool(session.inspect().questions))
        (question,) = await chat.questions()
        assert question.payload["always"] == [f"write: {tmp_path / 'outside'}"]
        await question.answer("always")
        await sent.wait()
        assert (tmp_path / "outside").exists()
        await (await chat.submit("outside")).wait()
        assert session.inspect().questions == []
    await sandbox.close()
