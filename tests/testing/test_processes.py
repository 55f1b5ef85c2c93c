"""Real children: waiting with a bound, freezing, killing, and finding what they leave behind."""

import os
import sys

import pytest

from perdure.testing.processes import Child, ChildTimeout, descendants, find_process, run_child

pytestmark = pytest.mark.slow

#: Starts a grandchild in a session of its own, says its pid, and waits for a line.
PARENT = """
import subprocess, sys
grandchild = subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=subprocess.DEVNULL)
print(grandchild.pid, flush=True)
sys.stdin.readline()
"""
#: Counts lines as fast as they are read.
ECHO = "import sys\nfor line in sys.stdin: print('said', line.strip(), flush=True)"


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-c", program]


def test_a_child_ends_with_its_code_and_output():
    exit = run_child(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"), grace=0.0)

    assert (exit.code, exit.signal, exit.killed, exit.left) == (3, None, False, ())
    assert (exit.lines, exit.stderr) == (["out"], "err\n")


def test_a_child_that_kills_itself_ends_by_that_signal():
    exit = run_child(python("import os; print('so far', flush=True); print('cut', end=''); os.kill(os.getpid(), 9)"))

    assert (exit.code, exit.signal, exit.killed) == (None, 9, True)
    assert exit.lines == ["so far"]


def test_much_output_does_not_block_a_child():
    exit = run_child(python("import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('y' * 3_000_000)"))

    assert (len(exit.stdout), len(exit.stderr)) == (3_000_000, 3_000_000)


def test_a_child_that_does_not_end_is_killed_after_the_time():
    with pytest.raises(ChildTimeout, match=r"did not end in 0.3 s(?s:.*)waiting for godot"):
        run_child(
            python("import sys, time; print('waiting for godot', file=sys.stderr, flush=True); time.sleep(300)"),
            timeout=0.3,
        )


def test_one_can_talk_with_a_child():
    with Child(python(ECHO)) as child:
        child.write_line("one")
        child.write_line("two")
        answers = [child.read_line(), child.read_line()]
        exit = child.wait(grace=0.0)

    assert answers == ["said one", "said two"]
    assert (exit.code, exit.lines) == (0, answers)


def test_a_child_that_says_nothing_more_is_told_apart_from_a_silent_one():
    with Child(python("pass")) as child, pytest.raises(ChildTimeout, match="said nothing more"):
        child.read_line()
    with Child(python(ECHO)) as child, pytest.raises(ChildTimeout, match=r"said nothing in 0.1 s"):
        child.read_line(timeout=0.1)


def test_a_frozen_child_does_nothing_until_it_is_thawed():
    with Child(python(ECHO)) as child:
        child.write_line("before")
        child.read_line()
        child.stop()
        child.write_line("frozen")
        with pytest.raises(ChildTimeout):
            child.read_line(timeout=0.1)
        running = child.running
        child.proceed()

        assert child.read_line() == "said frozen"
        assert running


def test_a_frozen_child_can_be_killed():
    with Child(python(ECHO)) as child:
        child.stop()
        child.kill()

        assert child.wait(grace=0.0).killed


def test_what_a_killed_child_leaves_behind_is_found_reported_and_killed():
    with Child(python(PARENT)) as child:
        pid = int(child.read_line())
        living = [row.pid for row in child.descendants()]
        child.kill()
        exit = child.wait(grace=0.05)
        gone = find_process(pid)

    assert living == [pid]
    assert exit.left == ("sleep 300",)
    assert gone is None or not gone.living


def test_what_ends_by_itself_within_the_grace_is_not_left_behind():
    program = "import subprocess; subprocess.Popen(['sleep', '0.1'], start_new_session=True)"

    assert run_child(python(program), grace=10.0).left == ()


def test_descendants_are_those_of_the_living_tree():
    with Child(python(PARENT)) as child:
        pid = int(child.read_line())

        below = [row.pid for row in descendants(os.getpid())]

    assert {child.pid, pid} <= set(below)
    assert os.getpid() not in below


def test_the_end_of_the_block_ends_the_child_and_its_own():
    with Child(python(PARENT)) as child:
        pid = int(child.read_line())

    rows = [find_process(child.pid), find_process(pid)]
    assert all(row is None or not row.living for row in rows)
