"""Several processes on one session, and processes that die: nothing is lost or done twice, and everyone is told."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal

import pytest

from perdure.testing.processes import Child, run_child

pytestmark = pytest.mark.slow

NOBODY = 65534
SETPRIV = shutil.which("setpriv")

TASK = "Tell the population of Bern, then pay 5 to Ann"
TOOLS = ("--tools", "shop:BOTH")


def test_a_run_that_is_killed_goes_on_with_resume(shop) -> None:
    with shop.start("run", TASK + " demo:slow=0.3", *TOOLS, "--json") as child:
        shop.until(child, "accepted")
        child.kill()
        child.wait()
    assert "perdure.generation" in shop.perdure("inspect").stdout
    assert "unfinished" in shop.perdure("ls").stdout
    done = shop.perdure("resume", *TOOLS, "--json")
    found = shop.events(done)
    assert [event["status"] for event in found if event["type"] == "settled"] == ["done"]
    assert found[-1]["answered"] == 1
    assert shop.paid() == ["5 to Ann"]
    assert "nothing to resume" in shop.perdure("resume").stderr


def test_a_run_that_is_killed_inside_an_effect_never_repeats_it(shop) -> None:
    slow = (
        "import os, signal\n"
        "def pay_slowly(amount: int) -> str:\n"
        "    'Pay slowly.'\n"
        "    open('ledger.txt', 'a').write(f'{amount}\\n')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 'paid'\n"
    )
    (shop.path / "slow.py").write_text(slow)
    done = shop.perdure("run", "Pay slowly 5", "--tools", "slow:pay_slowly", code=None)
    assert done.killed
    shop.perdure("resume", "--tools", "slow:pay_slowly")
    assert shop.paid() == ["5"]
    assert "pay_slowly (interrupted)" in shop.perdure("show", "1").stdout


def test_resuming_without_the_tools_is_refused_with_the_option_that_brings_them(shop) -> None:
    with shop.start("run", TASK + " demo:slow=0.3", *TOOLS, "--allow", "write", "--json") as child:
        shop.until(child, "accepted")
        child.kill()
        child.wait()
    for command in (("resume",), ("run", "Hello")):
        done = shop.perdure(*command, code=2)
        assert "started with --allow write --tools shop:BOTH" in done.stderr
        assert "perdure abort 1" in done.stderr
    assert shop.perdure("resume", *TOOLS, "--allow", "write").code == 0


def test_the_model_of_a_run_is_its_model_after_a_restart(shop) -> None:
    with shop.start("run", TASK, *TOOLS, "--model", "demo:slow=0.2", "--json") as child:
        shop.until(child, "accepted")
        child.kill()
        child.wait()
    shop.perdure("resume", *TOOLS)
    found = shop.perdure("show", "1", "--json").stdout
    assert '"model":"demo"' not in found


def test_a_second_run_of_a_session_is_handed_in_to_its_owner(shop) -> None:
    """I55."""
    with shop.start("run", "Hello demo:hang", "--json") as first:
        shop.until(first, "text")
        second = shop.perdure("run", "And goodbye", "--conversation", "other", "--json")
        assert first.running
        found = shop.events(second)
        assert [event["type"] for event in found[:2]] == ["note", "handed_in"]
        assert str(first.pid) in found[0]["text"]
        assert found[1]["owner"]["pid"] == first.pid
        assert "goodbye" in found[-1]["answer"]["text"]
        os.kill(first.pid, signal.SIGTERM)
        assert first.wait().code == 143
    assert len(shop.perdure("ls").stdout.splitlines()) == 3


#: A tool that is done when the test says so.
BELL = """
import asyncio
from pathlib import Path

async def wait_for_bell() -> str:
    'Wait for the bell.'
    while not Path("bell").exists():
        await asyncio.sleep(0.02)
    return "it rang"
