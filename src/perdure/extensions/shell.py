"""What a shell command would run: read exactly as bash reads it, or not at all.

Only what is needed to say which programs are started, which files are opened and which variables are set: quotes,
lists, pipelines, groups, subshells, loops and conditions, substitutions, redirections, assignments, here-documents.
For everything else it raises Unclear. What bash itself would refuse may be read as anything: then nothing runs.

Invariant: every program that bash starts for a text that is read is among the commands, or a word of it is None.
"""

from __future__ import annotations

import re

import msgspec

from perdure.extensions.script import Command, Script, Unclear

#: No longer text is read.
MOST_TEXT = 100_000


class Word(msgspec.Struct, frozen=True):
    """`text` after quotes were removed; `bare`: nothing of it was quoted or expanded."""

    text: str | None
    bare: bool


#: Words that begin or end a part of a compound command: what follows is a command again.
_AROUND = frozenset(["if", "then", "else", "elif", "fi", "while", "until", "do", "done", "{", "}", "!", "time"])
#: Words that begin what is not read here.
_UNREAD = frozenset(["case", "esac", "function", "select", "coproc"])
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!_-]", re.ASCII)
_BRACED = re.compile(r"#?(?P<name>[A-Za-z_]\w*|[0-9]+|[@*?$-])(?P<operator>:?[-=?+]|%%?|##?|//?|\^\^?|,,?)?", re.ASCII)
_NUMBERS = re.compile(r"\(\([0-9 \t+*/%<>=!&|^~?:,-]*\)\)")
_REDIRECTIONS = ("&>>", "&>", "<<<", "<<-", "<<", "<>", "<&", ">>", ">&", ">|", "<", ">")
#: What stands before a redirection, and is no word.
_NUMBER = re.compile(r"[0-9]+|\{[A-Za-z_]\w*\}", re.ASCII)
_DESCRIPTOR = re.compile(r"([0-9]+-?|-)\Z")
#: What is opened there reaches no file.
_NOWHERE = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin"})


def read_script(text: str) -> Script:
    """What bash does with the text. Raises Unclear."""
    if len(text) > MOST_TEXT or "\0" in text:
        raise Unclear("it is too long, or holds a NUL")
    found = Script()
    try:
        _Reader(text, found).commands(closing=False)
    except RecursionError:
        raise Unclear("it is nested too deeply") from None
    return found


class _Here(msgspec.Struct, frozen=True):
    """A here-document that begins after this line."""

    end: str
    quoted: bool
    tabs: bool


