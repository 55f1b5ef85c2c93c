"""What binary content is, told from its first bytes."""

from __future__ import annotations

#: How much of a file is looked at.
LOOKED_AT = 8192

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x28\xb5\x2f\xfd", "Zstandard archive"),
    (b"\xfd7zXZ\0", "XZ archive"),
    (b"BZh", "bzip2 archive"),
    (b"\x7fELF", "ELF program"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"\xff\xfe\0\0", "UTF-32 text"),
    (b"\0\0\xfe\xff", "UTF-32 text"),
)


def binary_kind(start: bytes) -> str | None:
    """None for text. A zero byte makes it binary, as does a known kind of which the start alone could be text."""
    known = next((name for magic, name in _MAGIC if start.startswith(magic)), None)
    if known is not None and known != "bzip2 archive":
        return known
    return (known or "unknown kind") if b"\0" in start else None
