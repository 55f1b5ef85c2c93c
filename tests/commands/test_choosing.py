"""Who answers: a flag, else the configuration, else a key, else a local server, else the demo; and it says why."""

from __future__ import annotations

import msgspec
import pytest

from perdure.clock import SystemClock
from perdure.commands.choosing import Found, Key, Remembered, Server, choose
from perdure.commands.chosen import check_model
from perdure.errors import UsageError

EVERYTHING = Found(
    flag="openai:a",
    configured=("openai:b", "/p/perdure.toml:1"),
    keys=[
        Key(variable="ANTHROPIC_API_KEY", model="anthropic:c"),
        Key(variable="OPENAI_API_KEY", model="openai:d"),
    ],
    servers=[Server(name="ollama", url="http://127.0.0.1:11434/v1", model="ollama:e")],
)


def without(*names: str, **more: object) -> Found:
    empty = {"flag": None, "configured": None, "keys": (), "servers": ()}
    return msgspec.structs.replace(EVERYTHING, **{name: empty[name] for name in names}, **more)


@pytest.mark.parametrize(
    "found, name, why",
    [
        (EVERYTHING, "openai:a", "--model"),
        (without("flag"), "openai:b", "/p/perdure.toml:1"),
        (without("flag", "configured"), "anthropic:c", "ANTHROPIC_API_KEY is set, before OPENAI_API_KEY"),
        (without("flag", "configured", "keys"), "ollama:e", "ollama answers at http://127.0.0.1:11434/v1"),
        (without("flag", "configured", "keys", "servers"), "demo", "no key is in the environment"),
    ],
)
def test_each_thing_decides_where_those_before_it_are_missing(found: Found, name: str, why: str) -> None:
    choice = choose(found)
    assert choice is not None
    assert choice.name == name
    assert why in choice.line
    assert "--model NAME" in choice.line


def test_local_servers_are_looked_for_only_where_nothing_else_decides() -> None:
    assert choose(without("flag", "configured", servers=None)) is not None
    assert choose(without("flag", "configured", "keys", servers=None)) is None


def test_a_key_whose_library_is_missing_is_passed_over_and_the_command_that_installs_it_is_said() -> None:
    lacking = Key(variable="OPENAI_API_KEY", model="openai:d", missing="pip install 'perdure[openai]'")
    choice = choose(without("flag", "configured", "servers", keys=[lacking]))
    assert choice is not None
    assert choice.name == "demo"
    assert "OPENAI_API_KEY is set" in choice.why
    assert "pip install 'perdure[openai]'" in choice.why
    other = choose(without("flag", "configured", keys=[lacking, EVERYTHING.keys[0]]))
    assert other is not None
    assert other.name == "anthropic:c"


@pytest.mark.parametrize(
    "by, found, name",
    [
        ("flag", without("flag"), "openai:before"),  # the configuration is for what nobody chose
        ("key", without("flag"), "openai:b"),
        ("key", without("flag", "configured"), "openai:before"),
        ("server", without("flag", "configured", "keys", "servers"), "openai:before"),  # a lost key makes no demo of it
        ("demo", without("flag", "configured"), "anthropic:c"),  # a demo by lack of anything else was no choice
    ],
)
def test_a_conversation_remembers_its_model(by, found: Found, name: str) -> None:
    choice = choose(msgspec.structs.replace(found, remembered=Remembered(model="openai:before", by=by)))
    assert choice is not None
    assert choice.name == name


@pytest.mark.parametrize(
    "name, says",
    [
        ("gpt-5", "did you mean openai:gpt-5"),
        ("Claude-Sonnet", "did you mean anthropic:Claude-Sonnet"),
        ("gemini-3", "did you mean google:gemini-3"),
        ("qwen3", "did you mean ollama:qwen3"),
        ("nobody", "write PROVIDER:NAME"),
        ("nobody:gpt-5", "write PROVIDER:NAME.*demo"),
        ("demo:speed=9", "speed"),
    ],
)
def test_a_model_that_is_none_is_refused_at_once_with_what_was_meant(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_model(name, SystemClock())


def test_a_key_where_a_model_belongs_is_not_repeated() -> None:
    key = "sk-" + "Abcdefghijklmnop1234"
    with pytest.raises(UsageError, match="looks like a key") as error:
        check_model(key, SystemClock())
    assert key not in str(error.value)
