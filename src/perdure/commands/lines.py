"""Prompts from lines: pure, from one line after another to whole prompts."""

from __future__ import annotations

BLOCK = '"""'


class Lines:
    """A line is a prompt. One that ends with a backslash goes on in the next; a block stands between lines of three
    quotation marks and is taken as it is."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._block = False

    @property
    def open(self) -> bool:
        """Whether a prompt has begun that is not complete."""
        return bool(self._parts) or self._block

    def line(self, text: str) -> str | None:
        """One more line, without its end; the prompt that it completes, if it does."""
        if self._block:
            if text.strip() != BLOCK:
                self._parts.append(text)
                return None
            return self._take()
        if not self._parts and text.strip() == BLOCK:
            self._block = True
            return None
        if text.endswith("\\"):
            self._parts.append(text[:-1])
            return None
        self._parts.append(text)
        return self._take()

    def end(self) -> str | None:
        """There are no more lines; the prompt that has begun, if one has."""
        begun = bool(self._parts)
        prompt = self._take()
        return prompt if begun else None

    def drop(self) -> None:
        """Forget what has begun."""
        self._take()

    def _take(self) -> str:
        prompt = "\n".join(self._parts)
        self._parts, self._block = [], False
        return prompt
