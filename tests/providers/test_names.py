"""Names of models, the keys they need, and what is said where something is missing."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import get_args

import pytest

from perdure.errors import ModelError, UsageError
from perdure.messages import user
from perdure.model import Request
from perdure.providers import choices
from perdure.providers.choices import KEYS, by_key, missing
from perdure.providers.vendors import open_model, target_of

TARGETS = {
    "openai:gpt-6.1-terra": ("responses", "gpt-6.1-terra", None),
    "openai-chat:gpt-6.1-terra": ("chat", "gpt-6.1-terra", None),
    "anthropic:claude-sonnet-5-5": ("anthropic", "claude-sonnet-5-5", None),
    "google:gemini-3.8-flash": ("google", "gemini-3.8-flash", None),
    "ollama:qwen3:8b": ("chat", "qwen3:8b", "http://127.0.0.1:11434/v1"),
    "llama-server:/models/a.gguf": ("chat", "/models/a.gguf", "http://127.0.0.1:8080/v1"),
    "vllm:org/model": ("chat", "org/model", "http://127.0.0.1:8000/v1"),
    "lm-studio:gemma": ("chat", "gemma", "http://127.0.0.1:1234/v1"),
    "http://gpu-box:8000/v1#org/model": ("chat", "org/model", "http://gpu-box:8000/v1"),
    "https://gateway.example/api/v1#fast": ("chat", "fast", "https://gateway.example/api/v1"),
}
KEYED = {choice.key: "secret-of-the-vendor" for choice in KEYS}


@pytest.mark.parametrize("name", TARGETS)
def test_a_name_says_where_requests_go(name):
    target = target_of(name, KEYED)

    assert (target.api, target.model, target.url) == TARGETS[name]
    assert target.name == name


@pytest.mark.parametrize("name", [name for name in TARGETS if target_of(name, KEYED).url])
def test_a_vendors_key_never_goes_to_a_server_that_a_name_brings(name):
    assert target_of(name, KEYED).key is None


def test_a_url_has_a_key_of_its_own():
    assert target_of("https://gateway.example/v1#fast", {"PERDURE_MODEL_KEY": "its own"}).key == "its own"


def test_a_servers_place_may_be_told_by_the_environment():
    assert target_of("ollama:a", {"OLLAMA_BASE_URL": "http://box:1/v1/"}).url == "http://box:1/v1"
    assert target_of("openai:a", {"OPENAI_BASE_URL": "http://box:1/v1"}).url == "http://box:1/v1"


WRONG = {
    "openai:": "names no model",
    "openai": "names no model",
    "nobody:model": "there is no vendor 'nobody'",
    "openai:gpt-6.1-terra": "set OPENAI_API_KEY in the environment",
    "google:gemini-3.8-flash": "set GOOGLE_API_KEY or GEMINI_API_KEY",
    "http://host:8000/v1": "write the URL and the model's name",
    "http://ann:hunter22@host/v1#m": "no user, password or query",
    "https://host/v1?key=hunter22#m": "no user, password or query",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_means_nothing_says_what_to_write(name):
    with pytest.raises(UsageError, match=WRONG[name]) as caught:
        open_model(name, environment={})

    assert "hunter22" not in str(caught.value)


def test_a_key_is_in_no_text(monkeypatch):
    target = target_of("openai:gpt-6.1-terra", KEYED)

    assert "secret-of-the-vendor" not in f"{target!r} {target}"


@pytest.mark.parametrize("extra", ["openai", "anthropic", "google"])
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(extra, monkeypatch):
    monkeypatch.setattr(choices, "find_spec", lambda module: None)
    name = next(choice.model for choice in KEYS if choice.model.startswith(extra))

    with pytest.raises(UsageError, match=rf"pip install 'perdure\[{extra}\]'"):
        open_model(name, environment=KEYED)


def test_what_is_installed_is_not_missing():
    assert [missing(extra) for extra in ("openai", "anthropic", "google")] == [None, None, None]


def test_the_first_key_that_is_set_decides():
    assert by_key({}) is None
    assert by_key({"OPENAI_API_KEY": " ", "GEMINI_API_KEY": "x"}) == KEYS[3]
    assert by_key({"OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"}) == KEYS[0]


@pytest.mark.anyio
@pytest.mark.parametrize("error", [ImportError("no module named openai"), ValueError("a key of sk-0123456789abc")])
async def test_a_package_that_does_not_load_is_a_model_error_that_says_what_to_do(error, monkeypatch):
    def broken(name):
        raise error

    monkeypatch.setattr("perdure.providers.vendors.importlib.import_module", broken)
    model = open_model("openai:gpt-6.1-terra", key="k")

    for _ in range(2):
        with pytest.raises(ModelError) as caught:
            await anext(model.stream(Request(model=model.name, messages=(user("Hello."),))))
        assert caught.value.kind == "invalid"
        assert "perdure[openai]" in str(caught.value) or "cannot be set up" in str(caught.value)
        assert "0123456789" not in str(caught.value)
    await model.aclose()


@pytest.mark.slow
def test_the_models_that_keys_stand_for_are_known_ones():
    known = get_args(import_module("pydantic_ai.models").KnownModelName.__value__)
    assert [choice.model for choice in KEYS if choice.model not in known] == []


LIGHT = """
import sys
from perdure.providers.vendors import open_model
from perdure.providers.choices import by_key
from perdure.providers.local_servers import find
open_model("openai:gpt-6.1-terra", key="k"), open_model("anthropic:m", key="k"), open_model("google:m", key="k")
print(sorted({"pydantic_ai", "openai", "anthropic", "genai_prices", "httpx2", "pydantic"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_opening_a_model_loads_no_vendors_package():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


RUN = """
import sys
from perdure.cli import main
sys.argv[1:] = ["run", "--store", "store.db", "--model", "demo", "Hello."]
try:
    main()
finally:
    print(sorted({"pydantic_ai", "openai", "anthropic", "google.genai", "genai_prices"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_a_run_on_the_demo_model_loads_no_vendors_package(tmp_path):
    done = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
