"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from perdure.app.handing_in import HandInSession
from perdure.commands.attending import Attending
from perdure.commands.export import export_to, form_of
from perdure.commands.links import Link, Own, WhenBusy
from perdure.commands.suggestions import did_you_mean
from perdure.commands.text import as_json, one_line
from perdure.errors import UsageError
from perdure.harness.runs import user_message
from perdure.messages import text_of
from perdure.records import Queued, Submission

#: Command: (its argument, what it does).
HELP: Mapping[str, tuple[str, str]] = {
    "help": ("", "this list"),
    "quit": ("", "leave; what is unfinished goes on with perdure resume"),
    "abort": ("", "stop what runs; what waits for its turn stays"),
    "steer": ("TEXT", "reach the agent while it works, at its next step"),
    "unqueue": ("", "take back what waits for its turn, or for the next step; says what"),
    "reset": ("[TEXT]", "start anew; TEXT is all that the model is told of before"),
    "compact": ("[TEXT]", "summarise what is older; TEXT says what to keep"),
    "retry": ("TASK", "let a held task go on"),
    "model": ("[NAME]", "who answers; another one from the next prompt on"),
    "usage": ("", "what this conversation used"),
    "export": ("FILE", "write the transcript: .md, .html or .jsonl"),
}


def _of(record: Submission) -> str:
    """What a queued input says, and whether it was to reach the agent while it works."""
    text = one_line(text_of(user_message(record.content)), 100) if isinstance(record.state, Queued) else ""
    return (", which was said with /steer" if record.mode == "steer" else "") + (f": {text}" if text else "")


class Chat(Protocol):
    """What the commands act on."""

    reader: HandInSession
    attending: Attending | None

    async def say(self, link: Link, text: str, when_busy: WhenBusy = "follow_up") -> None: ...
    def note(self, text: str) -> None: ...
    def abort(self, link: Link) -> None: ...
    def leave(self, why: str) -> None: ...
    def open_anew(self, model: str) -> None: ...


class SlashCommands:
    """Acts on a line. Raises UsageError for what is no command."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._acts: dict[str, Callable[[Link, str], Awaitable[None]]] = {
            name: getattr(self, f"_{name}") for name in HELP
        }

    async def act(self, link: Link, line: str) -> None:
        """Do what the line says."""
        name, _, rest = line[1:].partition(" ")
        name = {"exit": "quit", "?": "help"}.get(name, name)
        if name not in self._acts:
            raise UsageError(
                f"there is no /{name}{did_you_mean(name, HELP)} (/help lists them; "
                "// begins a prompt that begins with a slash)"
            )
        takes = HELP[name][0]
        if bool(rest.strip()) != bool(takes) and not takes.startswith("["):
            raise UsageError(f"/{name} takes {takes or 'nothing'}")
        await self._acts[name](link, rest.strip())

    async def _help(self, link: Link, rest: str) -> None:
        for name, (takes, does) in HELP.items():
            self._chat.note(f"/{name} {takes}".ljust(15) + does)

    async def _quit(self, link: Link, rest: str) -> None:
        self._chat.leave("quit")

    async def _abort(self, link: Link, rest: str) -> None:
        self._chat.abort(link)

    async def _steer(self, link: Link, rest: str) -> None:
        await self._chat.say(link, rest, "steer")

    async def _unqueue(self, link: Link, rest: str) -> None:
        taken = 0
        for id in list(self._open()):
            record = await self._chat.reader.submission(id).record()
            if await link.withdraw(id):
                taken += 1
                self._chat.note(f"taken back{_of(record)}")
        if not taken:
            self._chat.note("nothing waits for its turn")

    def _open(self) -> list[int]:
        return [] if self._chat.attending is None else list(self._chat.attending.open)

    async def _reset(self, link: Link, rest: str) -> None:
        done = await link.reset(self._attended(), rest or None)
        self._chat.note("the model starts anew" if done else "the model starts anew at the next step or answer")

    async def _compact(self, link: Link, rest: str) -> None:
        task = await link.compact(self._attended(), rest or None)
        self._chat.note(f"task {task} summarises what is older; go on meanwhile")

    async def _retry(self, link: Link, rest: str) -> None:
        if not rest.isascii() or not rest.isdigit():
            raise UsageError(f"/retry {rest}: {rest!r} is no task id")
        await link.retry(int(rest[:18]))

    async def _model(self, link: Link, rest: str) -> None:
        if rest:
            self._chat.open_anew(rest)
        elif isinstance(link, Own):
            self._chat.note(link.model.line)
        else:
            self._chat.note("the session's owner answers, with its own model")

    async def _usage(self, link: Link, rest: str) -> None:
        at = self._attended()
        used: dict[str, Any] = await (await self._chat.reader.find(at)).usage()
        for kind in ("models", "tools"):
            for name, counts in used[kind].items():
                self._chat.note(f"{name} {as_json(counts)}")
        if not any(used.values()):
            self._chat.note("nothing was used yet")

    async def _export(self, link: Link, rest: str) -> None:
        file = Path(rest)
        count = await export_to(self._chat.reader, self._attended(), form_of(file), file, thinking=False)
        self._chat.note(f"{count} entries written to {file}")

    def _attended(self) -> int:
        if self._chat.attending is None:
            raise UsageError("nothing was said yet")
        return self._chat.attending.id
