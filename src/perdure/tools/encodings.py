"""How a text file is encoded, told from its bytes; UTF-16 is worked on as UTF-8 and written back as it was.

Nothing is guessed: a file without a byte order mark is UTF-8, or bytes of which only the ASCII ones are known.
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

from perdure.errors import SandboxError


class Encoding(NamedTuple):
    """`name` is what people call it; `codec` and `mark` are set where it is worked on as UTF-8."""

    name: str
    codec: str = ""
    mark: bytes = b""


UTF_8 = Encoding("UTF-8")
UTF_16 = (
    Encoding("UTF-16 LE", "utf-16-le", codecs.BOM_UTF16_LE),
    Encoding("UTF-16 BE", "utf-16-be", codecs.BOM_UTF16_BE),
)


def encoding_of(start: bytes) -> Encoding:
    """By the byte order mark; UTF-8 where there is none."""
    if start.startswith(codecs.BOM_UTF8):
        return Encoding("UTF-8 with a byte order mark")
    return next((each for each in UTF_16 if start.startswith(each.mark)), UTF_8)


def as_utf_8(content: bytes, encoding: Encoding, path: str) -> bytes:
    """The content to work on. Raises SandboxError where it is not what its mark says."""
    if not encoding.codec:
        return content
    try:
        return content[len(encoding.mark) :].decode(encoding.codec).encode()
    except UnicodeError:
        raise SandboxError(f"{path} begins as {encoding.name} text, but is none: it is binary") from None


def as_it_was(content: bytes, encoding: Encoding) -> bytes:
    """The reverse of `as_utf_8`."""
    return encoding.mark + content.decode().encode(encoding.codec) if encoding.codec else content


def is_utf_8(content: bytes) -> bool:
    """Whether all of it is."""
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def line_ends(content: bytes) -> str:
    """ "LF", "CRLF", "mixed", or empty for one line."""
    returns, feeds = content.count(b"\r\n"), content.count(b"\n")
    if not feeds:
        return ""
    return "CRLF" if returns == feeds else "mixed" if returns else "LF"
