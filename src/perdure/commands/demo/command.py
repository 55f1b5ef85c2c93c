"""`perdure demo`: kill an agent again and again, and verify that nothing was lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

import click
import msgspec

from perdure.clock import SystemClock
from perdure.commands.demo.campaign import Campaign, Toll
from perdure.commands.demo.orders import SCRIPT, SCRIPT_TEXT
from perdure.commands.demo.places import Places, places
from perdure.commands.demo.schedule import FEWEST, schedule
from perdure.commands.demo.summary import result, summary
from perdure.commands.demo.timeline import Timeline, timeline
from perdure.commands.demo.verdict import Verdict
from perdure.commands.demo.verify import read_verdict
from perdure.errors import PerdureError, UsageError

_VERIFIER = "perdure.commands.demo.verify"
#: So many of the things that are wrong are listed.
_MOST_PROBLEMS = 20


@click.command()
@click.option("--kills", type=int, default=12, show_default=True, metavar="N", help=f"How often; at least {FEWEST}.")
@click.option("--seed", type=int, metavar="S", help="Which points and delays; drawn, and shown, where it is not given.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON; the timeline goes to standard error.")
@click.option(
    "--keep", metavar="DIR", help="Keep the store and the other files in this directory: an empty or a new one."
)
@click.option("--store", metavar="FILE", help="Keep the store in this file, which must not be there yet.")
def demo(kills: int, seed: int | None, as_json: bool, keep: str | None, store: str | None) -> int:
    """Kill an agent again and again, and verify that nothing was lost.

    An agent works in a process of its own, with tools that write files, run commands and make payments. It is killed
    with SIGKILL, each time at another point of its work, and started again. Then a verifier, in yet another process,
    reads the raw database and the payments, and compares them with what the agent had promised.

    Exits with 1 if anything was lost, repeated or made invalid.
    """
    clock = SystemClock()
    seed = int(clock.random() * 1_000_000) if seed is None else seed
    planned = schedule(kills, seed)
    if not sys.platform.startswith("linux"):
        raise UsageError(
            f"perdure demo looks for processes in /proc, which {sys.platform} does not have: run it on Linux"
        )
    files = _made(keep, store)
    signal.signal(signal.SIGTERM, _terminated)
    with _cleaned_up(files, keep=keep is not None):
        with timeline(sys.stderr if as_json else sys.stdout, clock) as shown:
            shown.say("An agent does errands for a flower shop, on the demo model, which works offline.", "bold")
            shown.say(f"{kills} kills, seed {seed}, store {files.store}\n")
            toll = Campaign(files, seed, shown, clock).run(planned)
            shown.say("\nAnother process compares the raw database and the payments with what was promised:\n")
            verdict = _verified(files)
            _sum_up(shown, toll, verdict)
            shown.say(f"\nThe same once more: perdure demo --kills {kills} --seed {seed}")
            if keep is not None:
                shown.say(f"Verify it yourself: python -m {_VERIFIER} {files.directory} --store {files.store}")
        if as_json:
            print(json.dumps(msgspec.to_builtins(result(toll, verdict))), flush=True)
        if not verdict.good or toll.left or toll.kills != kills:
            raise PerdureError("the promises were not kept; what is wrong stands above")
    return 0


def _terminated(number: int, frame: object) -> None:
    """Leave all blocks, so that what was started ends and what was made for this demo goes."""
    sys.exit(128 + number)


@contextmanager
def _cleaned_up(files: Places, *, keep: bool) -> Generator[None]:
    """Remove the directory after the block, unless it is to be kept, or something went wrong that is worth a look."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, BrokenPipeError):  # nobody wants to know any more
        if not keep:
            shutil.rmtree(files.directory, ignore_errors=True)
        raise
    except BaseException:
        print(f"perdure: the files of this demo are kept in {files.directory}", file=sys.stderr)
        raise
    if not keep:
        shutil.rmtree(files.directory, ignore_errors=True)


def _made(keep: str | None, store: str | None) -> Places:
    """The directory of this demo, with what the agent finds there. Raises UsageError."""
    if store is not None:
        if ":" in store:
            raise UsageError(
                f"--store {store!r}: the process of the agent is killed, so its store is a file: give a path"
            )
        store = os.path.realpath(store)
        if os.path.lexists(store) or not os.path.isdir(os.path.dirname(store)):
            raise UsageError(f"--store {store}: name a file that is not there yet, in a directory that is")
    try:
        if keep is None:
            directory = tempfile.mkdtemp(prefix="perdure-demo-")
        else:
            directory = keep
            os.makedirs(directory, exist_ok=True)
            if os.listdir(directory):
                raise UsageError(f"--keep {directory} is not empty: name an empty or a new directory")
        files = places(directory, store)
        os.mkdir(files.work)
        with open(os.path.join(files.work, SCRIPT), "w", encoding="utf-8") as script:
            script.write(SCRIPT_TEXT)
    except OSError as error:
        where = keep or tempfile.gettempdir()
        raise UsageError(f"{where} cannot be used: {error.strerror}; name another directory with --keep") from error
    return files


def _verified(files: Places) -> Verdict:
    """What the verifier says, in its own process."""
    argv = [sys.executable, "-P", "-m", _VERIFIER, files.directory, "--store", files.store]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode not in (0, 1) or not lines:
        raise PerdureError(f"the verifier could not judge: {done.stderr.strip() or f'it ended with {done.returncode}'}")
    return read_verdict(lines[-1])


def _sum_up(shown: Timeline, toll: Toll, verdict: Verdict) -> None:
    for good, sentence in summary(toll, verdict):
        shown.say(f"  {'✓' if good else '✗'} {sentence}", "" if good else "bold red")
    for problem in verdict.problems[:_MOST_PROBLEMS]:
        shown.say(f"    {problem}", "red")
    if len(verdict.problems) > _MOST_PROBLEMS:
        shown.say(f"    ... and {len(verdict.problems) - _MOST_PROBLEMS} more", "red")
