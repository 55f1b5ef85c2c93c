"""What `import perdure` may load: heavy libraries belong to the adapter that needs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Libraries of providers, terminals, servers, schemas and tests.
HEAVY = frozenset(
    {
        "anthropic", "apsw", "click", "google", "griffe", "httpx", "httpx2", "hypothesis", "mcp", "openai",
        "opentelemetry", "platformdirs", "psycopg", "pydantic", "pydantic_ai", "pydantic_core", "pytest", "rich",
        "starlette", "textual", "tiktoken", "uvicorn",
    }
)  # fmt: skip


def loaded_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
def test_importing_perdure_loads_no_heavy_library() -> None:
    loaded = loaded_after("import perdure")
    assert "perdure" in loaded
    heavy = sorted(HEAVY & {name.split(".")[0] for name in loaded})
    assert not heavy, f"import perdure loads {heavy}"


@pytest.mark.slow
def test_importing_perdure_loads_no_adapter_and_no_test_kit() -> None:
    packages = ("backends", "providers", "schemas", "sandboxes", "testing", "commands", "cli")
    wrong = sorted(
        name
        for name in loaded_after("import perdure")
        if name.startswith(tuple(f"perdure.{each}" for each in packages))
    )
    assert not wrong, f"import perdure loads {wrong}"


@pytest.mark.slow
def test_the_help_of_the_command_line_loads_nothing_but_the_command_line() -> None:
    script = (
        "import sys, contextlib\nfrom perdure.cli import main\n"
        "with contextlib.suppress(SystemExit): sys.argv[1:] = ['--help']; main()\n"
        "print('\\n'.join(name for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert "Commands:" in done.stdout
    assert sorted(name for name in loaded if name.split(".")[0] in {"asyncio", "msgspec", *(HEAVY - {"click"})}) == []
    assert len([name for name in loaded if name.startswith("perdure")]) <= 6
