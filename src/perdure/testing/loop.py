"""An event loop for simulation: virtual time, one callback at a time, in an order drawn from a seed.

Whatever two callbacks are ready at once may run in either order here, so that a race shows up as a failing seed.
Nothing but the seed decides: one seed always runs the same callbacks in the same order, as a digest proves.
For that to hold across processes, code under simulation iterates over no sets, and `fixed_hash_seed` fixes the rest.
There are no threads, no sockets, no processes and no signals.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from perdure.errors import PerdureError, UsageError

T = TypeVar("T")

#: How many of the last steps a failure tells.
_TOLD = 12


class Stuck(PerdureError):
    """Nothing is ready and no timer is set, but the main task has not ended.

    The message lists the pending tasks and where each waits.
    """


class Endless(PerdureError):
    """The main task had not ended after `max_steps` callbacks."""


class Unhandled(PerdureError):
    """Something was reported to the loop's exception handler that carried no exception of its own."""


class Trace(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A finished simulation: what `main` returned, and what identifies the run. `left` names tasks that outlived it."""

    value: T
    digest: str
    steps: int
    time: float
    left: tuple[str, ...]


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop. Time stands still while anything is ready and then jumps to the next timer.

    With `haste` (a part of the steps) it jumps although callbacks are ready, as if those had taken long.
    `after_step` is called after every callback; what it raises ends the run.
    An error that nobody handles (in a plain callback, in a task that nobody awaits) ends the run as well.
    """

    # What BaseEventLoop keeps; its own run would need a selector.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(
        self,
        seed: int,
        *,
        after_step: Callable[[], None] | None = None,
        max_steps: int = 1_000_000,
        haste: float = 0.0,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.steps = 0
        #: The last steps (number, time, what ran), for the message of a failure.
        self.last: deque[tuple[int, float, str]] = deque(maxlen=_TOLD)
        self._after_step = after_step
        self._max_steps = max_steps
        self._haste = haste
        self._random = Random(seed)
        self._time = 0.0
        self._digest = blake2b(digest_size=16)
        self._tasks = 0
        self._thread = threading.get_ident()
        #: Reported to the exception handler and not raised yet.
        self._unhandled: list[MutableMapping[str, Any]] = []
        self.set_exception_handler(_remember)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._time

    @property
    def digest(self) -> str:
        """Of every step so far: which of how many ready callbacks ran, what it was, and when."""
        return self._digest.hexdigest()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """As everywhere. Tasks without a name are counted per loop, not per process, so that names replay."""
        if options.get("name") is None:
            self._tasks += 1
            options["name"] = f"task-{self._tasks}"
        return super().create_task(coro, **options)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """As `call_soon`. Raises UsageError when another thread calls: its timing would not replay."""
        if threading.get_ident() != self._thread:
            raise UsageError(f"another thread called {callback!r} into a simulated loop; run its work on the loop")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:
        """Raises UsageError: a simulated loop has no threads."""
        raise UsageError(f"a simulated loop has no threads to run {func!r} in; give the code under test a port without")

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector that had to be woken."""

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _run_once(self) -> None:
        handle, index, among = self._take()
        if handle is not None:
            what = _describe(handle)
            self.steps += 1
            self._digest.update(f"{index}/{among} {self._time!r} {what}\n".encode())
            self.last.append((self.steps, self._time, what))
            handle._run()
            handle = None  # a frame that an exception keeps would keep the task, and its error would never be reported
            if self._after_step is not None:
                self._after_step()
        if self._unhandled:
            raise _as_error(self._unhandled.pop(0))
        if self.steps >= self._max_steps and not self._stopping:
            raise Endless(f"not done after {self.steps} steps; raise max_steps or find what goes round:{self.tell()}")

    def _take(self) -> tuple[asyncio.Handle | None, int, int]:
        """The callback to run, drawn among those that are ready; None when the loop was told to stop and nothing is."""
        ready = self._ready
        if not ready or (self._haste and self._random.random() < self._haste):
            self._jump()
        while ready:
            among = len(ready)
            index = int(self._random.random() * among)
            handle = ready[index]
            del ready[index]
            if not handle.cancelled():
                return handle, index, among
            if not ready:
                self._jump()
        if self._stopping or self._unhandled:
            return None, 0, 0
        raise Stuck(f"nothing can run any more, and these wait:{_waiting(self)}{self.tell()}")

    def _jump(self) -> None:
        """Move to the next timer that was not cancelled, and make ready whatever is due then."""
        timers = self._scheduled
        due: float | None = None
        while timers and (timers[0].cancelled() or due is None or timers[0].when() <= due):
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if timer.cancelled():
                self._timer_cancelled_count -= 1
                continue
            self._ready.append(timer)
            due = self._time = max(self._time, timer.when())

    def tell(self) -> str:
        """The seed, the digest and the last steps, as lines for a message."""
        lines = "".join(f"\n    {step:>7} {time:>10.4f} s  {what}" for step, time, what in self.last)
        return f"\n  seed {self.seed}, step {self.steps}, {self._time:g} s, digest {self.digest}; last:{lines}"


def run(
    seed: int,
    main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]],
    *,
    after_step: Callable[[], None] | None = None,
    max_steps: int = 1_000_000,
    haste: float = 0.0,
) -> Trace[T]:
    """Run `main(loop)` to its end on a loop of this seed.

    Raises what `main`, `after_step` or a task that nobody awaits raised, `Stuck` or `Endless`; a note tells the seed.
    Tasks that are left are cancelled. The garbage collector rests meanwhile: when it runs, no seed decides.
    """
    collecting = gc.isenabled()
    gc.disable()
    loop = SimulatedLoop(seed, after_step=after_step, max_steps=max_steps, haste=haste)
    try:
        value = loop.run_until_complete(main(loop))
        left = tuple(task.get_name() for task in pending(loop))
        trace = Trace(value=value, digest=loop.digest, steps=loop.steps, time=loop.time(), left=left)
        _retire(loop)
        return trace
    except BaseException as error:
        if not isinstance(error, Stuck | Endless):
            error.add_note(f"simulation failed{loop.tell()}")
        loop.set_exception_handler(lambda _loop, _context: None)
        with suppress(Exception):  # the first failure is the one to tell
            _retire(loop)
        raise
    finally:
        loop.close()
        if collecting:
            gc.enable()


def pending(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """Tasks of a loop that have not ended, in an order that replays."""
    tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
    return sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name()))


def fixed_hash_seed(seed: int = 0) -> None:
    """Start this program again with PYTHONHASHSEED set, unless it is: sets and dictionaries of strings then replay too.

    Call it first thing in a script; it does not return when it has to start again.
    """
    if os.environ.get("PYTHONHASHSEED") == str(seed):
        return
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _retire(loop: SimulatedLoop) -> None:
    """Cancel what is left and let it end, unobserved and within a bound of its own."""
    loop._after_step = None  # pyright: ignore[reportPrivateUsage]
    loop._max_steps = loop.steps + 100_000  # pyright: ignore[reportPrivateUsage]
    left = pending(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())


def _remember(loop: asyncio.AbstractEventLoop, context: MutableMapping[str, Any]) -> None:
    if isinstance(loop, SimulatedLoop) and not loop.is_closed():
        loop._unhandled.append(context)  # pyright: ignore[reportPrivateUsage]
    else:
        loop.default_exception_handler(dict(context))


def _as_error(context: MutableMapping[str, Any]) -> BaseException:
    message = f"reported to the loop: {context.get('message')}"
    error = context.get("exception")
    if not isinstance(error, BaseException):
        return Unhandled(message)
    error.add_note(message)
    return error


def _describe(handle: asyncio.Handle) -> str:
    """Name what a handle runs, without addresses and process-wide counters."""
    callback: Any = handle._callback
    task: Any = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        return f"{task.get_name()} {getattr(coroutine, '__qualname__', type(coroutine).__qualname__)}"
    while isinstance(callback, partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    """A line for each pending task: its name and the innermost place where it waits."""
    return "".join(f"\n    {task.get_name()} at {_place(task.get_coro())}" for task in pending(loop))


def _place(awaitable: Any) -> str:
    where = str(getattr(awaitable, "__qualname__", type(awaitable).__qualname__))
    while (frame := _first(awaitable, "cr_frame", "gi_frame", "ag_frame")) is not None:
        where = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        awaitable = _first(awaitable, "cr_await", "gi_yieldfrom", "ag_await")
    return where


def _first(subject: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(subject, name, None)) is not None), None)


__all__ = ["Endless", "SimulatedLoop", "Stuck", "Trace", "Unhandled", "fixed_hash_seed", "pending", "run"]
