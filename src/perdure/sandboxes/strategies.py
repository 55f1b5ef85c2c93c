"""The strategies: how a command and everything that it starts are kept together, so that they can be ended together.

Under the first four the command lives in a pid namespace: no process leaves one, and the kernel ends all of it with its
first process. Under the fifth a helper adopts what loses its parent. The sixth finds what it can.

A wrapper starts the command. It talks with us over a socket that is its standard input, in lines: "ready" before the
command begins, which it does after "go"; "left" when the command has ended and something of it still runs, to which the
answer is "more" (wait) or "end". Where nobody answers any more, it ends everything: there is no moment at which a
command runs that would outlive us.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Literal

import msgspec

SHELL = "/bin/sh"
SUBREAPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "subreaper.py")

#: The first process of a namespace. It turns the end of the command into an exit code, without a word about it (a
#: command that were first itself could not be ended by a signal of its own), gives what outlives the command a tenth of
#: a second, and asks then.
#: `kill -s 0 -- -1` reaches every process of the namespace but itself: it fails when there is none.
INIT = """
echo ready >&0 && read -r _perdure && [ "$_perdure" = go ] || exit 125
exec 3>&2 2>/dev/null
(exec "$@" </dev/null 2>&3 3>&-)
code=$?
round=0
while kill -s 0 -- -1; do
  if [ "$round" -ge 5 ]; then
    echo left >&0
    read -r _perdure && [ "$_perdure" = more ] || break
    round=0
  fi
  round=$((round + 1))
  sleep 0.02
done
exit "$code"
"""

Kind = Literal["namespace", "subreaper", "group"]


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """One way to keep a command together. `label` says to people what it is and what it proves."""

    name: str
    kind: Kind
    label: str
    #: What is put before the command: programs by name, each with its arguments.
    programs: tuple[tuple[str, ...], ...] = ()

    def wrapper(self) -> tuple[str, ...]:
        """What is put before the command, with full paths. Raises LookupError naming what is not installed."""
        if self.kind == "subreaper":
            return _subreaper()
        if self.kind == "group":
            return ()
        found: list[str] = []
        for program, *arguments in self.programs:
            path = shutil.which(program)
            if path is None:
                raise LookupError(f"{program} is not installed")
            found += [path, *arguments]
        return (*found, SHELL, "-c", INIT, "perdure-init")


def _subreaper() -> tuple[str, ...]:
    """Our interpreter, or the system's where ours is no program of its own; without packages, so it starts quickly."""
    ours = sys.executable if sys.executable and os.access(sys.executable, os.X_OK) else shutil.which("python3")
    if ours is None:
        raise LookupError("there is no Python interpreter that this user may run")
    return (ours, "-I", "-S", SUBREAPER)


#: The wrapper dies with the thread that started it, and `--kill-child` carries that on to the first process inside.
_TIED = ("setpriv", "--pdeathsig", "KILL")
_FORK = ("--pid", "--fork", "--kill-child")
_USER = ("--user", "--map-current-user")
_ENDS = "ended by the kernel with everything that it started, also when this process is killed"
_ALL_PIDS = "sees the processes of the machine"

#: In order of preference: the first that works is taken.
STRATEGIES: tuple[Strategy, ...] = (
    Strategy(
        name="pidns+proc",
        kind="namespace",
        label=f"pid namespace: a command is {_ENDS}",
        programs=(_TIED, ("unshare", *_FORK, "--mount-proc")),
    ),
    Strategy(
        name="userns+proc",
        kind="namespace",
        label=f"pid namespace in a user namespace: a command is {_ENDS}",
        programs=(_TIED, ("unshare", *_USER, *_FORK, "--mount-proc")),
    ),
    Strategy(
        name="pidns",
        kind="namespace",
        label=f"pid namespace without a /proc of its own: a command is {_ENDS}; it {_ALL_PIDS}",
        programs=(_TIED, ("unshare", *_FORK)),
    ),
    Strategy(
        name="userns",
        kind="namespace",
        label=f"user and pid namespace without a /proc of its own: a command is {_ENDS}; it {_ALL_PIDS}",
        programs=(_TIED, ("unshare", *_USER, *_FORK)),
    ),
    Strategy(
        name="bwrap",
        kind="namespace",
        label=f"pid namespace made by bubblewrap: a command is {_ENDS}",
        programs=(
            (
                *("bwrap", "--dev-bind", "/", "/", "--proc", "/proc"),
                *("--unshare-pid", "--die-with-parent", "--new-session", "--as-pid-1"),
            ),
        ),
    ),
    Strategy(
        name="subreaper",
        kind="subreaper",
        label="helper process: it ends a command with everything that it started, also when this process is killed, "
        "unless the command kills the helper",
    ),
    Strategy(
        name="pgroup",
        kind="group",
        label="process group: best effort; what leaves its group, its session and its environment is not found"
        if sys.platform == "linux"
        else "process group and lifeline pipe, which is all that this platform has: best effort; what leaves the "
        "group of its command is not found",
    ),
)
NAMES = tuple(each.name for each in STRATEGIES)


def named(name: str) -> Strategy | None:
    """None where there is no strategy of that name."""
    return next((each for each in STRATEGIES if each.name == name), None)


def shell() -> str:
    """What runs commands: bash, or the system's shell where there is none."""
    return shutil.which("bash") or SHELL


def argv(wrapper: Sequence[str], command: str) -> list[str]:
    """A shell command behind a wrapper."""
    return [*wrapper, shell(), "-c", command]
