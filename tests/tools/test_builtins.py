"""The tools that ship, as the harness and a model see them."""

from __future__ import annotations

import pytest

from perdure.harness.call import Call
from perdure.harness.registry import Tool
from perdure.schemas.pydantic import PydanticSchema
from perdure.tools.builtins import BUILTINS
from perdure.tools.context import ToolContext


def a_call_of_the_harness_is_what_the_tools_need(call: Call) -> ToolContext:
    """For the type checker."""
    return call


def test_only_what_reads_or_ends_may_be_repeated() -> None:
    assert {each.name: each.replay for each in BUILTINS} == {
        "read": "safe", "write": "unsafe", "edit": "unsafe", "bash": "unsafe", "jobs": "safe", "job_kill": "safe",
    }  # fmt: skip


@pytest.mark.parametrize("tool", BUILTINS, ids=lambda tool: tool.name)
def test_a_model_is_told_what_each_is_and_what_each_argument_means(tool: Tool) -> None:
    described = PydanticSchema().describe(tool.function, skip=("call",))

    assert tool.takes_call
    assert described.name == tool.name
    assert described.description
    assert "Args:" not in described.description
    assert all(each["description"] and "type" in each for each in described.parameters["properties"].values())
