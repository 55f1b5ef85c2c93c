"""Task definitions: the code of a durable state machine (K24 to K26, K34)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, overload

from perdure.errors import UsageError
from perdure.records import RESERVED_PREFIX, Checkpoint, HoldReason, Task

if TYPE_CHECKING:
    from perdure.tasks.invocation import Invocation
    from perdure.tasks.transaction import InvocationTransaction

Handler = Callable[..., Awaitable[None]]
F = TypeVar("F", bound=Handler)


@overload
def phase(function: F, /) -> F: ...
@overload
def phase(*, first: bool = False, whole: bool = False, stages: bool = False) -> Callable[[F], F]: ...
def phase(
    function: F | None = None, /, *, first: bool = False, whole: bool = False, stages: bool = False
) -> F | Callable[[F], F]:
    """Make a method a phase of its task. Exactly one phase is the first.

    The method is given the invocation, and by name what the previous phase saved for it;
    `whole` gives it that as the one object it is stored as, not to be changed.
    It has to commit the next phase, a wait or an outcome before it returns; else the task faults (K26).

    One that `stages` is given a transaction in place of the invocation, and only stages: no effect, no commit of its
    own. So it need not wait until the commit that makes it due is durable, it becomes a part of it. It may run more
    than once, and does not count on running there: what it raises, or cannot do there, it does in its own commit.
    """

    def mark(function: F) -> F:
        function.__perdure_phase__ = "first" if first else "later"  # type: ignore[attr-defined]
        function.__perdure_whole__ = whole  # type: ignore[attr-defined]
        function.__perdure_stages__ = stages  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


class TaskDefinition:
    """Subclass it, name `kind` and `version`, and write phases.

    `replay` says what becomes of a phase that began its effect and was interrupted:
    `safe` runs again; `unsafe` runs with `invocation.uncertain` set and must not repeat the effect.
    `migrate` takes what an older version stored to this one.
    """

    kind: ClassVar[str]
    version: ClassVar[int] = 1
    replay: ClassVar[Literal["safe", "unsafe"]] = "unsafe"
    phases: ClassVar[Mapping[str, Handler]] = {}
    first_phase: ClassVar[str] = ""
    #: Phases that only stage.
    staging: ClassVar[frozenset[str]] = frozenset()
    #: Whether `migrate` is there.
    migrates: ClassVar[bool] = False

    def __init_subclass__(cls, *, reserved: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.migrates = cls.migrate is not TaskDefinition.migrate
        if not hasattr(cls, "kind"):
            return  # what kinds have in common: it is no task yet
        if "kind" in vars(cls) and cls.kind.startswith(RESERVED_PREFIX) and not reserved:
            raise UsageError(
                f"task kind {cls.kind!r} starts with {RESERVED_PREFIX!r}, which is perdure's: take another one"
            )
        members = [item for base in reversed(cls.__mro__) for item in vars(base).items()]
        found = {name: value for name, value in members if hasattr(value, "__perdure_phase__")}
        firsts = [name for name, value in found.items() if value.__perdure_phase__ == "first"]
        if len(firsts) != 1:
            raise UsageError(f"task {cls.kind!r} needs exactly one @phase(first=True); it has {firsts or 'none'}")
        cls.phases = found
        cls.first_phase = firsts[0]
        cls.staging = frozenset(name for name, value in found.items() if value.__perdure_stages__)

    def migrate(self, version: int, input: Any, checkpoint: Checkpoint) -> tuple[Any, str, Any]:
        """What version `version` stored, for this one: input, phase and the data for it. Pure; may run more than
        once."""
        raise NotImplementedError

    async def abort(self, invocation: Invocation) -> None:
        """Runs once the work below a stopped task has ended, and decides the outcome. Crashes may repeat it."""
        async with invocation.commit() as tx:
            tx.aborted()


def start(
    definition: TaskDefinition, phase: str, context: Invocation | InvocationTransaction, data: Any
) -> Awaitable[None]:
    """Start a phase with what the one before it saved."""
    handler = definition.phases[phase]
    if getattr(handler, "__perdure_whole__", False):
        return handler(definition, context, data)
    return handler(definition, context, **data) if data else handler(definition, context)


class Definitions:
    """What is installed, by kind. Replaced as a whole, never changed."""

    def __init__(self, definitions: Mapping[str, TaskDefinition]) -> None:
        self._by_kind = dict(definitions)

    def find(self, kind: str) -> TaskDefinition | None:
        return self._by_kind.get(kind)

    def fit(self, task: Task) -> tuple[HoldReason, str] | None:
        """Why none of these can take the task, or None."""
        definition = self._by_kind.get(task.kind)
        if definition is None:
            return "definition", f"no definition of task kind {task.kind!r} is installed"
        if definition.version < task.version:
            older = f"stored in version {task.version}, installed is {definition.version}"
            return "definition", f"{older}: install the newer code"
        if definition.version > task.version and not definition.migrates:
            return "migration", f"stored in version {task.version}, installed is {definition.version} without `migrate`"
        return None
