"""The helper of the strategy `subreaper`: runs one command, adopts what loses its parent, and ends all of it.

Run as a program (`python -I -S subreaper.py COMMAND...`): it imports nothing of perdure and nothing that is installed.
See `strategies` for what it says and is told on its standard input. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TALK = 0
#: Seconds that outliving processes have to end by themselves, and between two looks at those that are being killed.
PATIENCE, GLANCE = 0.1, 0.02


def main(command: list[str]) -> int:
    """The exit code of the command, as a shell tells it."""
    become_subreaper()
    woken = wake_on(signal.SIGCHLD, signal.SIGTERM)
    gate, opener = os.pipe()
    entered, entry = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(opener)
        run(command, gate, entry)
    os.close(gate)
    os.close(entry)
    os.read(entered, 1)
    os.write(TALK, b"ready\n")
    if answer() != b"go":
        kill_all(child, woken)
        return 125
    os.write(opener, b"\n")
    os.close(opener)
    return see_through(child, woken)


def become_subreaper() -> None:
    """Orphans below become children of this process, which is told when the one above dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_CHILD_SUBREAPER, 1), (PR_SET_PDEATHSIG, int(signal.SIGTERM))):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")


def wake_on(*signals: signal.Signals) -> int:
    """What can be read when one of the signals came."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for each in signals:
        signal.signal(each, woke)
    return reader


def woke(number: int, frame: object) -> None:
    """All that is needed of a signal is in the pipe."""


def run(command: list[str], gate: int, entry: int) -> None:
    """The child: in a session of its own, so that its signals to its group do not reach the helper, nor ours to it."""
    os.setsid()
    os.close(entry)
    for each in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    if not os.read(gate, 1):
        os._exit(125)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    try:
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def answer() -> bytes:
    """The next line that we are told; empty when nobody is there any more, or when we are to end."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            piece = os.read(TALK, 1)
        except OSError:
            return b""
        if not piece:
            return b""
        line += piece
    return line.strip()


def see_through(child: int, woken: int) -> int:
    """Wait for the command, then for what it left, then end that."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(TALK, select.POLLIN)
    code: int | None = None
    while True:
        events = poll.poll(None if code is None else PATIENCE * 1000)
        if any(handle == TALK for handle, _ in events) or (events and asked_to_end(woken)):
            break  # nobody speaks unasked: they are gone, or want the end
        ended, none_left = reap(child)
        code = ended if code is None else code
        if none_left:
            break
        if code is not None and not events:
            os.write(TALK, b"left\n")
            if answer() != b"more":
                break
    killed = kill_all(child, woken)
    return code if code is not None else killed


def asked_to_end(woken: int) -> bool:
    """Forgets which signals came."""
    try:
        return signal.SIGTERM in os.read(woken, 4096)
    except BlockingIOError:
        return False


def reap(child: int) -> tuple[int | None, bool]:
    """Collect who ended: the exit code of the command if that is among them, and whether nobody is left."""
    code: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, True
        if pid == 0:
            return code, False
        if pid == child:
            code = code_of(status)


def code_of(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def kill_all(child: int, woken: int) -> int:
    """Stop what descends from us, so that it starts nothing more, then kill it; again until nobody is left."""
    code = 128 + int(signal.SIGKILL)
    while True:
        ended, none_left = reap(child)
        code = code if ended is None else ended
        if none_left:
            return code
        stopped: set[int] = set()
        while more := descendants() - stopped:
            for pid in more:
                send(pid, signal.SIGSTOP)
            stopped |= more
        for pid in stopped:
            send(pid, signal.SIGKILL)
        select.select([woken], [], [], GLANCE)
        asked_to_end(woken)


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def descendants() -> set[int]:
    """The processes below this one. A zombie may be one whose first thread alone has ended."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
            except OSError:
                continue
            parents[int(name)] = int(stat[stat.rindex(b")") + 2 :].split(None, 2)[1])
    found, grew = {os.getpid()}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grew = bool(more)
    return found - {os.getpid()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
