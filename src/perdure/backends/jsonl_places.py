"""Where things are in the directory of a JSONL store, and how sessions are called there.

store.json                    what this directory is
changes                       grows by a byte with every write: a hint for whoever watches
workers/ID.lock               who has the store open (see `workers`)
sessions/KEY/lock             held while the session is claimed or its files are replaced
sessions/KEY/000001.jsonl     its commits; a higher number takes over from the lower ones
sessions/KEY/inbound.jsonl    what others handed in
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from perdure.backends.jsonl_lines import File, decode_line
from perdure.errors import StorageRejected

ABOUT = "store.json"
CHANGES = "changes"
WORKERS = "workers"
SESSIONS = "sessions"
LOCK = "lock"
#: A file that is being written, to become another one.
PART = "part"
INBOUND = "inbound.jsonl"

_PLAIN = re.compile(rb"[a-z0-9_.-]")
_NUMBERED = re.compile(r"([0-9]{6,})\.jsonl")
#: Longer names are cut: file systems take 255 bytes.
_LONGEST = 200
_CUT = "%~"


def name_of(key: str) -> str:
    """The directory of a session: its key, with everything but plain small characters as %XX of UTF-8.

    A long one is cut and ends with a digest; its files tell the key. Raises StorageRejected.
    """
    try:
        given = key.encode()
    except UnicodeEncodeError:
        raise StorageRejected(f"{key!r} cannot be the key of a session: it is no Unicode text; name another") from None
    name = "".join(chr(byte) if _PLAIN.match(bytes([byte])) else f"%{byte:02X}" for byte in given)
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _LONGEST:
        return f"{name[: _LONGEST - 40]}{_CUT}{hashlib.blake2b(given, digest_size=16).hexdigest()}"
    return name or "%"


def key_of(directory: Path) -> str | None:
    """The key of the session in a directory; None where it is none (yet)."""
    name = directory.name
    if _CUT in name:
        return _told_by_files(directory)
    if name == "%":
        return ""
    try:
        key = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), name.encode()).decode()
    except UnicodeDecodeError:
        return None
    return key if name_of(key) == name else None


def _told_by_files(directory: Path) -> str | None:
    for path in (*(directory / file_name(number) for number in numbers(directory)), directory / INBOUND):
        try:
            with path.open("rb") as file:
                line = decode_line(file.readline())
        except OSError:
            continue
        if isinstance(line, File) and name_of(line.session) == directory.name:
            return line.session
    return None


def file_name(number: int) -> str:
    return f"{number:06d}.jsonl"


def numbers(directory: Path) -> list[int]:
    """Of the files of a session, lowest first."""
    try:
        found = [_NUMBERED.fullmatch(each.name) for each in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(each[1]) for each in found if each is not None)
