"""Nothing that a terminal would obey: text of models, tools and stores, made visible. Loads nothing."""

from __future__ import annotations

#: Control characters but tab and newline, as pictures of themselves: model and tool output must not steer a terminal.
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)},
    **dict.fromkeys(range(0x7F, 0xA0), 0xFFFD),
}


def visible(text: str) -> str:
    """The text with control characters made visible."""
    return text.translate(_PICTURES)
