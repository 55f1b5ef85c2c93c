"""Reading files of a JSONL store: whole batches, and what stands behind the last of them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure.backends.jsonl_disk import corrupt
from perdure.backends.jsonl_format import Batch, checks, reference_to
from perdure.backends.jsonl_lines import FORMAT, AnyLine, File, Mark, decode_line
from perdure.errors import SchemaTooNew

CHUNK = 1 << 20


class Reading:
    """The batches of a file from `start` on, up to `stop`. `end` is where the last one that counts ends.

    `torn`: something stands behind it that is no batch. `File.number` is not looked at: copies keep theirs.
    """

    def __init__(self, descriptor: int, path: Path, file: int, start: int, stop: int) -> None:
        self.path = path
        self.end = start
        self.torn = False
        self._descriptor = descriptor
        self._file = file
        self._stop = stop

    def batches(self) -> Iterator[Batch]:
        """Those that count, in order. A line that fits no batch is the end."""
        held: list[Batch] = []
        lines: list[tuple[AnyLine, bytes]] = []
        crc = size = 0
        for at, text in self._lines():
            line = decode_line(text)
            if isinstance(line, File) and line.format > FORMAT:
                raise too_new(self.path, line.format)
            if line is None or (isinstance(line, Mark) and not checks(line, text, crc, size)):
                self.torn = True
                return
            if not isinstance(line, Mark):
                lines.append((line, reference_to(line, self._file, at + len(text) - 1)))
                crc = zlib.crc32(text, crc)
                size += len(text)
                continue
            held.append(Batch(lines, line))
            lines, crc, size = [], 0, 0
            if not line.more:
                self.end = at + len(text)
                yield from held
                held = []
        self.torn = self.torn or self.end < self._stop

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Whole lines with their LF, and where they begin."""
        at, buffer = self.end, b""
        while True:
            position = at + len(buffer)
            chunk = os.pread(self._descriptor, min(CHUNK, self._stop - position), position)
            if not chunk:
                return
            buffer += chunk
            begin = 0
            while (stop := buffer.find(b"\n", begin)) >= 0:
                yield at + begin, buffer[begin : stop + 1]
                begin = stop + 1
            at, buffer = at + begin, buffer[begin:]


def too_new(path: Path, format: int) -> SchemaTooNew:
    return SchemaTooNew(
        f"{path} has format {format}, this perdure knows up to {FORMAT}: a newer one wrote it; install that one"
    )


def check_tail(descriptor: int, path: Path, end: int, stop: int) -> None:
    """Raise StorageCorrupt where what stands behind `end` is damage, not the torn rest of a last write.

    A whole batch there that was written when the file was on the disk beyond `end` shows that what is missing between
    them had been kept. Nobody was told of what was torn.
    """
    at = end
    rest = os.pread(descriptor, stop - end, end)
    for text in [each + b"\n" for each in rest.split(b"\n")[:-1]]:
        line = decode_line(text)
        if isinstance(line, Mark):
            mark: Any = line
            begin = at - mark.bytes
            crc = zlib.crc32(rest[max(begin - end, 0) : at - end])
            if begin >= end and mark.synced > end and checks(mark, text, crc, mark.bytes):
                raise corrupt(path, f"its bytes from {end} on are damaged, whole commits follow at {begin}")
        at += len(text)


def begins(path: Path) -> File | None:
    """The first line of a file; None where it has none yet, or the file is gone."""
    try:
        with path.open("rb") as file:
            text = file.readline()
    except FileNotFoundError:
        return None
    line = decode_line(text[:-1]) if text.endswith(b"\n") else None
    if not isinstance(line, File):
        return None
    if line.format > FORMAT:
        raise too_new(path, line.format)
    return line
