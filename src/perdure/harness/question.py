"""The handle of a question that waits for somebody (K37)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.harness.approval import asked_call
from perdure.harness.decisions import AskedCall
from perdure.records import ConversationId, Outside, Task, TaskId, Waiting

#: Answers a question: its id, the value, who answers.
Answer = Callable[[TaskId, Any, str | None], Awaitable[Any]]


class Question:
    """A question as it was when it was looked at. Find it again by its id, also after a restart."""

    def __init__(self, task: Task, answer: Answer) -> None:
        self._task = task
        self._answer = answer
        self.id: TaskId = task.id
        self.conversation: ConversationId = task.conversation
        #: What whoever answers is shown.
        self.payload: Any = task.input["payload"]
        #: The call that it is about: its name and the arguments that it would run with. None where it is no approval.
        self.call: AskedCall | None = asked_call(task)
        #: The task that waits for the answer.
        self.asker: TaskId | None = task.owner
        policy = task.state.policy if isinstance(task.state, Waiting) else None
        #: When its default answers it, in seconds since the epoch.
        self.deadline: float | None = policy.deadline if isinstance(policy, Outside) else None

    def __repr__(self) -> str:
        about = f" about {self.call.name}" if self.call is not None else ""
        return f"<question {self.id}{about} in conversation {self.conversation}>"

    async def answer(self, value: Any = True, *, by: str | None = None) -> Any:
        """Decide it, at most once; durable on return.

        An approval takes `perdure.Allow`, `Deny` and `Edit`, or true and false; other questions any JSON.
        Raises AlreadyAnswered (with who decided), and UsageError for what decides no call; then nothing changes.
        Where the session is another process's, what is returned says what became of it (`taken()`).
        """
        return await self._answer(self.id, value, by)

    def answered_by(self, answer: Answer) -> Question:
        """The same question, answered in another way."""
        return Question(self._task, answer)
