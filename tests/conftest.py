"""What every test shares. Fixtures of one layer live in that layer's folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_CRASH = Path(__file__).parent / "crash"

# No deadline: two cores run several suites at a time.
# In CI the examples are the same each time: a failure there is the change's own.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash",
        choices=("short", "full"),
        default="short",
        help="how many of the places the crash suite kills at: a sample, or all of them",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_CRASH):
            item.add_marker(pytest.mark.crash)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The runner of async tests is asyncio, the only loop that perdure knows."""
    return "asyncio"


@pytest.fixture(scope="session")
def crash_form(request: pytest.FixtureRequest) -> str:
    """`short` or `full`: what `--crash` asked for."""
    return str(request.config.getoption("--crash"))
