"""Nothing that a terminal would obey: text of models, tools and stores, made visible. Loads nothing."""

from __future__ import annotations

#: Control characters but tab and newline, as pictures of themselves: model and tool output must not steer a terminal.
_PICTURES: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)},
    **dict.fromkeys(range(0x7F, 0xA0), 0xFFFD),
    # Characters that turn the direction of the text after them: as what they are, a line must read as it was said.
    **{code: f"\\u{code:04x}" for code in (0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}


def visible(text: str) -> str:
    """The text with control characters, and those that turn its direction, made visible."""
    return text.translate(_PICTURES)
