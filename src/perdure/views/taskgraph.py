"""The task graph of a session (K38): live tasks, who waits on whom, who owns whom, and what conversations they own."""

from __future__ import annotations

from typing import Any

from perdure.records import Conversation, Task
from perdure.session.change import Change
from perdure.session.line import Line
from perdure.settle.state import State
from perdure.tasks.inspection import task_info
from perdure.views.frame import Composition, Step, as_json

#: The key of its source.
TASKS = "tasks"


async def task_graph(line: Line) -> TaskGraphProjection:
    """The projection of a session's task graph."""
    return TaskGraphProjection(line.memory.published)


class TaskGraphProjection:
    """Invariant: `value` has the live tasks of published state, and the conversations that these own."""

    gone: str | None = None

    def __init__(self, state: State) -> None:
        self._state = state
        self.value: dict[str, Any] = {"tasks": {}, "conversations": {}}
        #: Keys of the conversations in the value, by the task that owns them.
        self._owned: dict[int, list[str]] = {}

    def settle(self, late: list[Change]) -> None:
        """All of it is in memory: what came late is there too."""
        state = self._state
        tasks = {str(id): as_json(task_info(state.tasks[id])) for id in sorted(state.tasks)}
        owned = [state.conversations[id] for owner, ids in state.owned.items() if owner in state.tasks for id in ids]
        for conversation in owned:
            self._note(conversation)
        conversations = {str(each.id): as_json(each) for each in sorted(owned, key=lambda each: each.id)}
        self.value = {"tasks": tasks, "conversations": conversations}

    def advance(self, change: Change) -> Step | None:
        composition = Composition(self.value)
        for task in change.tasks.values():
            self._task(composition, task)
        for conversation in change.conversations.values():
            self._conversation(composition, conversation)
        self.value = composition.value
        return composition.step()

    def _task(self, composition: Composition, task: Task) -> None:
        if task.live:
            composition.put_in("tasks", str(task.id), as_json(task_info(task)))
            return
        composition.drop_from("tasks", str(task.id), task)
        for key in self._owned.pop(task.id, ()):
            composition.drop_from("conversations", key)

    def _conversation(self, composition: Composition, conversation: Conversation) -> None:
        key, owner = str(conversation.id), conversation.owner
        if conversation.deleted or owner is None or owner not in self._state.tasks:
            composition.drop_from("conversations", key)
            return
        if key not in composition.value["conversations"]:
            self._note(conversation)
        composition.put_in("conversations", key, as_json(conversation))

    def _note(self, conversation: Conversation) -> None:
        if conversation.owner is not None:
            self._owned.setdefault(conversation.owner, []).append(str(conversation.id))
