"""What a failure says of the server and of the key: where, and which variable; never the key itself."""

from __future__ import annotations

import pytest
from pydantic_ai.exceptions import ModelConnectionError, ModelTimeoutError

from perdure.commands.output import Output
from perdure.commands.sinks import Person
from perdure.providers.pydantic_ai_errors import model_error
from perdure.providers.vendors import target_of

KEY = "sk-proj-" + "aB3" * 12


@pytest.mark.parametrize(
    "name, environment, place",
    [
        ("openai:gpt-6", {"OPENAI_API_KEY": KEY}, "https://api.openai.com"),
        (
            "openai-chat:x",
            {"OPENAI_BASE_URL": f"http://me:{KEY}@proxy.example:4000/v1?k={KEY}"},
            "http://proxy.example:4000",
        ),
        ("anthropic:c", {"ANTHROPIC_API_KEY": KEY}, "https://api.anthropic.com"),
        ("google:g", {"GEMINI_API_KEY": KEY}, "https://generativelanguage.googleapis.com"),
        ("http://[::1]:8000/v1#m", {}, "http://[::1]:8000"),
    ],
)
def test_a_connection_that_fails_names_the_server_and_nothing_secret(
    name: str, environment: dict[str, str], place: str
) -> None:
    target = target_of(name, environment)
    for error in (
        ModelConnectionError(name, "refused"),
        ModelTimeoutError(name, "late"),
        ConnectionResetError("reset"),
    ):
        for began in (False, True):
            told = str(model_error(error, target, began=began, now=0.0))
            assert f"({place})" in told
            assert KEY not in told


@pytest.mark.parametrize(
    "name, environment, key, told",
    [
        ("openai:gpt-6", {"OPENAI_API_KEY": KEY}, None, "the key is read from OPENAI_API_KEY"),
        ("google:g", {"GEMINI_API_KEY": KEY}, None, "the key is read from GEMINI_API_KEY"),
        ("openai:gpt-6", {"OPENAI_API_KEY": "other"}, KEY, "the key is the one that the program gave"),
        ("http://host:8000/v1#m", {}, None, "no key is set: PERDURE_MODEL_KEY may hold one"),
        ("ollama:qwen", {"OLLAMA_API_KEY": KEY}, None, "the key is read from OLLAMA_API_KEY"),
    ],
)
def test_where_a_key_is_from_is_known(name: str, environment: dict[str, str], key: str | None, told: str) -> None:
    assert target_of(name, environment, key=key).key_told == told


def test_a_retry_is_told_with_its_number_and_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with Output() as output:
        person = Person(output)
        told = {"type": "retry", "kind": "retryable", "message": "no connection", "at": 9.0}
        person.emit({**told, "attempt": 2, "attempts": 6, "wait": 4.0})
        person.emit(told)  # of a run that waits since an earlier version
    assert capsys.readouterr().err.splitlines() == [
        "perdure: the model failed (retryable), attempt 2 of 6, waiting 4 s: no connection",
        "perdure: the model failed (retryable), it is asked again: no connection",
    ]
