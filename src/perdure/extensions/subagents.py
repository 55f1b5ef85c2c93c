"""Sub-agents for models: a tool that delegates and waits, and tools for agents that work in the background (H29)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from perdure.errors import InvalidValue, UsageError
from perdure.harness.agents import Agent
from perdure.harness.call import Call
from perdure.harness.children import Profile
from perdure.harness.handover import WaitFor
from perdure.harness.output import clip
from perdure.harness.registry import Extension, Tool, tool
from perdure.messages import AssistantMessage, Message, ToolMessage, UserMessage, calls_of, text_of

#: The longest that one call waits for agents, in seconds.
MOST_WAIT = 600.0
#: How much of a message is shown where an agent is read, in characters, and how many messages at most.
MOST_SHOWN, MOST_READ = 4000, 100
#: What a name is shown as where the application registered no profiles.
PLAIN = Profile(name="agent")


def subagents(
    profiles: Sequence[Profile] = (), *, seconds: float | None = None, background: bool = True, name: str = "subagents"
) -> Extension:
    """The extension: `agent` delegates and waits; with `background`, `agent_start` and its siblings do not wait.

    Models choose one of the `profiles`, the first by default; without any, a sub-agent is what its parent is.
    `seconds` limits a foreground one whose profile sets no limit of its own; None sets none.
    """
    by_name = {profile.name: profile for profile in profiles}
    if len(by_name) < len(profiles):
        raise UsageError(f"two profiles have one name: {', '.join(profile.name for profile in profiles)}")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"seconds={seconds!r}: a time limit is more than 0 seconds; None sets none")
    chosen = _Profiles(by_name)
    tools = [_agent(chosen, seconds)]
    if background:
        tools += [_agent_start(chosen), agent_send, agent_wait, agent_list, agent_read, agent_stop]
    return Extension(name=name, tools=tools)


class _Profiles:
    """The profiles as models see them: an argument with their names, and what is said of them."""

    def __init__(self, by_name: dict[str, Profile]) -> None:
        self._by_name = by_name

    def find(self, name: str | None) -> Profile:
        if not self._by_name:
            return PLAIN
        return self._by_name[name] if name is not None else next(iter(self._by_name.values()))

    def tool(self, function: Callable[..., Any], plain: Callable[..., Any]) -> Tool:
        """`function` with the names in its signature, or `plain`, which has no such argument."""
        if not self._by_name:
            return tool(replay="safe")(plain)
        names = tuple(self._by_name)
        function.__annotations__ = {**function.__annotations__, "profile": Literal[names]}
        told = "; ".join(f"{each.name}: {each.description or 'no description'}" for each in self._by_name.values())
        function.__doc__ = f"{inspect.getdoc(plain)}\n    profile: Who does it. {told}"
        return tool(replay="safe")(function)


def _agent(profiles: _Profiles, seconds: float | None) -> Tool:
    async def agent(call: Call, task: str, profile: str | None = None) -> WaitFor:
        given = profiles.find(profile)
        return await call.delegate(task, profile=given, seconds=given.seconds if given.seconds is not None else seconds)

    async def plain(call: Call, task: str) -> WaitFor:
        """Delegate a task to a sub-agent, and wait for its answer. It sees nothing of this conversation.

        Several calls in one answer work side by side.

        Args:
            task: All that it has to know, and what its answer should contain.
        """
        return await agent(call, task)

    plain.__name__ = "agent"
    return profiles.tool(agent, plain)


def _agent_start(profiles: _Profiles) -> Tool:
    async def agent_start(call: Call, task: str, profile: str | None = None) -> str:
        started = await call.agents.start(task, profile=profiles.find(profile))
        call.details({"agent": {"id": started.id, "conversation": started.conversation, "name": started.name}})
        return f"[agent {started.id} ({started.name}) works; its answer comes into this conversation]"

    async def plain(call: Call, task: str) -> str:
        """Start an agent in the background; answers at once. What the agent answers comes into this conversation.

        It sees nothing of this conversation, and can be told more with agent_send.

        Args:
            task: All that it has to know, and what its answer should contain.
        """
        return await agent_start(call, task)

    plain.__name__ = "agent_start"
    return profiles.tool(agent_start, plain)


@tool(replay="safe")
async def agent_send(call: Call, agent: int, message: str, steer: bool = False) -> str:
    """Tell a background agent more. Its answer comes into this conversation.

    Args:
        agent: The number of the agent.
        message: What to tell it.
        steer: Have it see the message after its present step, rather than after its answer.
    """
    told = await call.agents.send(agent, message, when_busy="steer" if steer else "follow_up")
    return f"[told {_line(told)}]"


@tool(replay="safe")
async def agent_wait(call: Call, agents: list[int] | None = None, seconds: float = 60) -> str:
    """Wait until background agents have answered what they were told. Their answers come after this result.

    Args:
        agents: The numbers of the agents. Without them, all.
        seconds: Wait no longer than this, at most 600.
    """
    if not seconds >= 0:
        raise InvalidValue(f"seconds must be 0 or more, not {seconds}")
    most = min(float(seconds), MOST_WAIT)
    call.extend(most + 10)
    found = await call.agents.wait(agents, seconds=most)
    return "\n".join(f"[{_line(each)}]" for each in found) or "[no agents]"


@tool(replay="safe")
async def agent_list(call: Call) -> str:
    """List the background agents of this conversation."""
    return "\n".join(map(_line, await call.agents.list())) or "[no agents]"


@tool(replay="safe", keep="tail")
async def agent_read(call: Call, agent: int, last: int = 10) -> str:
    """Show the newest messages of a background agent's own conversation, oldest first.

    Args:
        agent: The number of the agent.
        last: How many, at most 100.
    """
    if not 1 <= last <= MOST_READ:
        raise InvalidValue(f"last must be from 1 to {MOST_READ}, not {last}")
    found = await call.agents.find(agent)
    entries = await call.agents.read(agent, limit=last)
    shown = [line for entry in reversed(entries) for message in entry.messages for line in _shown(message)]
    return "\n".join([f"[{_line(found)}]", *shown])


@tool(replay="safe")
async def agent_stop(call: Call, agent: int) -> str:
    """Stop a background agent, with everything that it started. It cannot be told more after that.

    Args:
        agent: The number of the agent.
    """
    call.extend(60)
    return f"[{_line(await call.agents.stop(agent))}]"


def _line(agent: Agent) -> str:
    waits = f", {agent.waiting} without an answer" if agent.waiting else ""
    detail = f" ({agent.detail})" if agent.detail else ""
    return f"agent {agent.id} ({agent.name}): {agent.state}{detail}{waits}"


def _shown(message: Message) -> Iterator[str]:
    text = clip(text_of(message), MOST_SHOWN)
    match message:
        case UserMessage():
            yield f"user: {text}"
        case ToolMessage(name=name, error=error):
            yield f"result of {name}{f' ({error})' if error else ''}: {text}"
        case AssistantMessage():
            if text:
                yield f"agent: {text}"
            yield from (f"calls {call.name}" for call in calls_of(message))
