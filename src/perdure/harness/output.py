"""Bounded output: what a tool printed, within a limit, and exactly how much of it was left out (H21).

What is dropped is dropped while it streams, so that a gigabyte costs as much memory as the limit (I75).
Bytes are kept as they came and decoded only where they are shown: characters split over two chunks stay whole (I76).
"""

from __future__ import annotations

import bisect
import codecs
from typing import Literal, NamedTuple

from perdure.errors import UsageError
from perdure.values import clean_text

Keep = Literal["head", "tail", "both"]

LIMIT_BYTES = 50 * 1024
LIMIT_LINES = 2000
NEWLINE = ord("\n")


class Output:
    """What was printed so far.

    Invariant: `_head` begins all bytes fed, the last `limit_bytes` + 1 of `_tail` end them, and both are bounded.
    The limits hold for what is kept, as UTF-8 and in lines; the note about what was dropped comes on top.
    A last line without its newline counts as none, so a line longer than the limit is cut inside.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES, limit_lines: int = LIMIT_LINES, keep: Keep = "head") -> None:
        if limit_bytes < 1 or limit_lines < 1:
            raise UsageError(
                f"an output keeps at least 1 byte and 1 line, not {limit_bytes} bytes and {limit_lines} lines"
            )
        self._limit_bytes = limit_bytes
        self._limit_lines = limit_lines
        self._keep: Keep = keep
        #: The first `limit_bytes`.
        self._head = bytearray()
        #: Trimmed when it is twice the limit. Empty while `_head` has everything.
        self._tail = bytearray()
        self._total = 0
        self._newlines = 0
        self._closed = False
        #: How many bytes `delta` has handed out, and their length as cleaned UTF-8.
        self._given = 0
        self._given_size = 0
        #: `_total` when `delta` last said that everything must be read again.
        self._replaced_at: int | None = None

    @property
    def total_bytes(self) -> int:
        """All bytes fed, kept or not."""
        return self._total

    def feed(self, chunk: bytes | str) -> None:
        """Take in more. Costs no more than a copy of the chunk."""
        data = clean_text(chunk).encode() if isinstance(chunk, str) else chunk
        self._total += len(data)
        self._newlines += data.count(b"\n")
        room = self._limit_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        if not self._tail:
            self._tail += self._head
        most = self._limit_bytes + 1  # the one before tells whether a line begins
        self._tail += data[-most:]
        if len(self._tail) > 2 * most:
            del self._tail[:-most]

    def close(self) -> None:
        """Nothing more comes: half a character at the end is shown as one that is broken."""
        self._closed = True

    @property
    def truncated(self) -> bool:
        """Whether `text()` leaves something out."""
        return self._overfull() or self._window().dropped_bytes > 0

    def text(self) -> str:
        """What is kept, cleaned, with a line that says how much was dropped."""
        window = self._window()
        head, tail = (_decode(part, final=True)[0] for part in (window.head, window.tail))
        if not window.dropped_bytes:
            return head + tail
        note = f"[… {_amount(window.dropped_lines, window.dropped_bytes)} left out …]"
        if head and not head.endswith("\n"):
            head += "\n"
        return f"{head}{note}\n{tail}" if tail else f"{head}{note}"

    def delta(self) -> str | None:
        """What was added since the last call.

        None when something that was given before is dropped, or the note about that changed: take `text()` then.
        """
        if self._replaced_at is None and not self._overfull():
            fresh, consumed = _decode(bytes(self._head[self._given :]), final=self._closed)
            size = self._given_size + len(fresh.encode())
            if size <= self._limit_bytes:
                self._given += consumed
                self._given_size = size
                return fresh
        if self._replaced_at == self._total:
            return ""
        self._replaced_at = self._total
        return None

    def _overfull(self) -> bool:
        return self._total > self._limit_bytes or self._newlines > self._limit_lines

    def _window(self) -> _Window:
        if not self._overfull():
            everything = self._shown(bytes(self._head))
            if _size(everything) <= self._limit_bytes:
                return _Window(everything, b"", 0, 0)
        head = b"" if self._keep == "tail" else self._head_part()
        tail = b"" if self._keep == "head" else self._tail_part(head)
        kept = len(head) + len(tail)
        return _Window(head, tail, self._total - kept, self._newlines - head.count(b"\n") - tail.count(b"\n"))

    def _head_part(self) -> bytes:
        share = 1 if self._keep == "head" else 2
        most = self._limit_bytes // share
        part = _first_lines(bytes(self._head[:most]), max(1, self._limit_lines // share))
        part = _whole_prefix(part, most)
        end = part.rfind(b"\n") + 1
        return part[:end] if end >= len(part) * 3 // 4 else part

    def _tail_part(self, head: bytes) -> bytes:
        most = self._limit_bytes - _size(head)
        rest = min(most, self._total - len(head))
        held = self._tail or self._head
        part = bytes(held[-rest:]) if rest > 0 else b""
        part = _last_lines(part, self._limit_lines - head.count(b"\n"))
        part = _whole_suffix(part, most)
        before = len(held) - len(part) - 1
        if before >= 0 and held[before] != NEWLINE:
            start = part.find(b"\n") + 1
            part = part[start:] if 0 < start <= len(part) // 4 else part
        return self._shown(part)

    def _shown(self, part: bytes) -> bytes:
        """Half a character at the end of what came so far is not shown: its other half may come."""
        return part if self._closed else part[: _decode(part, final=False)[1]]


class _Window(NamedTuple):
    head: bytes
    tail: bytes
    dropped_bytes: int
    dropped_lines: int


def _decode(data: bytes, *, final: bool) -> tuple[str, int]:
    text, consumed = codecs.utf_8_decode(data, "replace", final)
    return clean_text(text), consumed


def _size(data: bytes) -> int:
    """Length in UTF-8 once decoded and cleaned: a byte that is no character becomes three."""
    return len(_decode(data, final=True)[0].encode())


def _whole_prefix(data: bytes, most: int) -> bytes:
    """The longest prefix of whole characters that takes at most `most` bytes when shown."""
    data = data[: _decode(data, final=False)[1]]
    if _size(data) > most:
        data = data[: bisect.bisect_right(range(len(data) + 1), most, key=lambda n: _size(data[:n])) - 1]
    return data


def _whole_suffix(data: bytes, most: int) -> bytes:
    """The longest suffix of whole characters that takes at most `most` bytes when shown."""
    data = _untorn(data)
    if _size(data) > most:
        length = bisect.bisect_right(range(len(data) + 1), most, key=lambda n: _size(data[len(data) - n :])) - 1
        data = _untorn(data[len(data) - length :])
    return data


def _untorn(data: bytes) -> bytes:
    """Without the end of a character whose beginning is not there: its bytes alone would take more than it did."""
    none = 0 if len(data) > 3 else len(data)  # four such bytes belong to no character at all
    torn = next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), none)
    return data[torn:]


def _first_lines(data: bytes, lines: int) -> bytes:
    end = -1
    for _ in range(lines):
        end = data.find(b"\n", end + 1)
        if end < 0:
            return data
    return data[: end + 1]


def _last_lines(data: bytes, lines: int) -> bytes:
    start = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(max(0, lines)):
        start = data.rfind(b"\n", 0, start)
        if start < 0:
            return data
    return data[start + 1 :]


def _amount(lines: int, count: int) -> str:
    """ "1,234 lines, 56,789 bytes"; a part of one line is bytes only."""
    of_bytes = f"{count:,} byte{'s' if count != 1 else ''}"
    return f"{lines:,} line{'s' if lines != 1 else ''}, {of_bytes}" if lines else of_bytes


def clip(text: str, most: int) -> str:
    """The text if it has at most `most` characters, else its beginning and how many were left out."""
    return text if len(text) <= most else f"{text[:most]}[… {len(text) - most:,} more characters]"


#: A text of so many characters is within the limits of an output.
SHORT = min(LIMIT_BYTES // 4, LIMIT_LINES)


def bounded(text: str | bytes, keep: Keep) -> str:
    """The text within the limits of an output."""
    if isinstance(text, str) and len(text) <= SHORT:  # it fits, however many bytes and lines it has
        return clean_text(text)
    output = Output(keep=keep)
    output.feed(text)
    output.close()
    return output.text()
