"""`perdure run`: what goes where, how it ends, and that a second run of one request is none."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

import perdure

pytestmark = pytest.mark.slow

#: Two tools that the demo model never saw, one after the other.
TASK = "Tell the population of Bern, then pay 5 to Ann"


def test_the_answer_goes_to_standard_output_and_the_calls_to_standard_error(shop) -> None:
    done = shop.perdure("run", TASK, "--tools", "shop:BOTH")
    assert done.stdout.startswith("(demo model)")
    assert done.stdout.endswith("paid 5 to Ann\n")
    assert "->" not in done.stdout
    model, *lines = done.stderr.splitlines()
    assert model.startswith("perdure: model demo: no key is in the environment")
    assert [line for line in lines if line != "a tool may print"] == [
        '-> population {"city":"Bern"}',
        "<- population: Bern has 133000 people",
        '-> pay {"amount":5,"to":"Ann"}',
        "<- pay: paid 5 to Ann",
    ]
    assert shop.paid() == ["5 to Ann"]


@pytest.mark.parametrize("spec", ["shop:BOTH", "shop:SHOP"])
def test_json_lines_tell_everything_and_end_with_how_it_was_settled(shop, spec: str) -> None:
    found = shop.events(shop.perdure("run", TASK, "--tools", spec, "--json"))
    kinds = [event["entry"]["kind"] for event in found if event["type"] == "entry"]
    said = "".join(event["text"] for event in found if event["type"] == "text")
    assert found[0]["type"] == "accepted"
    assert kinds == ["perdure.user", *["perdure.assistant", "perdure.tool_result"] * 2, "perdure.assistant"]
    assert found[-1]["status"] == "done"
    assert found[-1]["submission"] == found[0]["submission"]
    assert said.endswith(found[-1]["answer"]["text"])


def test_text_is_told_while_it_streams(shop) -> None:
    found = shop.events(shop.perdure("run", "Hello demo:slow=0.15", "--json"))
    pieces = [event["text"] for event in found if event["type"] == "text"]
    assert len(pieces) > 2
    assert "".join(pieces) == found[-1]["answer"]["text"]


def test_the_prompt_may_come_from_standard_input(shop) -> None:
    done = subprocess.run(
        shop.argv("run", "-"), input="Grüße an Ann\n".encode(), cwd=shop.path, capture_output=True, timeout=30
    )
    assert done.returncode == 0
    assert "Grüße an Ann" in done.stdout.decode()


def test_closed_streams_are_no_error(shop) -> None:
    script = f"{' '.join(shop.argv('run'))} 'Pay 5 to Ann' --tools shop:pay >&- 2>&- <&-"
    done = subprocess.run(["bash", "-c", script], cwd=shop.path, timeout=30)
    assert done.returncode == 0
    assert shop.paid() == ["5 to Ann"]


@pytest.mark.parametrize("locale", ["C", "de_DE.ISO-8859-1"])
def test_output_is_utf_8_whatever_the_locale(shop, locale: str) -> None:
    env = {"LC_ALL": locale, "LANG": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "Grüße ☃" in shop.perdure("run", "Grüße ☃", env=env).stdout
    assert "Grüße ☃" in shop.perdure("show", "1", env=env).stdout


def test_a_prompt_that_is_no_utf_8_is_taken_with_what_can_be_read(shop) -> None:
    done = subprocess.run([*shop.argv("run"), b"Hello \xff Ann"], cwd=shop.path, capture_output=True, timeout=30)
    assert done.returncode == 0
    assert "Hello \ufffd Ann" in done.stdout.decode()


def test_only_what_is_allowed_is_offered(shop) -> None:
    done = shop.perdure("run", 'Write "hello" to note.txt', code=0)
    assert not (shop.path / "note.txt").exists()
    assert "tools here are: read" in done.stdout
    shop.perdure("run", 'Write "hello" to note.txt', "--allow", "write,edit", "--conversation", "other")
    assert (shop.path / "note.txt").read_text() == "hello"


def test_tools_work_in_the_directory_that_is_named(shop) -> None:
    (shop.path / "work").mkdir()
    shop.perdure("run", 'Write "hello" to note.txt', "--allow", "write", "--directory", "work")
    assert (shop.path / "work" / "note.txt").read_text() == "hello"


def test_a_run_that_failed_exits_with_1_and_says_why(shop) -> None:
    done = shop.perdure("run", "demo:auth", code=1)
    assert "perdure: not answered (model_error): auth" in done.stderr.splitlines()[-1]
    assert shop.events(shop.perdure("run", "demo:auth", "--json", code=1))[-1]["reason"] == "model_error"


def test_a_repeated_request_is_done_once_and_shown_again(shop) -> None:
    args = ("run", TASK, "--tools", "shop:BOTH", "--request-id", "order-17")
    first, second = shop.perdure(*args), shop.perdure(*args)
    assert shop.paid() == ["5 to Ann"]
    assert second.stdout == first.stdout


def test_a_request_id_with_another_prompt_is_refused(shop) -> None:
    shop.perdure("run", "Hello", "--request-id", "order-17")
    done = shop.perdure("run", "Goodbye", "--request-id", "order-17", "--json", code=1)
    assert "order-17" in done.stderr
    assert shop.events(done)[-1]["error"] == "RequestConflict"


def test_a_run_over_its_time_is_aborted_and_exits_with_1(shop) -> None:
    done = shop.perdure("run", "demo:hang", "--timeout", "0.5", "--json", code=1)
    end = shop.events(done)[-1]
    assert (end["status"], end["reason"]) == ("unanswered", "aborted")
    assert "time limit of 0.5 s" in end["detail"]
    assert "nothing is going on" in shop.perdure("inspect").stdout


def test_an_interrupt_aborts_the_run_durably(shop) -> None:
    with shop.start("run", "Hello demo:slow=0.1 demo:hang", "--json") as child:
        shop.until(child, "text")
        os.kill(child.pid, signal.SIGINT)
        done = child.wait()
    assert done.code == 130
    assert shop.events(done)[-1]["reason"] == "aborted"
    assert "nothing is going on" in shop.perdure("inspect").stdout
    assert "(aborted)" in shop.perdure("show", "1").stdout


def test_a_second_interrupt_leaves_at_once(shop) -> None:
    stubborn = "import time\ndef sleep_well() -> str:\n    'Sleep well.'\n    time.sleep(60)\n    return ''\n"
    (shop.path / "stubborn.py").write_text(stubborn)
    with shop.start("run", "Sleep well", "--tools", "stubborn:sleep_well", "--json") as child:
        event = shop.until(child, "entry")
        while event["entry"]["kind"] != "perdure.assistant":
            event = shop.until(child, "entry")
        os.kill(child.pid, signal.SIGINT)
        shop.until(child, "note")
        # The note is said before the abort is committed: the second interrupt does not wait for that, so the test does.
        assert any("aborting" in shop.perdure("inspect").stdout for _ in range(20))
        os.kill(child.pid, signal.SIGINT)
        done = child.wait(timeout=4)
    assert done.code == 130
    assert "aborting" in shop.perdure("inspect").stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_end_leaves_the_run_to_be_resumed(shop, number: signal.Signals) -> None:
    with shop.start("run", TASK + " demo:slow=0.2", "--tools", "shop:BOTH", "--json") as child:
        shop.until(child, "accepted")
        os.kill(child.pid, number)
        done = child.wait()
    end = shop.events(done)[-1]
    assert done.code == 128 + number
    assert (end["status"], end["signal"]) == ("stopped", number.name)
    shop.perdure("resume", "--tools", "shop:BOTH")
    assert shop.paid() == ["5 to Ann"]


def test_a_reader_that_leaves_early_is_no_error_and_the_run_stays(shop) -> None:
    script = f"{' '.join(shop.argv('run'))} 'Hello demo:slow=0.2' --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=shop.path, capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "141"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert "is answered" in shop.perdure("resume").stdout


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["true", "head -c 1"], ids=["before the first byte", "while streaming"])
def test_a_run_whose_reader_leaves_ends_as_by_sigpipe(shop, reader: str) -> None:
    script = f"{' '.join(shop.argv('run'))} 'Hello demo:slow=0.2' | {reader} >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=shop.path, capture_output=True, text=True, timeout=30)
    assert done.stdout == "141\n"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("args", [("show", "1", "--all"), ("ls",), ("inspect",)], ids=" ".join)
def test_a_listing_whose_reader_leaves_early_is_quiet(shop, args: tuple[str, ...]) -> None:
    shop.perdure("run", "Say " + "something long. " * 5_000)
    script = f"{' '.join(shop.argv(*args))} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=shop.path, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    assert done.stdout == "141\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
@pytest.mark.parametrize("json", ["", "--json"])
def test_an_answer_that_could_not_be_written_is_no_success(shop, json: str) -> None:
    script = f"{' '.join(shop.argv('run'))} Hello {json} > /dev/full; echo $? >&2"
    done = subprocess.run(["bash", "-c", script], cwd=shop.path, capture_output=True, text=True, timeout=30)
    assert done.stderr.splitlines()[-1] == "1"
    assert "standard output cannot be written (No space left on device)" in done.stderr.splitlines()[-2]
    assert "Hello" in shop.perdure("show").stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [("ls",), ("doctor",), ("db", "check"), ("config", "show"), ("--help",)], ids=" ".join)
def test_a_listing_that_could_not_be_written_says_so(shop, args: tuple[str, ...], unbuffered: str) -> None:
    asyncio.run(make_store(shop.path))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            shop.argv(*args), cwd=shop.path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30,
            env={**os.environ, **shop.env, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "perdure: standard output cannot be written: No space left on device"


async def make_store(path: Path) -> None:
    async with perdure.open(str(path / ".perdure" / "store.db")) as session:
        await (await session.root()).submit("Hello")


@pytest.mark.parametrize("store", ["/dev/null", "a_pipe"])
def test_a_store_that_is_no_file_is_refused(shop, store: str) -> None:
    os.mkfifo(shop.path / "a_pipe")
    for args in (("ls",), ("run", "Hello"), ("db", "check")):
        assert "and a store is a file" in shop.perdure(*args, "--store", store, code=2).stderr


def test_where_nothing_was_done_yet_a_listing_says_what_makes_a_store(shop) -> None:
    done = shop.perdure("ls", code=2)
    assert "perdure run makes one" in done.stderr


def test_what_else_is_unfinished_is_said_at_the_beginning_and_at_the_end(shop) -> None:
    for prompt, key in (("Hello demo:slow=0.05", "soon"), ("Hello demo:slow=0.05 demo:hang", "never")):
        with shop.start("run", prompt, "--conversation", key, "--json") as child:
            shop.until(child, "accepted")
            os.kill(child.pid, signal.SIGTERM)
            child.wait()
    done = shop.perdure("run", "Hello demo:slow=0.6")
    begun = [line for line in done.stderr.splitlines() if "was not finished: it goes on while" in line]
    assert [line.split()[5] for line in begun] == ["soon", "never"]
    assert "of conversation soon is answered: (demo model)" in done.stderr
    assert "of conversation never is not finished: perdure resume goes on with it" in done.stderr
    assert "was not finished" not in shop.perdure("run", "Hello", "--session", "another").stderr