class _Reader:
    """Invariant: `at` is where bash stands too; what was read before it is in `found`."""

    def __init__(self, text: str, found: Script) -> None:
        self.text = text
        self.at = 0
        self.found = found
        #: Here-documents that were announced in this line.
        self.here: list[_Here] = []

    def peek(self, ahead: int = 0) -> str:
        return self.text[self.at + ahead : self.at + ahead + 1]

    def begins(self, *what: str) -> bool:
        return self.text.startswith(what, self.at)

    def redirects(self) -> bool:
        return self.peek() in ("<", ">") and not self.begins("<(", ">(")

    # -- lists of commands ------------------------------------------------------------------

    def commands(self, *, closing: bool) -> None:
        """Commands up to the end, or to the parenthesis that closes them."""
        while True:
            self.blanks()
            char = self.peek()
            if char == "\n":
                self.newline()
            elif char in ("", ")"):
                self.end(closing=closing)
                return
            elif char in ";|" or (char == "&" and not self.begins("&>")):
                if self.begins(";;", ";&"):
                    raise Unclear("a case is not read")
                self.at += 1
            elif char == "(":
                if self.begins("(("):
                    raise Unclear("arithmetic is not read")
                self.at += 1
                self.commands(closing=True)
            else:
                self.simple()

    def end(self, *, closing: bool) -> None:
        if (self.peek() == ")") != closing:
            raise Unclear("its parentheses do not match")
        if self.here:
            raise Unclear("a here-document does not begin")
        self.at += 1

    def blanks(self) -> None:
        """Go to the next token, over a comment."""
        while True:
            if self.peek() in (" ", "\t"):
                self.at += 1
            elif self.begins("\\\n"):
                self.continued()
            else:
                break
        if self.peek() == "#":
            found = self.text.find("\n", self.at)
            self.at = len(self.text) if found < 0 else found

    def continued(self) -> None:
        """A line goes on in the next. Where that joins what would be an operator it is not read."""
        before = self.text[self.at - 1 : self.at]
        if not (before in (" ", "\t", "\n") or before.isalnum()):
            raise Unclear("a line goes on inside an operator")
        self.at += 2

    def newline(self) -> None:
        self.at += 1
        here, self.here = self.here, []
        for each in here:
            self.document(each)

    def document(self, here: _Here) -> None:
        """The lines of a here-document. What is expanded in them is read."""
        body: list[str] = []
        while True:
            if self.at >= len(self.text):
                raise Unclear("a here-document does not end")
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line, self.at = self.text[self.at : stop], min(stop + 1, len(self.text))
            if (line.lstrip("\t") if here.tabs else line) == here.end:
                break
            if not here.quoted and line.endswith("\\"):
                raise Unclear("a line of a here-document goes on in the next")
            body.append(line)
        if not here.quoted:
            _Reader("\n".join(body), self.found).expanded(until="")

    # -- a command --------------------------------------------------------------------------

    def simple(self) -> None:
        """One command; or a word after which a command stands again."""
        words: list[str | None] = []
        assigned: list[str] = []
        first = True
        while True:
            self.blanks()
            char = self.peek()
            if char in ("", "\n", ";", "|", ")") or (char == "&" and not self.begins("&>")):
                break
            if char == "&" or self.redirects():
                self.redirection()
                first = False
                continue
            if char == "(":
                raise Unclear("functions and arrays are not read")
            begin = self.at
            word = self.word()
            if word.bare and word.text is not None and _NUMBER.fullmatch(word.text) and self.peek() in ("<", ">"):
                continue  # the number of a descriptor
            if first and word.bare and self.reserved(word.text or ""):
                return
            first = False
            name = _ASSIGNMENT.match(self.text, begin, self.at) if not words else None
            if name is not None:
                assigned.append(name[1])
            else:
                words.append(word.text)
        if words:
            self.found.commands.append(Command(tuple(words), tuple(assigned)))
        else:
            self.found.assigned += assigned

    def reserved(self, word: str) -> bool:
        """Whether this first word is one of the grammar, and was acted on."""
        if word in _UNREAD:
            raise Unclear(f"{word} is not read")
        if word == "for":
            self.loop()
            return True
        if word == "time":
            self.blanks()
            if self.begins("-p ", "-p\t"):
                self.at += 2
        return word in _AROUND

    def loop(self) -> None:
        """`for NAME [in WORD…]`, up to what ends that line."""
        self.blanks()
        name = "" if self.peek() in "(<>&|;\n)" else self.word().text or ""
        if not _NAME.fullmatch(name):
            raise Unclear("this kind of loop is not read")
        self.found.assigned.append(name)
        self.blanks()
        if not self.begins("in ", "in\t", "in;", "in\n"):
            return  # `do`, which is next, or bash refuses it
        self.at += 2
        while True:
            self.blanks()
            if self.peek() in ("", ";", "\n"):
                return
            if self.peek() in "()&|" or self.redirects():
                raise Unclear("this kind of loop is not read")
            self.word()

    def redirection(self) -> None:
        operator = next(each for each in _REDIRECTIONS if self.begins(each))
        self.at += len(operator)
        self.blanks()
        if self.peek() in ("", "\n", ";", "|", "&", "(", ")") or self.redirects():
            raise Unclear("a redirection goes nowhere")
        begin = self.at
        target = self.word().text
        if operator in ("<<", "<<-"):
            self.announce(self.text[begin : self.at], target, tabs=operator == "<<-")
        elif operator == "<<<" or target in _NOWHERE or (operator[1:] == "&" and _DESCRIPTOR.match(target or "")):
            return
        elif operator == "<&":
            raise Unclear("it reads from a descriptor that is only known when it runs")
        elif operator == "<":
            self.found.reads.append(target)
        else:
            self.found.writes.append(target)

    def announce(self, written: str, end: str | None, *, tabs: bool) -> None:
        if end is None or any(char in written for char in "$`\n"):
            raise Unclear("the end of a here-document is only known when it runs")
        self.here.append(_Here(end, any(char in written for char in "'\"\\"), tabs))

    # -- words ------------------------------------------------------------------------------

    def word(self) -> Word:
        """Up to what ends a word."""
        begin, parts, known, bare = self.at, [""], True, True
        while char := self.peek():
            if char in " \t\n;|&()" or self.redirects():
                break
            if self.begins("\\\n"):
                self.continued()
                continue
            if char in "\\'\"$`<>":
                bare = False
                part = self.special(char)
                known = known and part is not None
                parts.append(part or "")
                continue
            known = known and char not in "*?~"
            parts.append(char)
            self.at += 1
        written = self.text[begin : self.at]
        globs = "[" in written and written not in ("[", "[[")
        braces = "{" in written and ("," in written or ".." in written)
        return Word("".join(parts) if known and not globs and not braces else None, bare)

    def special(self, char: str) -> str | None:
        """A part that is quoted or expanded; None where it is only known when it runs."""
        if char in "<>":
            self.at += 2
            self.commands(closing=True)
            return None
        if char == "\\":
            found = self.peek(1)
            if not found:
                raise Unclear("it ends with a backslash")
            self.at += 2
            return found
        if char == "'":
            return self.quoted()
        if char == '"':
            self.at += 1
            return self.expanded(until='"')
        return self.backquoted() if char == "`" else self.dollar(quoted=False)

    def quoted(self) -> str:
        stop = self.text.find("'", self.at + 1)
        if stop < 0:
            raise Unclear("a quotation mark is not closed")
        found, self.at = self.text[self.at + 1 : stop], stop + 1
        return self.within(found)

    def within(self, quoted: str) -> str:
        if "\n" in quoted and self.here:
            raise Unclear("a line of a quotation stands before a here-document")
        return quoted

    def expanded(self, *, until: str) -> str | None:
        """Up to a double quotation mark; of a here-document, up to its end."""
        parts: list[str] = []
        known = True
        while True:
            char = self.peek()
            if char == until:
                self.at += 1
                return self.within("".join(parts)) if known else None
            if not char:
                raise Unclear("a quotation mark is not closed")
            if self.begins("\\\n"):
                self.continued()
            elif char == "\\" and self.peek(1) in ("$", "`", '"', "\\"):
                parts.append(self.peek(1))
                self.at += 2
            elif char in "$`":
                part = self.backquoted() if char == "`" else self.dollar(quoted=True)
                known = known and part is not None
                parts.append(part or "")
            else:
                if char == "\n":
                    self.within(char)
                parts.append(char)
                self.at += 1

    def backquoted(self) -> None:
        stop = self.text.find("`", self.at + 1)
        inside = self.text[self.at + 1 : stop]
        if stop < 0 or "\\" in inside or ("\n" in inside and self.here):
            raise Unclear("a command in backquotes is not read")
        _Reader(inside, self.found).commands(closing=False)
        self.at = stop + 1

    def dollar(self, *, quoted: bool) -> str | None:
        """What a dollar sign begins; it stands for itself before anything else."""
        self.at += 1
        char = self.peek()
        if char == "(":
            self.substituted()
        elif char == "{":
            self.at += 1
            self.braced(quoted=quoted)
        elif char == "'" and not quoted:
            self.escaped()
        elif char == '"' and not quoted:
            self.at += 1
            self.expanded(until='"')
        elif char == "[" or self.begins("\\\n"):
            raise Unclear("arithmetic is not read")
        elif found := _VARIABLE.match(self.text, self.at):
            self.at = found.end()
        else:
            return "$"
        return None

    def substituted(self) -> None:
        """`$(…)`, and `$((…))` of plain numbers: variables in it could hold commands."""
        if self.begins("(("):
            numbers = _NUMBERS.match(self.text, self.at)
            if numbers is None:
                raise Unclear("arithmetic is not read")
            self.at = numbers.end()
            return
        self.at += 1
        self.commands(closing=True)

    def escaped(self) -> None:
        """`$'…'`."""
        self.at += 1
        while (char := self.peek()) != "'":
            if not char:
                raise Unclear("a quotation mark is not closed")
            self.at += 2 if char == "\\" else 1
        self.at += 1

    def braced(self, *, quoted: bool) -> None:
        """`${…}`: a variable, with what is done to it."""
        found = _BRACED.match(self.text, self.at)
        if found is None:
            raise Unclear("this kind of ${…} is not read")
        self.at = found.end()
        operator = found["operator"] or ""
        if operator in ("=", ":="):
            self.found.assigned.append(found["name"])
        if not operator and self.peek() != "}":
            raise Unclear("this kind of ${…} is not read")
        while (char := self.peek()) != "}":
            if not char or char in "{<>&" or (char == "'" and quoted) or self.begins("\\\n") or char == "\n":
                raise Unclear("this kind of ${…} is not read")
            if char in "\\'\"$`":
                self.special(char) if char != "$" else self.dollar(quoted=quoted)
            else:
                self.at += 1
        self.at += 1
