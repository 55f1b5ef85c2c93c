"""Programs that start other programs: what is judged is what they start, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from perdure.extensions.script import Command, Script, Unclear
from perdure.extensions.shell import read_script

Words = Sequence[str | None]


class Wrapper(msgspec.Struct, frozen=True, kw_only=True):
    """How the command of others is found after a program's own options.

    `flags` and `valued` are its options, those that take a value in `valued`; `before` counts words of its own.
    One that `judged` names is judged itself as well: it gives more rights, or does more than to start a command.
    """

    flags: tuple[str, ...] = ()
    valued: tuple[str, ...] = ()
    before: int = 0
    assigns: bool = False
    judged: bool = False
    adds: bool = False  #: words that are only known when it runs


WRAPPERS: dict[str, Wrapper] = {
    "nohup": Wrapper(),
    "setsid": Wrapper(flags=("-c", "-f", "-w")),
    "nice": Wrapper(valued=("-n", "--adjustment")),
    "ionice": Wrapper(flags=("-t",), valued=("-c", "-n")),
    "timeout": Wrapper(
        flags=("--foreground", "--preserve-status", "-v", "--verbose"),
        valued=("-k", "-s", "--kill-after", "--signal"),
        before=1,
    ),
    "stdbuf": Wrapper(valued=("-i", "-o", "-e", "--input", "--output", "--error")),
    "command": Wrapper(flags=("-p",)),
    "builtin": Wrapper(),
    "exec": Wrapper(flags=("-c", "-l"), valued=("-a",)),
    "time": Wrapper(flags=("-p", "-v")),
    "env": Wrapper(flags=("-i", "-", "-0", "--ignore-environment"), valued=("-u", "--unset"), assigns=True),
    "xargs": Wrapper(
        flags=("-0", "-r", "-t", "-x", "--null", "--no-run-if-empty", "--verbose", "--exit"),
        valued=("-n", "-P", "-L", "-I", "-d", "-s", "-E", "--max-args", "--max-procs", "--max-lines", "--delimiter"),
        adds=True,
    ),
    "sudo": Wrapper(flags=("-n", "-E", "-H", "-k"), valued=("-u", "-g"), assigns=True, judged=True),
    "doas": Wrapper(flags=("-n",), valued=("-u",), judged=True),
}
_SHELLS = frozenset({"bash", "sh", "dash"})
_SHELL_FLAGS = frozenset("eulx")
#: What of find starts a command, up to a `;` or a `+`; and what of it writes to a file that it names.
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_WRITES = frozenset({"-fprint", "-fprint0", "-fprintf", "-fls"})


def read_all(text: str) -> Script:
    """What a text does, with what the programs in it start. Raises Unclear."""
    script = read_script(text)
    found: list[Command] = []
    for command in script.commands:
        found.extend(_started(command, script))
    script.commands = found
    return script


def _started(command: Command, script: Script) -> Iterator[Command]:
    """The commands to judge for this one, itself among them where it does something of its own."""
    words = command.words
    match words[0]:
        case None:
            raise Unclear("which program is run is only known when it runs")
        case "eval":
            yield from _text(" ".join(map(_known, words[1:])), command, script)
        case "find":
            yield from _found(command, script)
        case name if name in _SHELLS and (text := _given(words)) is not None:
            yield from _text(text, command, script)
        case name if name in WRAPPERS:
            yield from _wrapped(WRAPPERS[name], command, script)
        case _:
            yield command


def _wrapped(wrapper: Wrapper, command: Command, script: Script) -> Iterator[Command]:
    name, rest = command.words[0], list(command.words[1:])
    if wrapper.judged:
        yield command
    while rest and (rest[0] is None or rest[0].startswith("-")):
        option = _known(rest.pop(0))
        if option == "--":
            break
        if option in wrapper.valued and rest:
            rest.pop(0)
        elif not _taken(option, wrapper):
            raise Unclear(f"what {name} {option} runs is not read")
    assigned = list(command.assigned)
    while wrapper.assigns and rest and "=" in _known(rest[0]):
        assigned.append(_known(rest.pop(0)).partition("=")[0])
    del rest[: wrapper.before]
    if not rest:  # nothing is started
        if not wrapper.judged:
            yield command
        return
    replaced = [
        None if word is not None and wrapper.adds and _placeholder(word, command.words) else word for word in rest
    ]
    inner = Command((*replaced, *((None,) if wrapper.adds else ())), tuple(assigned))
    yield from _started(inner, script)


def _taken(option: str, wrapper: Wrapper) -> bool:
    """Whether an option is known, alone or with its value in the same word."""
    if option in wrapper.flags:
        return True
    if option.startswith("--"):
        return option.partition("=")[0] in wrapper.valued
    letters = option[1:]
    return option[:2] in wrapper.valued or (bool(letters) and all(f"-{each}" in wrapper.flags for each in letters))


def _placeholder(word: str, words: Words) -> bool:
    """Whether xargs puts something else in the place of this word, or of a part of it."""
    for at, option in enumerate(words):
        if option is not None and option.startswith("-I"):
            sign = option[2:] or (words[at + 1] if at + 1 < len(words) else None)
            if sign is None or sign in word:
                return True
    return False


def _given(words: Words) -> str | None:
    """The text that a shell is given with -c; None where it is not started like that. Raises Unclear."""
    for at, word in enumerate(words[1:], 1):
        option = _known(word)
        if not option.startswith(("-", "+")):
            return None
        if option in ("-o", "+o") or not option.startswith("-") or option.startswith("--"):
            raise Unclear(f"a shell with {option} is not read")
        if set(option[1:]) - _SHELL_FLAGS - {"c"}:
            raise Unclear(f"a shell with {option} is not read")
        if "c" in option:
            if at + 1 >= len(words):
                return None
            text = _known(words[at + 1])
            if text.startswith("-"):
                raise Unclear(f"a shell with {text} is not read")
            return text
    return None


def _text(text: str, command: Command, script: Script) -> Iterator[Command]:
    """A text that is run as commands: it does what it says, with the variables that are set for it."""
    inner = read_all(text)
    script.writes += inner.writes
    script.reads += inner.reads
    script.assigned += inner.assigned
    for each in inner.commands:
        yield Command(each.words, (*command.assigned, *each.assigned))


def _found(command: Command, script: Script) -> Iterator[Command]:
    """What find starts, deletes and writes."""
    yield command
    words = list(command.words)
    at = 1
    while at < len(words):
        word = words[at]
        at += 1
        if word in _FIND_RUNS:
            inner: list[str | None] = []
            while at < len(words) and words[at] != ";" and not (words[at] == "+" and inner and inner[-1] is None):
                inside = words[at]
                inner.append(None if inside is not None and "{}" in inside else inside)
                at += 1
            if at >= len(words) or not inner:
                raise Unclear("what find runs does not end")
            at += 1
            yield from _started(Command(tuple(inner), command.assigned), script)
        elif word == "-delete":
            yield Command(("rm", None), command.assigned)
        elif word in _FIND_WRITES:
            script.writes.append(words[at] if at < len(words) else None)
        elif word is None:
            raise Unclear("what find does is only known when it runs")


def _known(word: str | None) -> str:
    if word is None:
        raise Unclear("what is run is only known when it runs")
    return word
