"""The command line: `perdure COMMAND`. Each command is loaded when it is used, by its name in the table."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from perdure.commands.visible import visible
from perdure.errors import NotFound, PerdureError, UsageError

#: Command: (module, attribute, what `--help` says of it).
COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "run": ("perdure.commands.run", "run", "Give the agent a task and watch it work."),
    "chat": ("perdure.commands.chat", "chat", "Talk with the agent, line by line."),
    "resume": ("perdure.commands.resume", "resume", "Go on with unfinished work."),
    "ls": ("perdure.commands.ls", "ls", "List conversations, or the sessions of a store."),
    "show": ("perdure.commands.show", "show", "Show the transcript of a conversation."),
    "tree": ("perdure.commands.tree", "tree", "Draw the conversations: forks, and those that tasks own."),
    "usage": ("perdure.commands.usage", "usage", "Show tokens and cost, by model and by tool."),
    "export": ("perdure.commands.export", "export", "Write a whole transcript as Markdown, JSON lines or HTML."),
    "inspect": (
        "perdure.commands.inspect",
        "inspect",
        "Show live tasks, waiting inputs, questions, and who owns the session.",
    ),
    "abort": ("perdure.commands.abort", "abort", "Stop a conversation's work, a task, or take an input back."),
    "fork": ("perdure.commands.fork", "fork", "Make a conversation that goes another way from an entry."),
    "rm": ("perdure.commands.rm", "rm", "Delete a conversation."),
    "prune": ("perdure.commands.prune", "prune", "Forget ended tasks and settled inputs by age."),
    "compact": ("perdure.commands.compact", "compact", "Summarise what is older in a conversation."),
    "reset": ("perdure.commands.reset", "reset", "Start what the model is shown of a conversation anew."),
    "retry": ("perdure.commands.retry", "retry", "Let a held task go on."),
    "answer": ("perdure.commands.answer", "answer", "Answer a question that work waits for."),
    "jobs": ("perdure.commands.jobs", "jobs", "List, read and end commands that run in the background."),
    "doctor": ("perdure.commands.doctor", "doctor", "Say what is found here and why, and what is broken."),
    "db": ("perdure.commands.db", "db", "Check a store, or back it up."),
    "config": ("perdure.commands.config", "config", "Show what is configured, and where."),
    "demo": (
        "perdure.commands.demo.command",
        "demo",
        "Kill an agent again and again, and verify that nothing was lost.",
    ),
}

#: What shells make of these ends: 128 and the number of the signal.
INTERRUPTED, PIPE_CLOSED = 130, 141


class Commands(click.Group):
    """Commands that are imported when they are used. Every end of a command is an exit code, every failure one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            suggest = importlib.import_module("perdure.commands.suggestions").did_you_mean
            raise click.UsageError(f"there is no command {args[0]!r}{suggest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; where nobody reads its output any more, click would make its own end of that."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _forget_stdout()
            return PIPE_CLOSED

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        code = 1
        try:
            code = self._code(args)
            if (told := _stdout_failure()) is not None:
                code = _fail(told, code or 1)
        except BrokenPipeError:
            code = PIPE_CLOSED
            _forget_stdout()
        except KeyboardInterrupt:
            code = INTERRUPTED
        sys.exit(code)

    def _code(self, args: Sequence[str] | None) -> int:
        """Run the command that the arguments name; what it returns is the exit code."""
        try:
            result = super().main(args=args, prog_name="perdure", standalone_mode=False)
            return result if isinstance(result, int) else 0
        except click.exceptions.NoArgsIsHelpError as error:
            error.show(sys.stderr)
            return error.exit_code
        except click.Abort:
            return INTERRUPTED
        except click.ClickException as error:
            return _fail(_of_click(error), error.exit_code)
        except (UsageError, NotFound) as error:
            return _fail(str(error), 2)
        except PerdureError as error:
            return _fail(str(error), 1)
        except BrokenPipeError:
            raise
        except Exception as error:
            if (told := _stdout_failure(error)) is not None:
                return _fail(told, 1)
            name = type(error).__name__
            return _fail(f"an error that perdure did not expect: {name}: {error} (PERDURE_DEBUG=1 shows where)", 1)


def _of_click(error: click.ClickException) -> str:
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message.rstrip('.')} (see {context.command_path} --help)"


#: What messages say to programs, and what that is to who types a command.
_IN_CODE = (
    ("take_over=True", "--take-over"),
    ("kill=True", "--kill"),
    ("check the path, or open it to write, that makes one", "perdure run makes one, --store names another"),
    ("open it to write first", "perdure run makes one of it"),
    ("open it once to write, to migrate it", "perdure resume migrates it"),
)


def _fail(message: str, code: int) -> int:
    """One line on standard error; with PERDURE_DEBUG where it came from, too."""
    if os.environ.get("PERDURE_DEBUG"):
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        for in_code, here in _IN_CODE:
            message = message.replace(in_code, here)
        print(f"perdure: {visible(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code


#: What writing raises where there is no space for it: files that are opened by name say their name.
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def _stdout_failure(raised: Exception | None = None) -> str | None:
    """Why standard output took nothing, where it did not; what is left in its buffer is given up then.

    Raises BrokenPipeError where nobody reads it any more.
    """
    failed = raised if isinstance(raised, OSError) and raised.errno in _UNWRITABLE and raised.filename is None else None
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        failed = error
    if failed is None:
        return None
    _forget_stdout()
    return f"standard output cannot be written: {failed.strerror or failed}"


def _forget_stdout() -> None:
    """Nobody reads standard output any more: what is still in its buffer must not be missed at the exit either."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _speak_utf8() -> None:
    """Output is UTF-8 whatever the locale is; what cannot be written stops nothing. A closed stream goes nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[attr-defined]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="perdure", prog_name="perdure", message="%(prog)s %(version)s")
def cli() -> None:
    """perdure runs AI agents that survive: kill it at any moment, and it goes on where it was.

    Work is kept in a store (a file, .perdure/store.db by default). Other shells may look at it and hand things in while
    a process works in it.
    """


def main() -> NoReturn:
    """The entry of `perdure` and of `python -m perdure`."""
    _speak_utf8()
    cli.main()


if __name__ == "__main__":
    main()