"""


def test_a_run_goes_on_until_what_was_handed_in_to_it_is_settled(shop) -> None:
    (shop.path / "bell.py").write_text(BELL)
    with shop.start("run", "Wait for the bell", "--tools", "bell:wait_for_bell", "--json") as first:
        shop.until(first, "accepted")
        with shop.start("run", "Hello demo:sleep=4", "--conversation", "other", "--json") as second:
            shop.until(second, "accepted")
            (shop.path / "bell").touch()
            owner, follower = first.wait(), second.wait()
    assert owner.code == follower.code == 0
    assert "going on with what other shells handed in" in owner.stdout
    assert shop.events(owner)[-1]["status"] == "done"
    assert "owner of the session is gone" not in follower.stdout
    assert shop.events(follower)[-1]["status"] == "done"


def test_a_run_that_stays_for_others_leaves_when_it_is_interrupted(shop) -> None:
    with shop.start("run", "Hello demo:sleep=1", "--json") as first:
        shop.until(first, "accepted")
        with shop.start("run", "demo:hang", "--conversation", "other", "--json") as second:
            shop.until(second, "accepted")
            shop.until(first, "note")
            os.kill(first.pid, signal.SIGINT)
            assert first.wait().code == 0
            assert second.running


def test_who_lacks_the_tools_of_a_dead_owner_is_told_that_the_prompt_is_kept(shop) -> None:
    with shop.start("run", TASK + " demo:slow=0.5", *TOOLS, "--json") as owner:
        shop.until(owner, "accepted")
        with shop.start("run", "demo:hang", "--conversation", "other", "--json") as second:
            number = shop.until(second, "accepted")["submission"]
            owner.kill()
            owner.wait()
            done = second.wait(timeout=20)
    assert done.code == 3
    (wait,) = shop.events(done)[-1]["waits"]
    assert f"kept as submission {number}" in wait["what"]
    assert "--tools shop:BOTH" in wait["what"]


def test_many_shells_that_start_one_request_at_once_do_it_once(shop) -> None:
    """I31, I49: also where the store is made at that moment."""
    args = ("run", "Pay 5 to Ann", *TOOLS, "--request-id", "order-17")
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(shop.start(*args)) for _ in range(4)]
        ends = [child.wait() for child in children]
    assert [end.code for end in ends] == [0] * 4, [end.stderr for end in ends]
    assert len({end.stdout for end in ends}) == 1
    assert shop.paid() == ["5 to Ann"]
    assert shop.perdure("show", "1").stdout.count("] user ") == 1


def test_looking_beside_the_owner_shows_its_work(shop) -> None:
    with shop.start("run", "Hello demo:hang", "--json") as child:
        shop.until(child, "text")
        assert "busy" in shop.perdure("ls").stdout
        assert f"process {child.pid}" in shop.perdure("ls", "--sessions").stdout
        assert "Hello" in shop.perdure("show", "1").stdout
        assert f"process {child.pid}" in shop.perdure("inspect").stdout
        assert child.running


def test_resume_beside_an_owner_watches_until_it_is_done(shop) -> None:
    with shop.start("run", "Hello demo:sleep=5", "--json") as child:
        shop.until(child, "accepted")
        done = shop.perdure("resume")
        assert "is answered" in done.stdout
        assert str(child.pid) in done.stderr
        assert child.wait().code == 0


def test_who_follows_a_dying_owner_goes_on_in_its_place(shop) -> None:
    with shop.start("run", "demo:hang=1 Hello", "--json") as owner:
        shop.until(owner, "accepted")
        with shop.start("run", "And goodbye", "--conversation", "other", "--json") as second:
            shop.until(second, "handed_in")
            shop.until(second, "accepted")
            owner.kill()
            owner.wait()
            assert shop.events(second.wait(timeout=20))[-1]["status"] == "done"


def test_abort_beside_the_owner_stops_its_work(shop) -> None:
    with shop.start("run", "demo:hang", "--json") as child:
        shop.until(child, "accepted")
        assert "aborted" in shop.perdure("abort", "1").stdout
        done = child.wait()
    assert done.code == 130
    assert "from the command line" in shop.events(done)[-1]["detail"]


def test_abort_without_an_owner_stops_what_was_left(shop) -> None:
    with shop.start("run", "demo:hang", "--json") as child:
        shop.until(child, "accepted")
        child.kill()
        child.wait()
    assert "aborted" in shop.perdure("abort", "1").stdout
    assert "nothing is going on" in shop.perdure("inspect").stdout
    assert "nothing was running" in shop.perdure("abort", "1").stdout


def test_abort_without_an_owner_starts_no_other_work(shop) -> None:
    for key, prompt in (("a", "demo:hang"), ("b", TASK + " demo:slow=0.3")):
        tools = TOOLS if key == "b" else ()
        with shop.start("run", prompt, "--conversation", key, *tools, "--json") as child:
            shop.until(child, "accepted")
            child.kill()
            child.wait()
    assert "marked to stop" in shop.perdure("abort", "a").stdout
    assert shop.paid() == []
    assert "was not answered (aborted)" in shop.perdure("resume", *TOOLS).stdout
    assert shop.paid() == ["5 to Ann"]


def test_an_interrupt_of_a_follower_aborts_its_own_run_only(shop) -> None:
    with shop.start("run", "Hello demo:hang", "--json") as owner:
        shop.until(owner, "text")
        with shop.start("run", "demo:hang", "--conversation", "other", "--json") as second:
            shop.until(second, "accepted")
            os.kill(second.pid, signal.SIGINT)
            assert second.wait().code == 130
        assert owner.running


def test_a_session_is_taken_over_from_a_frozen_owner(shop) -> None:
    """I54: what the frozen owner would still write is refused."""
    with shop.start("run", "Hello demo:sleep=3", "--json") as frozen:
        shop.until(frozen, "accepted")
        assert "at request" in shop.perdure("inspect").stdout  # from here on it commits nothing for a while
        frozen.stop()
        taken = shop.perdure("run", "And goodbye", "--conversation", "other", "--take-over")
        assert "goodbye" in taken.stdout
        frozen.proceed()
        done = frozen.wait()
    assert shop.events(done)[-1]["error"] == "Fenced"
    assert "was taken over by" in done.stderr
    assert "this prompt (input" in done.stderr
    assert "epoch" not in done.stderr
    assert done.code == 1
    assert "Traceback" not in done.stderr
    assert "is answered" in shop.perdure("resume").stdout
    assert shop.perdure("show", "1").stdout.count("(demo model)") == 1


@pytest.mark.parametrize("command", [["run", "And goodbye", "--conversation", "other"], ["resume"]], ids=" ".join)
def test_an_owner_is_not_taken_over_by_who_lacks_the_tools_of_its_work(shop, command: list[str]) -> None:
    with shop.start("run", "Hello demo:hang", *TOOLS, "--json") as owner:
        shop.until(owner, "text")
        done = shop.perdure(*command, "--take-over", code=2)
        assert "started with --tools shop:BOTH" in done.stderr
        assert owner.running
        assert f"process {owner.pid}" in shop.perdure("inspect").stdout


def test_an_owner_that_takes_nothing_is_reported_with_the_way_out(shop) -> None:
    """I30: what was handed in is not lost either."""
    with shop.start("run", "demo:sleep=60", "--json") as frozen:
        shop.until(frozen, "accepted")
        assert "at request" in shop.perdure("inspect").stdout
        frozen.stop()
        done = shop.perdure("run", "Hello", "--conversation", "other", code=1)
        assert all(words in done.stderr for words in (f"process {frozen.pid}", "stopped (T)", "--take-over"))
        assert "handed in" in shop.perdure("inspect").stdout
        frozen.kill()
    assert "marked to stop" in shop.perdure("abort", "1").stdout  # what was handed in is taken, and is work too
    assert "is answered" in shop.perdure("resume").stdout
    assert "Hello" in shop.perdure("show", "other").stdout


def test_a_question_stops_the_run_with_3_until_it_is_answered(shop) -> None:
    tools = ("--tools", "shop:ask_boss")
    done = shop.perdure("run", "Ask the boss about a holiday", *tools, "--json", code=3)
    (wait,) = shop.events(done)[-1]["waits"]
    question = str(wait["question"])
    assert "asks" in shop.perdure("ls").stdout
    assert question in shop.perdure("inspect").stdout
    assert f"perdure answer {question}" in shop.perdure("resume", *tools, code=3).stderr
    shop.perdure("answer", question, "true", "--by", "ann")
    assert "answered by ann" in shop.perdure("answer", question, "false", code=1).stderr
    shop.perdure("resume", *tools)
    assert "asked" in shop.perdure("show", "1").stdout


@pytest.mark.skipif(SETPRIV is None, reason="needs setpriv, to become another user who can still reach this Python")
def test_anybody_may_run_and_resume(shop) -> None:
    os.chown(shop.path, NOBODY, NOBODY)
    nobody = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    may_read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    as_nobody = [str(SETPRIV), *nobody, *may_read] if os.getuid() == 0 else []
    task = ("run", 'Write "hello" to note.txt demo:slow=0.3', "--allow", "write,bash", "--json")
    with Child([*as_nobody, *shop.argv(*task)], cwd=shop.path) as child:
        shop.until(child, "accepted")
        child.kill()
        child.wait()
    done = run_child([*as_nobody, *shop.argv("resume", "--allow", "write,bash")], cwd=shop.path)
    assert done.code == 0, done.stderr
    assert (shop.path / "note.txt").read_text() == "hello"
    assert (shop.path / "note.txt").stat().st_uid == shop.path.stat().st_uid


def test_a_task_that_kills_its_process_again_and_again_is_held_until_it_is_retried(shop) -> None:
    deadly = (
        "import os, signal, pathlib\n"
        "from perdure import tool\n"
        "@tool(replay='safe')\n"
        "def explode(now: bool = True) -> str:\n"
        "    'Explode.'\n"
        "    if not pathlib.Path('defused').exists():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 'quiet'\n"
    )
    (shop.path / "deadly.py").write_text(deadly)
    tools = ("--tools", "deadly:explode")
    assert shop.perdure("run", "Explode", *tools, code=None).killed
    assert shop.perdure("resume", *tools, code=None).killed
    assert shop.perdure("resume", *tools, code=None).killed
    done = shop.perdure("resume", *tools, "--json", code=3)
    (wait,) = shop.events(done)[-1]["waits"]
    assert wait["reason"] == "parked"
    assert f"{wait['what']}; {wait['remedy']}".count("retry") == 1
    assert "held" in shop.perdure("ls").stdout
    (shop.path / "defused").touch()
    assert "perdure resume" in shop.perdure("retry", str(wait["task"])).stdout
    shop.perdure("resume", *tools)
    assert "quiet" in shop.perdure("show", "1").stdout
