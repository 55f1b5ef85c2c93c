"""Eleven ways in which a command leaves processes behind, each known by a number of its own in what it runs.

A number is seen in the arguments of its processes: those cannot be dropped as an environment can.
"""

from __future__ import annotations

import os
import re
import select

from perdure.testing.processes import find_process

DOUBLE_FORK = """python3 -c '
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{n}"])
    os._exit(0)
os.wait()'"""

#: By name: the command, where {n} stands for the number. Those in `STAYING` do not end by themselves.
SCENARIOS: dict[str, str] = {
    "one command": "sleep {n}",
    "a command of several": "sleep {n}; true",
    "a silent job": "sleep {n} >/dev/null 2>&1 &",
    "a job that holds the output": "sleep {n} &",
    "a job that ignores hang-up": "nohup sleep {n} >/dev/null 2>&1 & disown",
    "a job in a session of its own": "setsid sleep {n} &",
    "a daemon that forked twice": DOUBLE_FORK,
    "a job without environment, session and parent": "env -i setsid -f sleep {n}",
    "a job in another session beside one that stays": "setsid sleep {n} & sleep {n}",
    "commands that ignore SIGTERM and SIGHUP": "trap '' TERM HUP; sleep {n} & sleep {n}; sleep {n}",
    "one that starts others again and again": "while :; do setsid sleep {n} & sleep 0.02; done",
}
STAYING = (
    "one command",
    "a command of several",
    "a job in another session beside one that stays",
    "commands that ignore SIGTERM and SIGHUP",
    "one that starts others again and again",
)
#: What a process group alone cannot find.
HIDDEN = "a job without environment, session and parent"


def ending(name: str) -> str:
    """The scenario as a command whose shell ends soon, while what it started goes on."""
    return f"{{ {SCENARIOS[name]}\n}} & sleep 0.3" if name in STAYING else f"{SCENARIOS[name]}\nsleep 0.2"


def staying(name: str) -> str:
    """The scenario as a command that goes on until it is ended."""
    return SCENARIOS[name] if name in STAYING else f"{SCENARIOS[name]}\nsleep {{n}}"


class Numbers:
    """Gives each command of one test a number, and finds the living processes that carry it."""

    def __init__(self, first: int) -> None:
        self._next = first
        #: The scenario of each number.
        self.names: dict[str, str] = {}

    def commands(self, how: str) -> dict[str, str]:
        """The commands of all scenarios, by number."""
        made: dict[str, str] = {}
        for name in SCENARIOS:
            number = str(self._next)
            self._next += 1
            self.names[number] = name
            made[number] = (ending(name) if how == "end" else staying(name)).replace("{n}", number)
        return made

    def alive(self, numbers: dict[str, str]) -> dict[str, list[int]]:
        """The pids of those that live, by number. Whatever has the whole script among its arguments is no such one."""
        found: dict[str, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and (number := _number_of(int(name))) in numbers:
                found.setdefault(number, []).append(int(name))
        return found


def _number_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read(200)
    except OSError:
        return ""
    found = re.fullmatch(rb"(?:[^\0]*/)?sleep\0(\d+)\0", arguments)
    row = find_process(pid) if found else None
    return found[1].decode() if found and row is not None and row.living else ""


def glance(seconds: float = 0.02) -> None:
    """Between two looks at the processes of the machine, which tell nobody when they begin."""
    select.select([], [], [], seconds)
