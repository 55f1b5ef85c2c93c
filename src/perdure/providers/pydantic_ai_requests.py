"""From a request to pydantic-ai's messages (pure). It is valid already (K14): here only its form changes."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, cast

from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from perdure.messages import AssistantMessage, Text, Thinking, ToolCall, ToolMessage, UserMessage
from perdure.model import Request
from perdure.providers.pictures import LIMITS, fitting
from perdure.providers.vendors import Api

#: Fields in which OpenAI-compatible servers stream reasoning, and take it back.
REASONING_FIELDS = frozenset({"reasoning", "reasoning_content"})


def parameters_of(request: Request) -> ModelRequestParameters:
    """Instructions and tools."""
    tools = [
        ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters)
        for tool in request.tools
    ]
    instructions = [InstructionPart(content=request.system)] if request.system else []
    return ModelRequestParameters(function_tools=tools, instruction_parts=instructions)


def messages_of(request: Request, api: Api) -> list[ModelMessage]:
    """The messages. What a user or a tool said between two answers is one message: vendors want turns to alternate."""
    out: list[ModelMessage] = []
    said: list[ModelRequestPart] = []
    for message in fitting(request.messages, LIMITS[api]):
        if isinstance(message, AssistantMessage):
            if said:
                out.append(ModelRequest(parts=said))
                said = []
            out.append(_answer(message, api))
        elif isinstance(message, ToolMessage):
            outcome = "success" if message.error is None else "failed"
            said.append(
                ToolReturnPart(tool_name=message.name, content=message.text, tool_call_id=message.call, outcome=outcome)
            )
        else:
            said.append(UserPromptPart(content=_content(message)))
    if said:
        out.append(ModelRequest(parts=said))
    return out


def _content(message: UserMessage) -> str | Sequence[UserContent]:
    parts = message.parts
    if all(isinstance(part, Text) for part in parts):
        return "\n\n".join(part.text for part in parts if isinstance(part, Text))
    return [
        part.text
        if isinstance(part, Text)
        else BinaryContent(data=base64.b64decode(part.base64), media_type=part.media_type)
        for part in parts
    ]


def _answer(message: AssistantMessage, api: Api) -> ModelResponse:
    parts: list[ModelResponsePart] = []
    provider: str | None = None
    begin = 0  # where the parts begin that the next keepsake speaks of
    for part in message.parts:
        if isinstance(part, Text):
            parts.append(TextPart(content=part.text))
        elif isinstance(part, ToolCall):
            parts.append(
                ToolCallPart(tool_name=part.name, args=part.arguments or {}, tool_call_id=part.provider_id or part.name)
            )
        else:
            kept = cast("dict[str, Any]", part.signature) if isinstance(part.signature, dict) else {}
            provider = kept.get("provider", provider)
            if "kept" in kept:
                _give_back(parts[begin:], kept["kept"], provider)
                begin = len(parts)
            else:
                parts.extend(_thoughts(part, kept, api))
    return ModelResponse(parts=parts, provider_name=provider)


def _thoughts(part: Thinking, kept: dict[str, Any], api: Api) -> Iterator[ThinkingPart]:
    """The vendor's own parts. Reasoning without what its maker signed or named is of no use to it, and is not sent."""
    at = 0
    for piece in cast("list[dict[str, Any]]", kept.get("parts", ())):
        text = part.text[at : at + piece.get("size", 0)]
        at += len(text)
        signed = piece.get("signature") is not None or bool(piece.get("details"))
        if signed or (api == "chat" and piece.get("id") in REASONING_FIELDS):
            yield ThinkingPart(
                content=text,
                id=piece.get("id"),
                signature=piece.get("signature"),
                provider_name=kept.get("provider"),
                provider_details=piece.get("details"),
            )


def _give_back(parts: Sequence[ModelResponsePart], kept: list[dict[str, Any]], provider: str | None) -> None:
    """Details of texts and calls that came with the answer and belong to it: `pydantic_ai_events` took them down."""
    texts = [part for part in parts if isinstance(part, TextPart)]
    calls: list[ToolCallPart[Any]] = [part for part in parts if isinstance(part, ToolCallPart)]
    for each in kept:
        alike: Sequence[TextPart] | Sequence[ToolCallPart[Any]] = calls if each["kind"] == "call" else texts
        for part in alike[each["at"] : each["at"] + 1]:
            if not isinstance(part, ToolCallPart) or part.tool_name == each.get("name"):
                part.provider_details = dict(each["details"])
                part.provider_name = provider
