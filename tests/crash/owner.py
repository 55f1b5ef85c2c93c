"""A process that works on the scripted run, and freezes itself at one point, until it is continued.

owner.py DIRECTORY VARIANT EVENT N [write]

It stands still at the N-th EVENT, or at the first write of SQLite after it: then inside the transaction of a commit.
It says "standing" there, for the test to freeze it, and goes on with a line from the test. At the end it says
"ended NAME", with what ended it.
"""

import asyncio
import os
import sys
from pathlib import Path

from perdure.backends.sqlite import open_sqlite
from perdure.clock import SystemClock
from perdure.telemetry import Telemetry
from perdure.testing.crash import kill_at
from perdure.testing.scenario.client import live
from perdure.testing.scenario.kennel import NOTES, STORE
from perdure.testing.scenario.notes import Notes
from perdure.testing.vfs import CrashingVFS, File


def stand() -> None:
    print("standing", flush=True)  # noqa: T201
    os.read(0, 1)


class Standing(CrashingVFS):
    """Stands still at the next write once it is armed."""

    armed = False

    def write(self, file: File, data: bytes, offset: int) -> None:
        if self.armed:
            self.armed = False
            stand()
        super().write(file, data, offset)

    def arm(self) -> None:
        self.armed = True


async def work(directory: Path, variant: str, event: str, at: int, *, in_a_write: bool) -> str:
    clock, telemetry, vfs = SystemClock(), Telemetry(), Standing("standing")
    kill_at(telemetry, event, at, vfs.arm if in_a_write else stand)
    storage = await open_sqlite(directory / STORE, clock=clock, vfs=vfs.name, telemetry=telemetry)
    try:
        await live(storage, variant, Notes(directory / NOTES), life=1, clock=clock, telemetry=telemetry)
    except Exception as error:
        return type(error).__name__
    finally:
        await storage.close()
    return "well"


if __name__ == "__main__":
    where, variant, event, number, *rest = sys.argv[1:]
    ended = asyncio.run(work(Path(where), variant, event, int(number), in_a_write=bool(rest)))
    print("ended", ended, flush=True)  # noqa: T201
