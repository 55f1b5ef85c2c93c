"""`perdure reset` and `perdure compact`, and the same in a chat."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

pytestmark = pytest.mark.slow


def test_a_reset_from_a_shell_starts_the_model_anew_and_keeps_what_was_said(shop) -> None:
    shop.perdure("run", "Hello", "--conversation", "till")
    assert "starts anew" in shop.perdure("reset", "till", "Only the till matters.").stdout
    shown = shop.perdure("show", "till").stdout
    assert "Hello" in shown
    assert "Only the till matters." in shown


def test_a_compaction_from_a_shell_summarises_with_the_conversations_model(shop) -> None:
    for text in ("One", "Two", "Three"):
        shop.perdure("run", text, "--conversation", "till")
    assert "is summarised" in shop.perdure("compact", "till", "keep the numbers").stdout
    shown = shop.perdure("show", "till").stdout
    assert "- One" in shown
    assert "Three" in shown
    again = [json.loads(shop.perdure("compact", "till", "--json").stdout)["outcome"]["result"] for _ in range(2)]
    assert again[1] == {"submission": None, "why": "there is nothing older to summarise"}


def test_a_chat_resets_and_compacts(shop) -> None:
    text = b"One\nTwo\n/compact\nThree\n/reset Only this\nFour\n"
    argv = shop.argv("chat", "--model", "demo")
    done = subprocess.run(
        argv, input=text, cwd=shop.path, capture_output=True, timeout=50, env={**os.environ, **shop.env}
    )
    said = done.stderr.decode()
    assert "summarises what is older" in said
    assert "the model starts anew" in said
    [number] = [line.split()[1] for line in shop.perdure("ls").stdout.splitlines()[1:]]
    shown = shop.perdure("show", number).stdout
    assert ("- One" in shown, "Only this" in shown) == (True, True)


def test_a_conversation_that_is_not_there_is_named(shop) -> None:
    shop.perdure("run", "Hello")
    assert "no conversation 'nobody'" in shop.perdure("compact", "nobody", code=2).stderr
    assert "no conversation 'nobody'" in shop.perdure("reset", "nobody", code=2).stderr
