"""Conversations that tasks own to have a sub-agent work there: how they start, and how many there may be (H29, I70)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import TaskRefused
from perdure.harness.stored import AGENT
from perdure.harness.submissions import submit_input
from perdure.messages import UserMessage
from perdure.records import Conversation, ConversationId, Submission, Task, TaskId
from perdure.settle.state import Candidate, State
from perdure.tasks.transaction import TaskTransaction

if TYPE_CHECKING:
    from perdure.harness.harness import Harness


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of sub-agent that models choose by name. What is None it has from the conversation that starts it.

    `description` says to the choosing model what it is good at; `seconds` limits how long a foreground one may work.
    """

    name: str
    description: str = ""
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    extensions: tuple[str, ...] | None = None
    model: str | None = None
    directory: str | None = None
    seconds: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings, over those of the conversation that starts it."""
        fields = ("instructions", "tools", "extensions", "model", "directory")
        return {name: msgspec.to_builtins(value) for name in fields if (value := getattr(self, name)) is not None}


async def start_child(
    harness: Harness,
    tx: TaskTransaction,
    owner: TaskId,
    content: str | UserMessage,
    profile: Profile | None,
    *,
    request_id: str,
    child: ConversationId | None = None,
    key: str | None = None,
) -> tuple[Conversation, Submission]:
    """The conversation that `owner` has for a sub-agent, found before it is made, and its first input (H29).

    Raises TaskRefused beyond the limits of depth and number.
    """
    known = next(tx.candidate.owned(owner), None)
    if known is None:
        task = tx.check_owner(owner)
        await check_depth(harness, tx, task.conversation)
        await check_room(harness, tx, task.conversation)
        home = tx.create_conversation(key=key, owner=owner, id=child, title=None if profile is None else profile.name)
        inherited: dict[str, Any] = await tx.snapshot(AGENT, task.conversation) or {}
        settings = {**inherited, **({} if profile is None else profile.settings)}
        if settings:
            own = await tx.doc(AGENT, home.id)
            for name, value in settings.items():
                own[name] = value
    else:
        home = await tx.use(known)
    item = await submit_input(harness, tx, home.id, content, request_id=request_id, when_busy="follow_up")
    return home, item


async def check_depth(harness: Harness, tx: TaskTransaction, parent: ConversationId) -> None:
    """Raise TaskRefused where a sub-agent of this conversation would be nested too deep."""
    settings = await harness.settings(tx, parent)
    depth = depth_of(tx.candidate, parent) + 1
    if depth > settings.max_depth:
        raise TaskRefused(
            f"a sub-agent here would be nested {depth} deep, and max_depth is {settings.max_depth}: do the work here"
        )


async def check_room(harness: Harness, tx: TaskTransaction, parent: ConversationId) -> None:
    """Raise TaskRefused where as many sub-agents of this conversation work as may."""
    most = (await harness.settings(tx, parent)).max_children
    working = sum(1 for child in children_of(tx.candidate, parent) if works(tx.candidate, child))
    if working >= most:
        raise TaskRefused(
            f"{working} sub-agents of conversation {parent} work, which is its limit (max_children): "
            f"wait for one to end, or stop one"
        )


def depth_of(view: Candidate, conversation: ConversationId) -> int:
    """How many owners stand above a conversation."""
    depth = 0
    home = view.conversation(conversation)
    while home is not None and home.owner is not None:
        depth += 1
        owner = view.task(home.owner)
        home = None if owner is None else view.conversation(owner.conversation)
    return depth


def children_of(view: Candidate, parent: ConversationId) -> Iterator[ConversationId]:
    """Conversations that live tasks of a conversation own: one level of sub-agents."""
    todo: list[Task] = list(view.scope(parent))
    while todo:
        task = todo.pop()
        yield from view.owned(task.id)
        todo.extend(view.children(task.id))


def works(view: Candidate | State, conversation: ConversationId) -> bool:
    """Whether ordinary work of that conversation is live."""
    if isinstance(view, Candidate):
        return any(not task.background for task in view.scope(conversation))
    return any(not view.tasks[id].background for id in view.scopes.get(conversation, ()))
