"""What commands see of the environment (I77, I78)."""

from __future__ import annotations

import pytest

from perdure.sandboxes.environment import command_environment, is_secret


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY", "openai_api_key", "GITHUB_TOKEN", "TOKEN", "AWS_SECRET_ACCESS_KEY", "CLIENT_SECRET_ID",
        "DB_PASSWORD", "PGPASSWORD", "MYSQL_PASSWD", "KEY", "MAPS_APIKEY", "GPG_PASSPHRASE",
    ],
)  # fmt: skip
def test_a_name_that_says_secret_is_one(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["PATH", "HOME", "KEYBOARD", "TOKENIZERS_PARALLELISM", "MONKEY", "SSH_AUTH_SOCK"])
def test_other_names_are_none(name: str) -> None:
    assert not is_secret(name)


def test_secrets_and_startup_files_are_left_out_and_nothing_waits_for_a_person() -> None:
    seen = command_environment({"PATH": "/bin", "API_KEY": "x", "BASH_ENV": "rc", "TERM": "xterm", "EDITOR": "vim"})

    assert seen["PATH"] == "/bin"
    assert not {"API_KEY", "BASH_ENV"} & seen.keys()
    assert (seen["TERM"], seen["EDITOR"], seen["PAGER"], seen["GIT_TERMINAL_PROMPT"]) == ("dumb", "false", "cat", "0")


def test_what_is_given_for_a_command_is_given_whatever_it_is() -> None:
    seen = command_environment({"A": "1"}, {"API_KEY": "x", "TERM": "xterm"})

    assert (seen["A"], seen["API_KEY"], seen["TERM"]) == ("1", "x", "xterm")
