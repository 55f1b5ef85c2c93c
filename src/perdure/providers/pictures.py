"""Pictures that a vendor would refuse become a note, so that one of them never ends a conversation (I16). Pure.

What is stored stays as it is: this is about what is sent.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

import msgspec

from perdure.messages import Image, Message, Text, UserMessage, UserPart
from perdure.providers.vendors import Api

#: What every vendor takes.
TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class PictureLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a vendor takes: bytes and pixels a side of one picture, bytes of all pictures, and, where there are `many`,
    pixels a side again."""

    one: int
    all: int
    side: int
    many: int = 1_000_000
    side_of_many: int = 1_000_000


LIMITS: Mapping[Api, PictureLimits] = {
    "anthropic": PictureLimits(one=3_700_000, all=20_000_000, side=8000, many=20, side_of_many=2000),
    "responses": PictureLimits(one=20_000_000, all=36_000_000, side=16_000),
    "chat": PictureLimits(one=20_000_000, all=36_000_000, side=16_000),
    "google": PictureLimits(one=7_000_000, all=14_000_000, side=16_000),
}


def fitting(messages: Sequence[Message], limits: PictureLimits) -> list[Message]:
    """The messages with each picture that does not fit replaced by a note. Where all are too much, the newest stay."""
    count = sum(isinstance(part, Image) for each in messages for part in getattr(each, "parts", ()))
    side = limits.side_of_many if count > limits.many else limits.side
    left = limits.all
    out: list[Message] = []
    for message in reversed(messages):
        if isinstance(message, UserMessage) and any(isinstance(part, Image) for part in message.parts):
            parts: list[UserPart] = []
            for part in reversed(message.parts):
                if isinstance(part, Image):
                    wrong = _wrong(part, limits.one, side) or (_MUCH if len(part.base64) * 3 // 4 > left else None)
                    left -= 0 if wrong else len(part.base64) * 3 // 4
                    parts.append(part if wrong is None else Text(text=f"[A picture was left out: {wrong}.]"))
                else:
                    parts.append(part)
            message = UserMessage(parts=tuple(reversed(parts)))
        out.append(message)
    return out[::-1]


_MUCH = "the newer pictures of this conversation are as much as one request takes"


def _wrong(picture: Image, most: int, side: int) -> str | None:
    if picture.media_type not in TYPES:
        return f"{picture.media_type[:60]!r} is no kind of picture that models take"
    try:
        data = base64.b64decode(picture.base64, validate=True)
    except (binascii.Error, ValueError):
        return "its base64 is broken"
    if not data:
        return "there is nothing in it"
    if len(data) > most:
        return f"it has {len(data):,} bytes, and the model takes {most:,}"
    found = size_of(data)
    if found is not None and max(found) > side:
        return f"it is {found[0]} x {found[1]} pixels, and the model takes {side} a side"
    return None


def size_of(data: bytes) -> tuple[int, int] | None:
    """Width and height as the file says; None where it does not say it in a way known here."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        return _big(data[16:20]), _big(data[20:24])
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return _little(data[6:8]), _little(data[8:10])
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _size_of_webp(data)
    return _size_of_jpeg(data) if data.startswith(b"\xff\xd8") else None


def _size_of_webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + _little(data[24:27]), 1 + _little(data[27:30])
    if kind == b"VP8L":
        bits = _little(data[21:25])
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return (_little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF) if kind == b"VP8 " else None


def _size_of_jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # padding
            at += 1
        elif 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):  # the frame's own header
            return _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7])
        else:
            at += 2 + _big(data[at + 2 : at + 4])
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
