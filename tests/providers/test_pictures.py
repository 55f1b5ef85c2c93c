"""A picture that a vendor would refuse is a note on the wire, whatever else the conversation holds (I16)."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.messages import Image, Text, UserMessage, user
from perdure.providers.pictures import LIMITS, PictureLimits, fitting, size_of


def png(width, height, more=0):
    return b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height) + bytes(more)


def jpeg(width, height):
    frame = b"\xff\xc2\x00\x11\x08" + struct.pack(">HH", height, width) + bytes(10)
    return b"\xff\xd8\xff\xe0\x00\x04ab\xff" + b"\xff\xdb\x00\x03x" + frame


def picture(data, media_type="image/png"):
    return Image(media_type=media_type, base64=base64.b64encode(data).decode())


def sent(messages, limits=LIMITS["anthropic"]):
    """All parts of what is sent."""
    return [part for message in fitting(messages, limits) if isinstance(message, UserMessage) for part in message.parts]


SIZES = {
    "png": png(9000, 120),
    "jpeg": jpeg(9000, 120),
    "gif": b"GIF89a" + struct.pack("<HH", 9000, 120),
    "webp": b"RIFF\x00\x00\x00\x00WEBPVP8X" + bytes(8) + struct.pack("<I", 8999)[:3] + struct.pack("<I", 119)[:3],
    "webp without loss": b"RIFF\x00\x00\x00\x00WEBPVP8L" + bytes(5) + struct.pack("<I", 8999 | 119 << 14) + bytes(5),
    "webp with loss": b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(10) + struct.pack("<HH", 9000, 120),
}


@pytest.mark.parametrize("kind", SIZES)
def test_a_file_says_its_size(kind):
    assert size_of(SIZES[kind]) == (9000, 120)


@pytest.mark.slow
@given(
    st.binary(max_size=64), st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF0000WEBPVP8X", b"GIF89a"])
)
def test_whatever_the_bytes_are_the_size_is_known_or_not(data, head):
    found = size_of(head + data)

    assert found is None or len(found) == 2


LEFT_OUT = {
    "too large a side": (picture(png(9000, 9000)), "9000 x 9000 pixels"),
    "too many bytes": (picture(png(10, 10, 4_000_000)), "bytes"),
    "empty": (Image(media_type="image/png", base64=""), "nothing in it"),
    "broken": (Image(media_type="image/png", base64="a!b"), "base64 is broken"),
    "no picture": (picture(b"<svg/>", "image/svg+xml"), "image/svg+xml"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_picture_that_the_vendor_would_refuse_is_a_note(name):
    wrong, told = LEFT_OUT[name]
    good = picture(png(100, 100))

    first, note, last = sent([UserMessage(parts=(Text(text="See."), wrong, good))])

    assert (first, last) == (Text(text="See."), good)
    assert isinstance(note, Text)
    assert note.text.startswith("[A picture was left out: ")
    assert told in note.text


def test_where_there_are_many_each_may_be_smaller_only():
    large = UserMessage(parts=(picture(png(2500, 2500)),))

    assert sent([large] * 20) == list(large.parts) * 20
    assert all(isinstance(part, Text) and "2500 x 2500" in part.text for part in sent([large] * 25))


def test_of_more_than_a_request_takes_the_newest_stay():
    limits = PictureLimits(one=1000, all=2100, side=9999)
    messages = [UserMessage(parts=(picture(png(each, each, 900)),)) for each in (1, 2, 3)]

    first, *others = sent([*messages, user("And?")], limits)

    assert isinstance(first, Text)
    assert others == [messages[1].parts[0], messages[2].parts[0], Text(text="And?")]
