"""`perdure chat`, in processes: over a pipe and on a terminal, with questions, interrupts and other shells."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import stat
import subprocess
import time
from collections.abc import Iterator

import pytest

from perdure.testing.processes import Exit

pytestmark = pytest.mark.slow


def talk(shop, text: str, *args: str, code: int = 0) -> Exit:
    done = subprocess.run(
        shop.argv("chat", *args), input=text.encode(), cwd=shop.path, capture_output=True, timeout=50,
        env={**os.environ, **shop.env},
    )  # fmt: skip
    found = Exit(code=done.returncode, signal=None, stdout=done.stdout.decode(), stderr=done.stderr.decode())
    assert found.code == code, f"{found.stdout}\n{found.stderr}"
    assert "Traceback" not in found.stderr
    return found


def test_each_line_of_a_pipe_is_a_prompt_and_is_answered_in_turn(shop) -> None:
    done = talk(shop, 'Pay 5 to Ann\nPay 6 to Bob\\\n\n"""\nPay 7 to Cid\n"""\n', "--tools", "shop:pay")
    assert shop.paid() == ["5 to Ann", "6 to Bob", "7 to Cid"]
    assert done.stdout.count("1 done:") == 3
    assert "->" not in done.stdout
    assert [line[:6] for line in done.stderr.splitlines()[1:]] == ["-> pay", "<- pay"] * 3
    assert done.stderr.startswith("perdure: model demo: ")


def test_one_conversation_is_gone_on_with_and_a_new_one_is_the_default(shop) -> None:
    talk(shop, "One\n")
    talk(shop, "Two\n")
    talk(shop, "Three\n", "--continue")
    talk(shop, "Four\n", "--conversation", "till")
    talk(shop, "Five\n", "-c")
    rows = [line.split() for line in shop.perdure("ls").stdout.splitlines()[1:]]
    assert len(rows) == 3
    assert re.findall(r"^    (One|Two|Three|Four|Five)$", shop.perdure("show", "till").stdout, re.MULTILINE) == [
        "Four", "Five",
    ]  # fmt: skip
    assert re.findall(r"^    (Two|Three)$", shop.perdure("show", rows[1][1]).stdout, re.MULTILINE) == ["Two", "Three"]


def test_nothing_said_leaves_no_conversation(shop) -> None:
    talk(shop, "\n  \n")
    assert shop.perdure("ls").stdout == ""
    assert "leave --continue out" in talk(shop, "x\n", "--continue", code=2).stderr


@pytest.mark.parametrize(
    "text, code, says",
    [
        ("demo:auth\n", 1, "not answered (model_error)"),
        ("demo:auth\nHello\n", 1, "not answered (model_error)"),
        ("/abrot\nHello\n", 2, "did you mean abort?"),
        ("/quit now\n", 2, "/quit takes nothing"),
        ("/model gpt-7\n", 2, "did you mean openai:gpt-7"),
        ("/quit\ndemo:auth\n", 0, "model demo"),
    ],
)
def test_the_exit_code_says_how_the_prompts_of_a_pipe_ended(shop, text: str, code: int, says: str) -> None:
    assert says in talk(shop, text, code=code).stderr


def test_a_line_that_begins_with_two_slashes_is_a_prompt(shop) -> None:
    assert '"/etc"' in talk(shop, "//etc\n").stdout


def test_a_question_is_answered_by_the_next_line(shop) -> None:
    done = talk(shop, 'Ask the boss about the request "a holiday"\n{"yes": true}\n', "--tools", "shop:ask_boss")
    assert "waits for an answer" in done.stderr
    assert "the next line answers it" in done.stderr
    assert "nothing is going on" in shop.perdure("inspect").stdout


def test_a_question_that_nobody_answers_ends_a_pipe_with_3(shop) -> None:
    done = talk(shop, 'Ask the boss about the request "a holiday"\n', "--tools", "shop:ask_boss", code=3)
    assert "perdure resume goes on with it" in done.stderr


def test_another_model_answers_after_the_command(shop) -> None:
    done = talk(shop, "Hello\n/model demo:slow=0.001\nHello again\n/model\n")
    assert "model demo:slow=0.001: as --model says" in done.stderr
    assert done.stdout.count("(demo model)") == 2


def test_usage_is_told(shop) -> None:
    assert '"requests":1' in talk(shop, "Hello\n/usage\n").stderr


@pytest.mark.parametrize("name, begins", [("a.md", "# "), ("a.html", "<!doctype html>"), ("a.jsonl", '{"type":')])
def test_the_transcript_is_exported_from_within(shop, name: str, begins: str) -> None:
    talk(shop, f"Hello\n/export {name}\n")
    assert (shop.path / name).read_text().startswith(begins)


def test_an_interrupt_aborts_the_run_and_a_second_one_leaves(shop) -> None:
    with shop.start("chat") as child:
        child.write_line("demo:hang")
        until(lambda: "generation" in shop.perdure("inspect", code=None).stdout)
        os.kill(child.pid, signal.SIGINT)
        until(lambda: "not answered (aborted)" in child.stderr)
        child.write_line("/model")
        until(lambda: child.stderr.count("model demo") == 2)
        os.kill(child.pid, signal.SIGINT)
        until(lambda: child.stderr.count("Ctrl-C again leaves") == 2)
        os.kill(child.pid, signal.SIGINT)
        assert child.wait().code == 130


def test_being_told_to_end_leaves_the_run_to_be_resumed(shop) -> None:
    with shop.start("chat", "--tools", "shop:pay") as child:
        child.write_line("Pay 5 to Ann demo:sleep=4")
        until(lambda: "generation" in shop.perdure("inspect", code=None).stdout)
        os.kill(child.pid, signal.SIGTERM)
        done = child.wait()
    assert done.code == 143
    assert "perdure resume goes on with it" in done.stderr
    shop.perdure("resume", "--tools", "shop:pay")
    assert shop.paid() == ["5 to Ann"]


def test_beside_an_owner_it_hands_in_and_goes_on_when_that_is_gone(shop) -> None:
    with shop.start("chat", "--conversation", "a") as owner:
        owner.write_line("Hello")
        owner.read_line()
        with shop.start("chat", "--conversation", "b") as other:
            other.write_line("Hello from b")
            assert '"Hello from b"' in other.read_line()
            assert "is owned by process" in other.stderr
            owner.write_line("/quit")
            assert owner.wait().code == 0
            until(lambda: "going on here" in other.stderr)
            other.write_line("Hello again")
            assert '"Hello again"' in other.read_line()


def test_what_another_shell_says_in_the_conversation_is_shown(shop) -> None:
    with shop.start("chat", "--conversation", "a") as owner:
        owner.write_line("Hello")
        owner.read_line()
        shop.perdure("run", "From elsewhere", "--conversation", "a")
        assert '"From elsewhere"' in owner.read_line()
        assert "from another shell: From elsewhere" in owner.stderr


# -- on a terminal ------------------------------------------------------------------------------


class Terminal:
    """A process with a terminal."""

    def __init__(self, argv: list[str], cwd, env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=env, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, text: str, timeout: float = 20.0) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"no {text!r} in {self.seen!r}"
            if select.select([self.master], [], [], left)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.master, 65536).decode(errors="replace")


@pytest.fixture
def terminal(shop, tmp_path) -> Iterator[Terminal]:
    env = {**os.environ, **shop.env, "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "xterm"}
    found = Terminal([*shop.argv("chat", "--conversation", "t")], shop.path, env)
    yield found
    with contextlib.suppress(ProcessLookupError):
        os.killpg(found.process.pid, signal.SIGKILL)
    found.process.wait()
    os.close(found.master)


def test_a_person_types_while_the_agent_works_and_leaves_with_the_end_of_input(shop, terminal, tmp_path) -> None:
    terminal.until("model demo")
    terminal.type("demo:sleep=1 first\n")
    terminal.until("demo:sleep=1 first")
    terminal.type("second\n")
    terminal.until("it waits for its turn")
    terminal.until('no tool fits "second"')
    terminal.type("sk-proj-abcdefABCDEF0123456789\n")
    terminal.until("no tool fits")
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0
    history = tmp_path / "state" / "perdure" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    assert "second" in history.read_text()
    assert "sk-proj" not in history.read_text()


def test_the_terminal_is_as_before_after_it_was_left_at_once(terminal) -> None:
    terminal.until("model demo")
    terminal.type("\x03")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.until("Ctrl-C again leaves")
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.process.wait(20) == 130


def until(done, timeout: float = 20.0) -> None:
    """Look again and again: what is waited for is another process."""
    deadline = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.05)
