"""Signals while work goes on: the first one is a request, a second interrupt ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import TracebackType

#: What shells make of a process that a signal ended: 128 and its number.
INTERRUPTED = 130

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """`async with Signals() as signals`: `signals.first` is the first one that came."""

    def __init__(self) -> None:
        self.first: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Signals:
        loop = asyncio.get_running_loop()
        for number in HEARD:
            if signal.getsignal(number) != signal.SIG_IGN:  # as after nohup, or in a background job of a script
                loop.add_signal_handler(number, self._heard, number)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in HEARD:
            loop.remove_signal_handler(number)

    def _heard(self, number: signal.Signals) -> None:
        if not self.first.done():
            self.first.set_result(number)
        elif number == signal.SIGINT:
            os._exit(INTERRUPTED)  # what was accepted is durable; nothing here is worth waiting for


class Interrupts:
    """`async with Interrupts() as interrupts`: every signal is told. An interrupt after that was told to leave ends the
    process at once."""

    def __init__(self) -> None:
        self._told: Callable[[str], bool] = lambda name: False
        self._leaving = False
        #: Called before the process ends at once.
        self.restore: Callable[[], None] = lambda: None

    def on_signal(self, told: Callable[[str], bool]) -> None:
        """Call `told` with the name of each signal; it says whether the process leaves now."""
        self._told = told

    async def __aenter__(self) -> Interrupts:
        loop = asyncio.get_running_loop()
        for number in HEARD:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._heard, number)
        return self

    async def __aexit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in HEARD:
            loop.remove_signal_handler(number)

    def _heard(self, number: signal.Signals) -> None:
        if self._leaving and number == signal.SIGINT:
            self.restore()
            os._exit(INTERRUPTED)
        self._leaving = self._told(number.name) or self._leaving
