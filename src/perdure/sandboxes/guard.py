"""The guard ends what still runs when this process is killed: nothing of us is left then to do it (I74).

It is a small shell in a session of its own that reads a pipe. Each command writes its group there itself, before it
runs anything, so there is no moment at which one runs unknown. When the last writer is gone, and that is when this
process is, the guard kills the groups that are left, and whatever carries their mark. `kill -9` of the guard itself
disarms it until the next command starts another; what it cannot reach is what `table` cannot find.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import weakref

from perdure.sandboxes.strategies import SHELL
from perdure.sandboxes.table import owner

#: Written to the pipe: "+ GROUP" by a command, "- GROUP" by us when nothing of it is left.
_GUARD = """
trap '' HUP INT QUIT TERM
cd /
exec 3<&0 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
{
  live=' '
  while read -r sign group; do
    case $sign in
      +) live="$live$group " ;;
      -) case $live in *" $group "*) live="${live%% "$group" *} ${live#* "$group" }" ;; esac ;;
    esac
  done
  round=0
  for group in $live; do kill -s KILL -- "-$group"; round=20; done
  while [ "$round" -gt 0 ]; do
    found=$(grep -lsF -e "$1" /proc/[0-9]*/environ)
    [ -n "$found" ] || break
    for file in $found; do pid=${file#/proc/}; kill -s KILL "${pid%/*}"; done
    round=$((round - 1))
  done
} <&3 3<&- &
"""

#: What a command's shell runs first: it enters its group, which it leads, and closes the pipe by becoming the command.
ENTER = 'echo "+ $$" >&0 && exec "$@" </dev/null'

_numbers = itertools.count(1)


class Guard:
    """A guard over the commands of one sandbox, or of several that share it. Starts with the first command."""

    def __init__(self) -> None:
        #: Begins the mark of each command: this process, and this guard in it.
        self._mark = f"/{owner()}.{next(_numbers)}."
        self._calls = itertools.count(1)
        self._pipe = _Pipe()
        #: Groups that entered and were not dismissed; a new guard is told them.
        self._groups: set[int] = set()
        weakref.finalize(self, self._pipe.close)

    def next_mark(self) -> str:
        """A mark for one command: no other command of this machine has it while this process lives."""
        return f"{self._mark}{next(self._calls)}/"

    def pipe(self) -> int:
        """What becomes the standard input of `ENTER`. Starts a guard when none is there."""
        if not self._pipe.read_by_someone():
            self._pipe.open(self._mark)
            for group in self._groups:
                self._pipe.write(f"+ {group}\n")
        return self._pipe.end

    def entered(self, group: int) -> None:
        """A command with this group was started."""
        self._groups.add(group)

    def dismiss(self, group: int) -> None:
        """Nothing of this group is left; its number may be given to others from now on."""
        self._groups.discard(group)
        self._pipe.write(f"- {group}\n")

    def close(self) -> None:
        """Let the guard go: it ends what it still knows of."""
        self._pipe.close()


class _Pipe:
    """The writing end. Invariant: `end` is open unless it is -1."""

    def __init__(self) -> None:
        self.end = -1

    def read_by_someone(self) -> bool:
        if self.end < 0:
            return False
        poll = select.poll()
        poll.register(self.end, 0)
        return not poll.poll(0)

    def open(self, mark: str) -> None:
        self.close()
        reader, self.end = os.pipe()
        try:
            # A guard that were stopped must not stop us; a command that then cannot enter does not run.
            os.set_blocking(self.end, False)
            starter = os.posix_spawn(
                SHELL,
                [SHELL, "-c", _GUARD, "perdure-guard", mark],
                {"PATH": os.defpath},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reader, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigdef=[signal.SIGPIPE],
            )
            os.waitpid(starter, 0)  # the guard itself is no child of ours: nobody need wait for it
        finally:
            os.close(reader)

    def write(self, line: str) -> None:
        if self.read_by_someone():  # else the next command starts a guard
            with contextlib.suppress(OSError):
                os.write(self.end, line.encode())

    def close(self) -> None:
        if self.end >= 0:
            os.close(self.end)
            self.end = -1
