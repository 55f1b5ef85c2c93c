"""What the directory of a JSONL store holds, read line by line with the standard library alone."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure.testing.scenario.stored import TABLES, Stored, stored_of, timeless

Row = tuple[Any, ...]
Counted = tuple[dict[str, Any], list[tuple[dict[str, Any], bytes]]]


class RawLines:
    """A store with one session. Raises AssertionError where it is damaged."""

    def __init__(self, path: Path) -> None:
        self._rows: dict[str, dict[Any, Row]] = {table: {} for table in TABLES}
        self._session: list[Row] = []
        for directory in sorted(path.glob("sessions/*")):
            self._read(directory)

    def __enter__(self) -> RawLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def records(self) -> Stored:
        tables = ("conversation", "entry", "task", "submission", "inbound")
        return stored_of(**{table: [row[-1] for row in self._rows[table].values()] for table in tables})

    def digest(self) -> str:
        """Of everything that another opening must not change."""
        state = hashlib.blake2b(digest_size=16)
        for table in TABLES:
            state.update(f"{table} {sorted(map(repr, self._rows[table].values()))}\n".encode())
        state.update(repr(self._session).encode())
        return state.hexdigest()

    def without_times(self) -> dict[str, list[Any]]:
        """All rows, without the times in them: what two runs of the same commits have in common."""
        found: dict[str, list[Any]] = {
            table: sorted(map(timeless, rows.values()), key=repr) for table, rows in self._rows.items()
        }
        return {**found, "session": self._session}

    # -- reading

    def _read(self, directory: Path) -> None:
        gone: dict[str, int] = {}
        key, head, next_id = "", 0, 1
        for mark, lines in self._chain(directory):
            seq = mark.get("seq", 0)
            for line, body in lines:
                key = line.get("session", key)
                self._take(line, body, line.get("at", seq), gone)
            head, next_id = mark.get("seq", mark.get("head", head)), mark.get("next_id", next_id)
        for _, lines in _batches(directory / "inbound.jsonl"):
            for line, body in lines:
                if line["is"] == "item" and line["n"] > gone.get(line["id"], 0):
                    self._rows["inbound"].setdefault(line["id"], (line["id"], None, body))
        if head:
            self._session.append((key, head, next_id))

    def _chain(self, directory: Path) -> Iterator[Counted]:
        """The batches that count, over all files."""
        files = [(path, list(_batches(path))) for path in sorted(directory.glob("0*.jsonl"))]
        files = [each for each in files if each[1]]
        for index, (_, batches) in enumerate(files):
            if batches[0][1][0][0].get("after") is None:
                files[:index] = [(path, []) for path, _ in files[:index]]  # what begins with everything needs none
        for index, (_, batches) in enumerate(files):
            following = files[index + 1][1] if index + 1 < len(files) else []
            after = following[0][1][0][0]["after"]["bytes"] if batches and following else None
            for mark, lines in batches:
                if after is None or mark["end"] <= after:
                    yield mark, lines

    def _take(self, line: dict[str, Any], body: bytes, seq: int, gone: dict[str, int]) -> None:
        kind = line["is"]
        columns = tuple(value for name, value in sorted(line.items()) if name not in ("is", "body", "b64", "at"))
        if kind in ("conversation", "entry", "task", "submission", "document"):
            self._rows[kind][line["id"]] = (*columns, body)
        elif kind in ("base", "delta"):
            if line.get("prune"):
                self._forget_values(line["document"])
            self._rows[kind][line["document"], seq] = (line["document"], seq, body)
        elif kind == "taken":
            self._rows["inbound"][line["id"]] = (line["id"], seq, body)
        elif kind == "remove":
            self._rows[line["table"]].pop(line["id"], None)
            if line["table"] == "document":
                self._forget_values(line["id"])
            if line["table"] == "inbound":
                gone[line["id"]] = line.get("through", 0)
        elif kind == "remove_entries":
            for id, row in list(self._rows["entry"].items()):
                if json.loads(row[-1])["conversation"] == line["conversation"] and id > line["after"]:
                    del self._rows["entry"][id]

    def _forget_values(self, document: int) -> None:
        for table in ("base", "delta"):
            self._rows[table] = {key: row for key, row in self._rows[table].items() if key[0] != document}


def _batches(path: Path) -> Iterator[Counted]:
    """Marks, with where their batches end, and their lines with bodies."""
    if not path.exists():
        return
    held: list[Counted] = []
    lines: list[tuple[dict[str, Any], bytes]] = []
    begin = at = 0
    data = path.read_bytes()
    while (stop := data.find(b"\n", at)) >= 0:
        text = data[at:stop]
        try:
            line: dict[str, Any] = json.loads(text)
        except ValueError:
            break
        if "crc" not in line:
            lines.append((line, _body(text, line)))
        elif line["crc"] != f"{zlib.crc32(data[begin : stop - 10]):08x}":
            break
        else:
            begin = stop + 1
            held.append(({**line, "end": begin}, lines))
            lines = []
            if not line.get("more"):
                yield from held
                held = []
        at = stop + 1


def _body(text: bytes, line: dict[str, Any]) -> bytes:
    if "body" not in line:
        return b""
    return base64.b64decode(line["body"]) if line.get("b64") else text[text.index(b',"body":') + 8 : -1]
