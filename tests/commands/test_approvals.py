"""Approvals on the command line: asked in a chat or by a run, answered there, by another shell, or later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.commands.test_chat import talk

from perdure.commands.asking import is_answer, question_event, told
from perdure.commands.configuration import load
from perdure.commands.installed import install
from perdure.errors import UsageError
from perdure.tasks.inspection import QuestionInfo

PAY = ("--tools", "shop:pay", "--ask", "pay")

#: A tool that starts work in the background, which asks.
BACKGROUND = '''
import perdure

class Wondering(perdure.Task):
    kind = "test.wondering"

    @perdure.phase(first=True)
    async def ask(self, invocation):
        async with invocation.commit() as tx:
            question = tx.ask("now?", owner=invocation)
            await tx.wait([question], then=self.done, question=question.id)

    @perdure.phase
    async def done(self, invocation, question):
        async with invocation.commit() as tx:
            tx.complete()

@perdure.tool
async def wonder(call: perdure.ToolCall) -> str:
    """Wonder about it."""
    async with call.commit() as tx:
        home = await tx.use(call.conversation)
        tx.create_task(Wondering, owner=home, background=True)
    return "wondering"

ALL = perdure.Extension(name="wonder", tools=[wonder], tasks=[Wondering])
'''


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer, paid, told",
    [
        ("y", ["5 to Ann"], "<- pay: paid 5"),
        ("n too much", [], "<- pay failed (blocked): denied by"),
        ('edit {"amount": 1, "to": "Bob"}', ["1 to Bob"], "<- pay: paid 1"),
        ("Use the other till", [], "pay is denied"),
    ],
)
def test_the_next_line_of_a_chat_answers(shop, answer: str, paid: list[str], told: str) -> None:
    done = talk(shop, f"Pay 5 to Ann\n{answer}\n", *PAY)
    assert shop.paid() == paid
    assert told in done.stderr
    assert re.search(r'question \d+ waits for an answer: pay {"amount":5,"to":"Ann"}', done.stderr)
    assert "y allows it, always does so from now on (pay: every call)" in done.stderr


@pytest.mark.slow
def test_what_is_allowed_for_good_is_asked_about_once_in_a_chat(shop) -> None:
    done = talk(shop, "Pay 5 to Ann\nalways\nPay 6 to Bob\n", *PAY)
    assert (shop.paid(), done.stderr.count("waits for an answer")) == (["5 to Ann", "6 to Bob"], 1)


@pytest.mark.slow
def test_arguments_that_do_not_fit_are_refused_and_the_question_stays(shop) -> None:
    done = talk(shop, 'Pay 5 to Ann\nedit {"amount": "much"}\ny\n', *PAY, code=2)
    assert "the new arguments do not fit pay" in done.stderr
    assert shop.paid() == ["5 to Ann"]


@pytest.mark.slow
def test_a_run_that_asks_exits_3_and_is_answered_and_gone_on_with_later(shop) -> None:
    waits = shop.perdure("run", "Pay 5 to Ann", *PAY, code=3)
    [number] = re.findall(r"question (\d+) waits", waits.stderr)
    call = 'pay {"amount":5,"to":"Ann"}'
    assert call in waits.stderr
    assert call in shop.perdure("inspect").stdout
    listed = shop.perdure("ls").stdout
    assert f"{number}: {call}" in listed
    assert "asks" in listed

    refused = shop.perdure("answer", number, "perhaps", code=2)
    assert "decides no call" in refused.stderr
    assert "cannot be checked" in shop.perdure("answer", number, "edit", '{"amount": 1}', code=2).stderr
    shop.perdure("answer", number, "edit", '{"amount": 1, "to": "Bob"}', "--tools", "shop:pay")
    assert "was answered by" in shop.perdure("answer", number, "deny", code=1).stderr
    shop.perdure("resume", "--tools", "shop:pay")
    assert shop.paid() == ["1 to Bob"]


@pytest.mark.slow
def test_work_that_is_resumed_goes_on_to_be_asked_about(shop) -> None:
    """Nobody has to repeat that, and nothing runs unasked because somebody did not."""
    shop.perdure("run", "Pay 5 to Ann. Pay 6 to Bob.", *PAY, code=3)
    [number] = re.findall(r"question (\d+)", shop.perdure("inspect").stdout)
    shop.perdure("answer", number, "allow")
    again = shop.perdure("resume", "--tools", "shop:pay", code=3)
    assert shop.paid() == ["5 to Ann"]
    assert '"to":"Bob"' in again.stderr


@pytest.mark.slow
def test_a_question_of_background_work_is_shown_and_answered(shop) -> None:
    (shop.path / "wondering.py").write_text(BACKGROUND)
    done = talk(shop, "Wonder about it\n", "--tools", "wondering:ALL", code=3)
    assert 'waits for an answer: "now?"; the next line answers it' in done.stderr
    resumed = shop.perdure("resume", "--tools", "wondering:ALL", code=3)
    [number] = re.findall(r"question (\d+) waits", resumed.stderr)
    shop.perdure("answer", number, "yes")
    shop.perdure("resume", "--tools", "wondering:ALL")


@pytest.mark.slow
def test_configured_permissions_hold_for_a_run_too(shop, of_nobody: Path) -> None:
    (shop.path / "perdure.toml").write_text('[permissions]\ndeny = ["pay"]\n')
    assert "permissions, which counts only in a directory that you trust" in shop.perdure("run", "x", code=2).stderr
    of_nobody.mkdir(parents=True, exist_ok=True)
    (of_nobody / "config.toml").write_text(f'trust = ["{shop.path}"]\n')
    done = shop.perdure("run", "Pay 5 to Ann", "--tools", "shop:pay")
    assert "not permitted: pay" in done.stderr
    assert shop.paid() == []


# -- without processes --------------------------------------------------------------------------


def test_chat_offers_what_it_asks_about_and_a_run_only_what_is_allowed():
    def names(*args: Any, **more: Any) -> set[str]:
        return set(install((), *args, **more).registry.tools)

    everything = {"read", "write", "edit", "bash", "jobs", "job_kill"}
    assert names(()) == {"read"}
    assert names(("bash",)) == {"read", "bash", "jobs", "job_kill"}
    assert names(("write",), ("bash", "edit"), guarded=True) == everything
    assert install((), ("write",), ("bash",)).needs == {"write": "--allow write", "bash": "--ask bash"}
    assert install((), ("write",)).registry.extensions[-1].name == "perdure"
    with pytest.raises(UsageError, match="--ask pay: there is no tool"):
        install((), (), ("pay",))


@pytest.mark.parametrize(
    "table, says",
    [
        ('permissions = "all"', "table of rules"),
        ('[permissions]\nallow = "bash"', "lists of texts"),
        ('[permissions]\nalow = ["bash"]', "alow"),
    ],
)
def test_permissions_that_are_none_are_named_with_their_line(tmp_path: Path, table: str, says: str):
    (tmp_path / "perdure.toml").write_text(table)
    with pytest.raises(UsageError, match=f"(?s)perdure.toml:1.*{says}"):
        load({"HOME": str(tmp_path)}, str(tmp_path))


def test_a_rule_that_is_none_is_named_before_anything_starts(tmp_path: Path):
    (tmp_path / "config" / "perdure").mkdir(parents=True)
    (tmp_path / "config" / "perdure" / "config.toml").write_text('[permissions]\ndeny = ["bash rm; ls"]')
    rules = load({"HOME": "/", "XDG_CONFIG_HOME": str(tmp_path / "config")}, str(tmp_path))["permissions"]
    assert str(rules) == "deny: bash rm; ls"
    with pytest.raises(UsageError, match="permission rule 'bash rm; ls'"):
        install((), (), (), rules)


def test_a_person_is_shown_the_call_why_it_is_asked_about_and_what_always_means():
    payload = {"why": ["git push"], "always": ["bash: git push with any arguments"]}
    call = {"name": "bash", "arguments": {"command": "git push"}, "hook": "h", "remember": [{}]}
    event = question_event(QuestionInfo(id=7, conversation=1, payload=payload, call=call))
    assert event["call"] == {"name": "bash", "arguments": {"command": "git push"}}
    assert 'bash {"command":"git push"} (git push)' in told(event)
    assert "always does so from now on (bash: git push with any arguments)" in told(event)
    assert [is_answer(event, text) for text in ("y", "no, never", "edit [", "{", "always", "yse", "go on")] == [
        True, True, True, True, True, False, False
    ]  # fmt: skip
