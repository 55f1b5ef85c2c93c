"""A key in the environment appears nowhere: not in the store, its log, output, transcripts, arguments or commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MARKER = "sk-marker-0123456789abcdefABCDEF"
KEYS = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"), MARKER)
LOOK = "Run the command \"env; tr '\\0' ' ' < /proc/self/environ; cat /proc/$PPID/environ\" with bash"


def places(directory: Path) -> Iterator[Path]:
    """Every file that there is, the store's log included."""
    for folder, _, names in os.walk(directory):
        yield from (Path(folder, name) for name in names)


@pytest.mark.parametrize("isolation", ["", "subreaper", "pgroup"])
def test_a_key_reaches_neither_commands_nor_anything_that_is_kept_or_said(shop, isolation: str) -> None:
    env = {**KEYS, "PERDURE_DEBUG": "1", **({"PERDURE_BASH_ISOLATION": isolation} if isolation else {})}
    said = [
        shop.perdure("run", LOOK, "--allow", "bash", "--model", "demo", env=env),
        shop.perdure("run", "demo:auth", "--model", "demo", "--json", code=1, env=env),
        *(shop.perdure("export", "--format", form, env=env) for form in ("md", "jsonl", "html")),
        shop.perdure("show", "--full", env=env),
        shop.perdure("config", "show", env=env),
        shop.perdure("doctor", code=None, env=env),
        shop.perdure("db", "backup", "copy.db", env=env),
        shop.perdure("run", "x", "--model", MARKER, code=2),
    ]
    assert "PAGER=cat" in said[5].stdout  # the command did look
    for done in said:
        assert MARKER not in done.stdout
        assert MARKER not in done.stderr
    found = [path for path in places(shop.path) if MARKER.encode() in path.read_bytes()]
    assert found == []


def test_no_argument_of_any_process_has_the_key_and_the_log_of_a_live_store_neither(shop) -> None:
    with shop.start_with(
        KEYS, "run", 'Run the command "sleep 30" with bash', "--allow", "bash", "--json", "--model", "demo"
    ) as child:
        event = shop.until(child, "entry")
        while event["entry"]["kind"] != "perdure.assistant":
            event = shop.until(child, "entry")
        arguments = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if readable(path)]
        assert arguments
        assert not [each for each in arguments if MARKER.encode() in each]
        assert any(path.name == "store.db-wal" for path in places(shop.path))
        assert [path for path in places(shop.path) if MARKER.encode() in path.read_bytes()] == []


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_the_code_of_a_user_has_the_key_as_before(shop) -> None:
    (shop.path / "asking.py").write_text(
        "import os, subprocess\n"
        "def key_length() -> str:\n    'Tell the length of the key.'\n"
        "    seen = subprocess.run(['sh', '-c', 'printf %s \"$OPENAI_API_KEY\"'], capture_output=True).stdout\n"
        "    return f\"{len(os.environ['OPENAI_API_KEY'])} {os.environ['OPENAI_API_KEY'].encode() == seen}\"\n"
    )
    done = shop.perdure(
        "run", "Tell the length of the key", "--tools", "asking:key_length", "--model", "demo", env=KEYS
    )
    assert f"<- key_length: {len(MARKER)} True" in done.stderr
